"""The best policy for a block: a linear programme for each size of block.

For every (gbs, #gb) the nine shares and the seconds of a step of prompts and of answers are the
variables of a linear programme; the block with the most tokens a second wins. Solved by HiGHS, as
scipy has it. Source: FlexGen, arXiv 2303.06865, section 4.3; the sizes that are tried are those of
its published policies and more (its "bls < 20" is read as "#gb of at most 20").
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from flashllm.errors import UsageError
from flashllm.planning.batch.block_cost import BlockCost, CostedPolicy
from flashllm.planning.batch.placement import GROUPS, SHARES, TIERS, Affine, Placement
from flashllm.planning.batch.policy import BatchPolicy, Block

BATCHES_MAX: Final = 20
BATCH_ROWS: Final = (
    *(1, 2),
    *range(4, 64, 4),
    *range(64, 160, 8),
    *range(160, 320, 16),
    *range(320, 640, 32),
    *range(640, 1025, 64),
)
"""Every multiple of 4 where one matters, fewer where a step is a small share."""
HEADROOM: Final = 1e-5
"""Share of each tier that stays free, so that rounding the shares does not exceed it."""
_SAME_TIME: Final = 1e-5
_TIMES: Final = 2
_SOLVED: Final = 0


class CostModel(Protocol):
    """Costs of blocks of any size."""

    @property
    def large_batches_are_faster(self) -> bool:
        """Whether of two blocks of as many rows that of the larger batches is faster.

        If not, that of the smaller ones needs less memory, and takes as long.
        """

    def cost(self, block: Block) -> BlockCost:
        """The costs of a block of that size."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found."""

    best: CostedPolicy | None
    """The most tokens a second within the latency, if there is one."""
    pareto: tuple[CostedPolicy, ...]
    """Latency against throughput: every policy than which none is better in both, the quickest
    first, whatever latency was asked for."""
    blocks_tried: int


def search(model: CostModel, latency_seconds: float | None = None) -> Found:
    """The best policy of all blocks; `UsageError` where scipy is not installed."""
    solved = []
    tried = 0
    for cost in _costs(model):
        tried += 1
        if (placement := best_placement(cost)) is not None:
            solved.append(CostedPolicy(BatchPolicy(cost.block, placement), cost))
    pareto = list(_pareto(solved))
    within = [one for one in pareto if latency_seconds is None or one.seconds <= latency_seconds]
    if not within:
        return Found(None, tuple(pareto), tried)
    # The slowest that is allowed has the most throughput: that is what makes the list.
    at = len(within) - 1
    pareto[at] = _nearest_to_device(pareto[at])
    return Found(pareto[at], tuple(pareto), tried)


def best_placement(cost: BlockCost) -> Placement | None:
    """The shares with which a block takes the least time; None if none fits."""
    steps = [float(cost.prefill.steps), float(cost.decode.steps)]
    solution = _program(cost).solve([0.0] * len(SHARES) + steps)
    if solution is None:
        return None
    placement = Placement.rounded(solution)
    return placement if cost.fits(placement) else None


def _program(cost: BlockCost) -> _Program:
    """All that holds for the shares and for the seconds of a step of prompts and of answers."""
    program = _Program(cost)
    for at, phase in enumerate((cost.prefill, cost.decode)):
        if phase.steps:
            for bound in phase.bounds().values():
                program.at_most(bound, time=at)
    for tier in TIERS:
        program.fit(tier)
    return program


def _nearest_to_device(costed: CostedPolicy) -> CostedPolicy:
    """A policy of the same block that takes no longer, with as little as possible far away.

    Where a tier is not what a block waits for, any split may be the programme's optimum.
    """
    cost, seconds = costed.cost, costed.seconds * (1 + _SAME_TIME)
    program = _program(cost)
    beside = cost.prefill.beside_seconds + cost.decode.beside_seconds
    program.within(
        costed.seconds * (1 + _SAME_TIME / 2) - beside,
        [float(cost.prefill.steps), float(cost.decode.steps)],
    )
    far = [float(at % len(TIERS)) for at in range(len(SHARES))]
    solution = program.solve([*far, *[0.0] * _TIMES])
    if solution is None:
        return costed
    placement = Placement.rounded(solution)
    nearer = CostedPolicy(BatchPolicy(costed.policy.block, placement), cost)
    return nearer if nearer.fits and nearer.seconds <= seconds else costed


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a machine lacks for even the smallest block."""

    needed_bytes: dict[str, float]
    """By tier: how much of it alone would be enough, the others as they are."""
    factor: float
    """How many times as large all tiers would have to be, if none alone is enough."""


def shortage(model: CostModel) -> Shortage:
    """Why no policy fits: for one row, the least that would do."""
    cost = model.cost(Block(1, 1))
    needed = {}
    for tier in TIERS:
        if (nbytes := _least_bytes(cost, tier)) is not None:
            needed[tier] = nbytes
    return Shortage(needed, _least_factor(cost))


def largest_fitting(
    cost_of: Callable[[Block], BlockCost], policy: BatchPolicy
) -> BatchPolicy | None:
    """The same shares with fewer batches, or else fewer rows, as many as fit; None if none do."""

    def fits(block: Block) -> bool:
        return cost_of(block).fits(policy.placement)

    wanted, smallest = policy.block, Block(policy.block.batch_rows, 1)
    if fits(smallest):
        batches = most_that_holds(wanted.batches, lambda n: fits(Block(wanted.batch_rows, n)))
        return BatchPolicy(Block(wanted.batch_rows, batches), policy.placement)
    rows = most_that_holds(wanted.batch_rows, lambda n: fits(Block(n, 1)))
    return BatchPolicy(Block(rows, 1), policy.placement) if rows else None


def most_that_holds(limit: int, holds: Callable[[int], bool]) -> int:
    """The most up to `limit` for which it holds, which it does for all below; 0 if for none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _costs(model: CostModel) -> Iterator[BlockCost]:
    """Of blocks of every number of rows, as one split into batches that may fit has it."""
    splits: dict[int, list[Block]] = {}
    for batch_rows in BATCH_ROWS:
        for batches in range(1, BATCHES_MAX + 1):
            block = Block(batch_rows, batches)
            splits.setdefault(block.rows, []).append(block)
    for rows in sorted(splits):
        large_first = model.large_batches_are_faster
        for block in sorted(splits[rows], key=lambda one: one.batch_rows, reverse=large_first):
            cost = model.cost(block)
            if not _least_excess(cost):
                yield cost
                break


def _least_excess(cost: BlockCost) -> bool:
    """Whether a tier is too small even if everything that can be elsewhere is: no solver needed."""
    for need in cost.needs:
        factors = dict(zip(SHARES, need.bytes.factors, strict=True))
        least = need.bytes.constant
        for group in GROUPS:
            least += min(factors[share] for share in group if share not in cost.barred)
        if least > cost.limit_bytes[need.tier]:
            return True
    return False


def _pareto(solved: Sequence[CostedPolicy]) -> Iterator[CostedPolicy]:
    most = 0.0
    for one in sorted(solved, key=lambda one: (one.seconds, -one.tokens_per_second)):
        if one.tokens_per_second > most:
            most = one.tokens_per_second
            yield one


def _least_bytes(cost: BlockCost, tier: str) -> float | None:
    """The least size of one tier with which a block fits, the others as they are."""
    limit = max(cost.limit_bytes[tier], 1.0)
    program = _Program(cost)
    for other in TIERS:
        if other != tier:
            program.fit(other)
    for need in cost.needs:
        if need.tier == tier:
            program.at_most(need.bytes / limit, time=0)
    solution = program.solve([0.0] * len(SHARES) + [1.0, 0.0])
    if solution is None:
        return None
    return max(cost.peak_bytes(Placement.rounded(solution))[tier], 0.0) / (1 - 2 * HEADROOM)


def _least_factor(cost: BlockCost) -> float:
    """How many times as large all tiers must be for a block to fit."""
    program = _Program(cost)
    for need in cost.needs:
        program.at_most(need.bytes / max(cost.limit_bytes[need.tier], 1.0), time=0)
    solution = program.solve([0.0] * len(SHARES) + [1.0, 0.0])
    assert solution is not None, "shares that add up to 1 and a factor that has no limit"
    peaks = cost.peak_bytes(Placement.rounded(solution))
    return max(peaks[tier] / max(cost.limit_bytes[tier], 1.0) for tier in TIERS)


class _Program:
    """A linear programme over the nine shares and two times, which are never below 0."""

    def __init__(self, cost: BlockCost) -> None:
        self._cost = cost
        self._rows: list[list[float]] = []
        self._most: list[float] = []

    def at_most(self, value: Affine, *, time: int) -> None:
        """A value is at most one of the two times."""
        # Rows of about the same size, since a solver's tolerances are absolute.
        scale = value.scale or 1.0
        times = [0.0] * _TIMES
        times[time] = -1.0 / scale
        self._rows.append([*(factor / scale for factor in value.factors), *times])
        self._most.append(-value.constant / scale)

    def within(self, seconds: float, steps: list[float]) -> None:
        """The two times, so many steps of each, are at most that together."""
        self._rows.append([*[0.0] * len(SHARES), *(count / seconds for count in steps)])
        self._most.append(1.0)

    def fit(self, tier: str) -> None:
        """All that a tier needs is within its size."""
        limit = self._cost.limit_bytes[tier]
        for need in self._cost.needs:
            if need.tier == tier:
                scale = limit or need.bytes.scale or 1.0
                factors = [factor / scale for factor in need.bytes.factors]
                self._rows.append([*factors, *[0.0] * _TIMES])
                self._most.append(((1 - HEADROOM) * limit - need.bytes.constant) / scale)

    def solve(self, objective: list[float]) -> list[float] | None:
        """The shares that make the objective least; None if nothing holds."""
        sums = [[float(share in group) for share in SHARES] + [0.0] * _TIMES for group in GROUPS]
        bounds = [(0.0, 0.0 if share in self._cost.barred else 1.0) for share in SHARES]
        found = _linprog()(
            objective,
            A_ub=self._rows,
            b_ub=self._most,
            A_eq=sums,
            b_eq=[1.0] * len(sums),
            bounds=[*bounds, *[(0.0, None)] * _TIMES],
            method="highs",
        )
        if found.status != _SOLVED:
            return None
        return [float(share) for share in found.x[: len(SHARES)]]


def _linprog() -> Any:
    try:
        return importlib.import_module("scipy.optimize").linprog
    except ImportError as error:
        raise UsageError(
            "searching for a policy needs scipy; install it with `pip install 'flashllm[batch]'`,"
            " or give a policy by hand with --policy"
        ) from error
