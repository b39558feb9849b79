"""The search for a policy, against published policies and against every placement of a grid."""

from __future__ import annotations

import dataclasses
import itertools
import sys

import numpy as np
import pytest

from flashllm.errors import UsageError
from flashllm.planning.batch import policy_search
from flashllm.planning.batch.batch_plan import plan_policy, plan_search
from flashllm.planning.batch.block_cost import BlockCost
from flashllm.planning.batch.machine import TieredMachine
from flashllm.planning.batch.placement import GROUPS, SHARES, TIERS, Affine, Placement
from flashllm.planning.batch.policy import Block, Workload, parse_batch_policy
from flashllm.planning.batch.policy_search import best_placement, search, shortage
from flashllm.planning.batch.tiered_cost import TieredModel
from tests.support.published_policies import PUBLISHED, Published, shape_of, t4

WORK = Workload(512, 32)
MODEL_30B = TieredModel(shape_of("30b"), t4(), WORK)
MODEL_175B = TieredModel(shape_of("175b"), t4(), WORK)
SMALL = dataclasses.replace(t4(), device_bytes=3e9, dram_bytes=30e9, flash_bytes=90e9)
"""Too small for 30B but with a share of everything on flash."""

QUICK = dataclasses.replace(
    SMALL,
    device_flops_per_second=1e15,
    device_attention_flops_per_second=1e15,
    device_decode_flops_per_second=1e15,
    cpu_attention_flops_per_second=1e15,
    device_to_dram_kv_bytes_per_second=3e9,
)
"""Computes in no time: prompts wait for keys and values, answers for weights, and which of them
the device should hold depends on how many tokens there are of each."""


@pytest.mark.parametrize("cost_model", ["overlapped", "serialised"])
@pytest.mark.parametrize("published", PUBLISHED, ids=str)
def test_never_worse_than_a_published_policy(published: Published, cost_model: str) -> None:
    """For each: the block is one that the search tries, and its placement is no worse there.

    Where time depends on the rows alone, the same rows in smaller batches are tried instead.
    """
    model = published.model_of(t4(), cost_model)
    block = published.policy.block
    tried = {
        size * batches: Block(size, batches)
        for size in reversed(policy_search.BATCH_ROWS)
        for batches in range(1, policy_search.BATCHES_MAX + 1)
    }[block.rows]
    assert tried.batch_rows <= block.batch_rows
    cost = model.cost(tried)
    placement = best_placement(cost)
    assert placement is not None
    assert cost.fits(placement)
    seconds = model.cost(block).seconds(published.policy.placement)
    assert cost.seconds(placement) <= seconds * (1 + 1e-4)


@pytest.mark.parametrize("model", [MODEL_30B, MODEL_175B], ids=["30b", "175b"])
def test_the_best_of_all_blocks(model: TieredModel) -> None:
    found = search(model)
    assert found.best is not None
    assert found.best.fits
    same = [
        one.policy
        for one in PUBLISHED
        if one.model_of(t4()) == model and one.system != "compressed"
    ]
    assert len(same) == 3
    for policy in same:
        published = model.cost(policy.block).tokens_per_second(policy.placement)
        assert found.best.tokens_per_second >= published
    # Latency against throughput: both rise, each row's numbers belong together, the best is last.
    assert found.pareto[-1] == found.best
    seconds = [one.seconds for one in found.pareto]
    speeds = [one.tokens_per_second for one in found.pareto]
    assert seconds == sorted(seconds)
    assert all(slow < fast for slow, fast in itertools.pairwise(speeds))
    for one in found.pareto:
        rows = one.policy.block.rows
        assert one.fits
        assert one.tokens_per_second == pytest.approx(rows * WORK.new_tokens / one.seconds)
    # A limit chooses from these, and printing a policy loses nothing of it.
    limit = seconds[len(seconds) // 2] * 1.001
    limited = plan_search(model, limit).chosen
    assert limited is not None
    assert limited.seconds <= limit
    assert limited.tokens_per_second == pytest.approx(speeds[len(seconds) // 2], rel=1e-4)
    again = parse_batch_policy(str(limited.policy))
    assert plan_policy(model, again).fits
    assert model.cost(again.block).seconds(again.placement) == pytest.approx(limited.seconds)


class Grid:
    """Every placement in steps, and costs computed for all of them by numpy alone."""

    def __init__(self, cost: BlockCost, groups: list[np.ndarray]) -> None:
        picks = np.indices([len(group) for group in groups]).reshape(3, -1)
        self.shares = np.hstack([group[pick] for group, pick in zip(groups, picks, strict=True)])
        fits = np.ones(len(self.shares), dtype=bool)
        for tier in TIERS:
            for need in cost.needs:
                if need.tier == tier:
                    fits &= self._values(need.bytes) <= cost.limit_bytes[tier]
        self.seconds = np.zeros(len(self.shares))
        for phase in (cost.prefill, cost.decode):
            lanes = [
                sum(self._values(phase.parts[name]) for name in names)
                for names in phase.lanes.values()
            ]
            self.seconds += phase.steps * np.max(lanes, axis=0)
        self.seconds[~fits] = np.inf
        self.best = float(np.min(self.seconds))

    def _values(self, value: Affine) -> np.ndarray:
        return self.shares @ np.array(value.factors) + value.constant


def splits(steps: int) -> np.ndarray:
    """All ways to split 1 into three multiples of 1/steps."""
    pairs = [(a, b) for a in range(steps + 1) for b in range(steps + 1 - a)]
    return np.array([(a, b, steps - a - b) for a, b in pairs]) / steps


def near(shares: tuple[float, ...], step: float) -> np.ndarray:
    """Splits a step away from one, and it itself."""
    moves = [np.array(move) for move in itertools.product((-1, 0, 1), repeat=3) if not sum(move)]
    around = [np.array(shares) + step * move for move in moves]
    return np.array([one for one in around if one.min() >= 0])


@pytest.mark.parametrize(
    ("model", "block"),
    [
        (MODEL_30B, Block(4, 19)),
        (MODEL_175B, Block(32, 8)),
        (TieredModel(shape_of("30b"), SMALL, WORK), Block(4, 2)),
        (TieredModel(shape_of("30b"), SMALL, WORK, cost_model="serialised"), Block(2, 3)),
        (TieredModel(shape_of("175b"), t4(), WORK, True, False), Block(8, 16)),
        (TieredModel(shape_of("6.7b"), QUICK, Workload(512, 8)), Block(8, 2)),
    ],
    ids=["30b", "175b", "small", "serialised", "compressed", "quick"],
)
def test_the_optimum_is_that_of_a_grid(model: TieredModel, block: Block) -> None:
    """No placement in tenths is better, nor one near the optimum; one in tenths comes near it."""
    cost = model.cost(block)
    placement = best_placement(cost)
    assert placement is not None
    seconds = cost.seconds(placement)
    tenths = splits(10)
    held = tenths[tenths[:, 2] == 0] if "hd" in cost.barred else tenths
    coarse = Grid(cost, [tenths, tenths, held])
    assert seconds <= coarse.best * (1 + 1e-4)
    assert coarse.best <= seconds * 1.35
    for step in (0.03, 0.003):
        around = [near(placement.values[at : at + 3], step) for at in (0, 3, 6)]
        if "hd" in cost.barred:
            around[2] = around[2][around[2][:, 2] == 0]
        fine = Grid(cost, around)
        assert seconds <= fine.best * (1 + 1e-4)
    alone = Grid(cost, [np.array([placement.values[at : at + 3]]) for at in (0, 3, 6)])
    assert alone.best == pytest.approx(seconds)


def test_nothing_fits_and_what_would() -> None:
    """Each size that is said to be enough is enough, and a little less is not."""
    tiny = dataclasses.replace(t4(), device_bytes=1e9, flash_bytes=10e9, dram_bytes=60e9)
    model = dataclasses.replace(MODEL_30B, machine=tiny)
    made = plan_search(model)
    assert (made.fits, made.chosen) == (False, None)
    assert "not even one prompt at a time fits" in made.reason
    needed = shortage(model).needed_bytes
    assert list(needed) == ["device"]
    for tier, nbytes in needed.items():
        enough = dataclasses.replace(tiny, **{f"{tier}_bytes": nbytes})
        short = dataclasses.replace(tiny, **{f"{tier}_bytes": 0.99 * nbytes})
        assert best_placement(dataclasses.replace(model, machine=enough).cost(Block(1, 1)))
        assert not best_placement(dataclasses.replace(model, machine=short).cost(Block(1, 1)))


def test_all_tiers_are_too_small() -> None:
    tiny = dataclasses.replace(t4(), device_bytes=1e9, dram_bytes=1e4, flash_bytes=10e9)
    model = dataclasses.replace(MODEL_30B, machine=tiny)
    lacks = shortage(model)
    assert lacks.needed_bytes == {}

    def times(factor: float) -> TieredMachine:
        sizes = {f"{tier}_bytes": nbytes * factor for tier, nbytes in tiny.limit_bytes.items()}
        return dataclasses.replace(tiny, **sizes)

    for factor, is_enough in ((1.001 * lacks.factor, True), (0.99 * lacks.factor, False)):
        larger = dataclasses.replace(model, machine=times(factor))
        assert bool(best_placement(larger.cost(Block(1, 1)))) == is_enough
    assert "all tiers together would have to be" in plan_search(model).reason


def test_no_block_is_quick_enough() -> None:
    model = TieredModel(shape_of("30b"), SMALL, WORK)
    made = plan_search(model, 5.0)
    assert made.chosen is None
    assert made.would_fit is not None
    assert made.would_fit.policy is not None
    quickest = plan_policy(model, made.would_fit.policy)
    assert quickest.chosen is not None
    assert made.would_fit.seconds == pytest.approx(quickest.chosen.seconds, rel=1e-4)
    assert "within 5 s" in made.reason


def test_a_policy_by_hand_that_is_too_large() -> None:
    """What would do has the same shares and as many batches, or else rows, as there is room for."""
    made = plan_policy(MODEL_30B, parse_batch_policy("48,9,20,80,0,100,0,100"))
    assert not made.fits
    assert "DRAM needs" in made.reason
    assert made.would_fit is not None
    smaller = made.would_fit.policy
    assert smaller is not None
    block = smaller.block
    assert block.batch_rows == 48
    assert plan_policy(MODEL_30B, smaller).fits
    more = dataclasses.replace(smaller, block=Block(48, block.batches + 1))
    assert not plan_policy(MODEL_30B, more).fits
    made = plan_policy(MODEL_30B, parse_batch_policy("400,1,20,80,0,100,0,100"))
    assert made.would_fit is not None
    assert made.would_fit.policy is not None
    assert 48 <= made.would_fit.policy.block.batch_rows < 400
    made = plan_policy(MODEL_30B, parse_batch_policy("1,1,100,0,0,100,0,100"))
    assert made.would_fit is not None
    assert made.would_fit.policy is None
    assert set(made.would_fit.needed_bytes) == {"device"}


def test_a_policy_by_hand_that_is_too_slow() -> None:
    made = plan_policy(MODEL_30B, parse_batch_policy("48,3,20,80,0,100,0,100"), 60)
    assert (made.fits, made.chosen is not None) == (False, True)
    assert "more than the latency of 60 s" in made.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("48,3,20,80,0,100,0", "has 7 numbers; expected 8"),
        ("48,3,20,90,0,100,0,100", "wg + wc is 110 % of the weights"),
        ("48,3,20,80,60,41,0,100", "cg + cc is 101 % of the keys and values"),
        ("48,3,20,80,0,100,1,100", "hg + hc is 101 % of the activations"),
        ("0,3,20,80,0,100,0,100", "gbs is '0'"),
        ("48,-3,20,80,0,100,0,100", "#gb is '-3'"),
        ("4.5,3,20,80,0,100,0,100", "gbs is '4.5'"),
        ("48,3,-20,80,0,100,0,100", "wg is '-20'"),
        ("48,3,20,101,0,100,0,100", "wc is '101'"),
        ("48,3,20,80,nan,100,0,100", "cg is 'nan'"),
        ("48,3,20,80,x,100,0,100", "cg is 'x'"),
        ("1048576,2,20,80,0,100,0,100", "at most 1048576"),
    ],
)
def test_policies_that_make_no_sense(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_batch_policy(text)
    assert words in str(caught.value)


def test_a_policy_and_its_text() -> None:
    policy = parse_batch_policy(" 48, 3, 20, 79.5, 0, 100, 33.3333, 0 ")
    assert policy.block == Block(48, 3)
    assert policy.placement.wd == pytest.approx(0.005)
    assert str(policy) == "48,3,20,79.5,0,100,33.3333,0"
    assert policy.to_json()["hd"] == 66.6667


def test_rounded_shares_add_up() -> None:
    generator = np.random.default_rng(1)
    for _ in range(200):
        raw = np.concatenate([generator.dirichlet([0.3] * 3) for _ in GROUPS])
        place = Placement.rounded(raw)
        values = dict(zip(SHARES, place.values, strict=True))
        for group in GROUPS:
            assert sum(values[share] for share in group) == pytest.approx(1, abs=1e-12)
        assert np.abs(np.array(place.values) - raw).max() < 2e-6


def test_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy by hand needs none; a search says what to install."""
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert plan_policy(MODEL_30B, parse_batch_policy("48,3,20,80,0,100,0,100")).fits
    with pytest.raises(UsageError, match=r"pip install 'flashllm\[batch\]'"):
        plan_search(MODEL_30B)
