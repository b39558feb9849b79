"""Replays cache policies on a recorded trace and compares them with Belady's optimum.

The first half of the trace warms the slots and is all that policies learn from; misses are counted
over the second half. All rows of a budget have the same slots, allocated to the layers as the
runtime does it, unless a row says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashllm.arrays import Ids, Values
from flashllm.bench.cache.belady import KnownRates, OptimalReplacement
from flashllm.bench.cache.traces import Trace
from flashllm.errors import UsageError
from flashllm.options import DEFAULT_POLICY, POLICIES
from flashllm.planning.activation_stats import Activity
from flashllm.planning.slot_allocation import DEFAULT_WINDOW, allocate, miss_curve
from flashllm.text_table import columns
from flashllm.weight_cache.layer_cache import LayerCache
from flashllm.weight_cache.policies import Pinned, Policy, make_policy
from flashllm.weight_cache.rounds import split_rounds

TOKENS_MIN = 20
HOT_SHARE = 0.5
"""Share of a layer's slots that the pinning policy pins."""
OPTIMUM = "Belady's optimum"
RATES = "rates known"
ALIKE = f"{DEFAULT_POLICY}, layers alike"
LONGEST = "longest window that fits"
Make = Callable[[int, int], Policy]
"""Makes the policy of a layer, from its number and slots."""


@dataclass(frozen=True, slots=True)
class Result:
    """One policy with one budget."""

    policy: str
    misses: float
    """Bundles that a token of the second half loads in all layers."""
    ratio: float
    """Misses over those of the optimum."""
    hit_rate: float


@dataclass(frozen=True, slots=True)
class Budget:
    """A number of slots, and the results of all policies with it."""

    share: float
    """Share of all bundles that have slots."""
    slots_per_layer: tuple[int, ...]
    expected: float | None
    """Misses that the planner expects of the default policy, from the recorded activity."""
    results: tuple[Result, ...]
    """The fewest misses first."""

    def of(self, policy: str) -> Result:
        """The row of a policy."""
        return next(result for result in self.results if result.policy == policy)


def misses(sets: Sequence[Ids], n_bundles: int, slots: int, policy: Policy) -> list[int]:
    """Bundles that each token loads into a layer's slots, which are empty at first."""
    layer = LayerCache(n_bundles, slots, policy)
    return [
        sum(layer.acquire(piece, token).n_missing for piece in split_rounds(ids, slots))
        for token, ids in enumerate(sets)
    ]


def optimal_replacement(sets: Sequence[Ids], n_bundles: int, slots: int) -> OptimalReplacement:
    """The optimum for a layer; an active set that does not fit is requested in rounds."""
    return OptimalReplacement(
        n_bundles, [piece for ids in sets for piece in split_rounds(ids, slots)]
    )


def rates(sets: Sequence[Ids], n_bundles: int) -> Values:
    """How often each bundle is used."""
    counts = np.bincount(np.concatenate([np.zeros(0, np.int32), *sets]), minlength=n_bundles)
    return np.asarray(counts / max(len(sets), 1))


class Replay:
    """All policies on one trace."""

    def __init__(self, trace: Trace, activity: Activity | None) -> None:
        """`activity` is what was recorded at the model's conversion, if anything was."""
        if trace.tokens < TOKENS_MIN:
            raise UsageError(
                f"the trace has {trace.tokens} tokens; {TOKENS_MIN} are needed, half of which only"
                " warm the slots. Give a longer --text or more --tokens"
            )
        self._trace = trace
        self._activity = activity
        self._half = trace.tokens // 2

    def budget(self, share: float) -> list[int]:
        """Slots of each layer, for a share of all bundles, allocated as the runtime does."""
        n_layers, n_bundles = len(self._trace.sets), self._trace.n_bundles
        least = self._trace.least_slots
        slots = max(int(share * n_layers * n_bundles), least * n_layers)
        if self._activity is None:
            return [slots // n_layers] * n_layers
        curves = [miss_curve(self._activity, i, least, n_bundles) for i in range(n_layers)]
        return allocate(curves, slots, least)

    def run(self, slots_per_layer: Sequence[int], on_row: Callable[[str], None]) -> Budget:
        """Runs every policy with these slots; `on_row` is called with each name before."""
        found: dict[str, float] = {}
        for name, slots, make in self._rows(slots_per_layer):
            on_row(name)
            found[name] = self._misses(slots, make)
        least, used = found[OPTIMUM], self._trace.part(self._half, self._trace.tokens).used
        results = [
            Result(name, n, n / least if least else float(n == 0) or np.inf, 1 - n / used)
            for name, n in found.items()
        ]
        total = len(self._trace.sets) * self._trace.n_bundles
        return Budget(
            sum(slots_per_layer) / total,
            tuple(slots_per_layer),
            self._expected(slots_per_layer),
            tuple(sorted(results, key=lambda result: result.misses)),
        )

    def _rows(self, slots: Sequence[int]) -> Iterator[tuple[str, Sequence[int], Make]]:
        trace, half, n_bundles = self._trace, self._half, self._trace.n_bundles
        alike = [sum(slots) // len(slots)] * len(slots)

        def hot(layer: int, layer_slots: int) -> Policy:
            often = rates(trace.sets[layer][:half], n_bundles)
            pinned = np.zeros(n_bundles, np.bool_)
            pinned[np.argsort(-often, kind="stable")[: int(HOT_SHARE * layer_slots)]] = True
            return Pinned(pinned)

        yield OPTIMUM, slots, lambda layer, n: optimal_replacement(trace.sets[layer], n_bundles, n)
        yield RATES, slots, lambda layer, _: KnownRates(rates(trace.sets[layer][half:], n_bundles))
        for name in POLICIES:
            if name != "window":
                yield name, slots, _named(name, n_bundles, DEFAULT_WINDOW)
        yield ALIKE, alike, _named(DEFAULT_POLICY, n_bundles, DEFAULT_WINDOW)
        yield f"{HOT_SHARE:.0%} pinned, lru", slots, hot
        yield f"window of {DEFAULT_WINDOW}", slots, _named("window", n_bundles, DEFAULT_WINDOW)
        yield LONGEST, slots, _named("window", n_bundles, self._longest(sum(slots)))

    def _longest(self, slots: int) -> int:
        """The longest recorded window whose neurons always fit into the slots."""
        fitting = [DEFAULT_WINDOW]
        if self._activity is not None:
            needed = zip(self._activity.windows, self._activity.slots_needed, strict=True)
            fitting += [window for window, layers in needed if sum(layers) <= slots]
        return max(fitting)

    def _misses(self, slots: Sequence[int], make: Make) -> float:
        total = 0
        for layer, (sets, n) in enumerate(zip(self._trace.sets, slots, strict=True)):
            total += sum(misses(sets, self._trace.n_bundles, n, make(layer, n))[self._half :])
        return total / (self._trace.tokens - self._half)

    def _expected(self, slots: Sequence[int]) -> float | None:
        if self._activity is None:
            return None
        n_bundles = self._trace.n_bundles
        return sum(
            self._activity.loads_of_slots(layer, n, n_bundles) for layer, n in enumerate(slots)
        )


def _named(name: str, n_bundles: int, window: int) -> Make:
    return lambda _layer, _slots: make_policy(name, n_bundles, window)


def report(trace: Trace, budgets: Sequence[Budget]) -> dict[str, Any]:
    """All figures as plain values."""
    held_out = trace.part(trace.tokens // 2, trace.tokens)
    return {
        "trace": {
            "model": trace.model,
            "select": trace.select,
            "layers": len(trace.sets),
            "bundles_per_layer": trace.n_bundles,
            "stride": trace.stride,
            "tokens": trace.tokens,
            "held_out_tokens": held_out.tokens,
            "used_per_token": held_out.used,
        },
        "default": DEFAULT_POLICY,
        "budgets": [
            {
                "share": budget.share,
                "slots": sum(budget.slots_per_layer),
                "slots_per_layer": list(budget.slots_per_layer),
                "expected_misses_per_token": budget.expected,
                "policies": {
                    result.policy: {
                        "misses_per_token": result.misses,
                        "ratio": result.ratio,
                        "hit_rate": result.hit_rate,
                    }
                    for result in budget.results
                },
            }
            for budget in budgets
        ],
    }


def table(found: dict[str, Any]) -> str:
    """Misses per token of each policy, with the ratio to the optimum; a column per budget."""
    trace, budgets = found["trace"], found["budgets"]
    mean = {
        name: sum(_row(budget, name)["ratio"] for budget in budgets)
        for name in budgets[0]["policies"]
    }
    heads = [f"{b['share']:.0%} of bundles" for b in budgets]
    rows = [["misses a token (times the optimum)", *heads]]
    for name in sorted(mean, key=lambda name: mean[name]):
        mark = " *" if name == found["default"] else ""
        rows.append([name + mark, *(_cell(budget, name) for budget in budgets)])
    default = [_row(budget, found["default"]) for budget in budgets]
    rows.append(["hit rate of the default", *(f"{row['hit_rate']:.1%}" for row in default)])
    if budgets[0]["expected_misses_per_token"] is not None:
        expected = (f"{b['expected_misses_per_token']:,.1f}" for b in budgets)
        rows.append(["misses that plan expects", *expected])
    about = (
        f"{trace['model']}, {trace['select']}: {trace['used_per_token']:,.1f} of"
        f" {trace['layers'] * trace['bundles_per_layer']:,} bundles used a token;"
        f" {trace['held_out_tokens']:,} tokens counted, after {trace['tokens'] // 2:,} that"
        " warm and tune\n"
    )
    return f"{about}\n{columns(rows)}* the default\n"


def _row(budget: dict[str, Any], name: str) -> dict[str, float]:
    row: dict[str, float] = budget["policies"][name]
    return row


def _cell(budget: dict[str, Any], name: str) -> str:
    row = _row(budget, name)
    return f"{row['misses_per_token']:,.1f} ({row['ratio']:.2f})"
