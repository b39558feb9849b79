"""What tokens and prompts cost: records, and the sums that reports give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flashllm.system.clock import PARTS

_JSON_NAMES = {
    "extra_rounds": "passes",
    "evicted_early": "spilled",
    "prefetched": "guessed",
    "prefetched_used": "guesses_used",
    "prefetched_bytes_wasted": "guess_bytes_wasted",
}


@dataclass(frozen=True, slots=True)
class TokenCost:
    """What one decoded token cost; times in nanoseconds, sizes in bytes."""

    wall_ns: int
    parts_ns: dict[str, int]
    bytes_read: int
    """Bytes asked of the device, gaps between bundles and rounding included."""
    bytes_useful: int
    reads: int
    io_busy_ns: int
    """Time with at least one read under way."""
    depth_ns: int
    """Reads under way, summed over time: divided by io_busy_ns, the mean queue depth."""
    depth_max: int
    """The most reads under way at once since the model was opened."""
    size_histogram: tuple[int, ...]
    """Reads by size; entry i counts those of 2**i to 2**(i+1) - 1 bytes."""
    hits: int
    misses: int
    extra_rounds: int
    evicted_early: int
    prefetched: int
    """Bundles whose reads began early, by prediction; `prefetched_used` of them were needed."""
    prefetched_used: int
    neurons: int
    """Neurons of experts that might be silent, and `neurons_silent` that were."""
    neurons_silent: int
    rss_bytes: int
    kv_tokens: int = 0
    """Keys and values that there were, of each key head and layer where a policy chooses among
    them; `kv_seen` of them were seen. 0 where all are seen."""
    kv_seen: int = 0
    kv_recall: float | None = None
    """Share of attention's mass on what was seen, of the heads that were measured; None where none
    was."""
    prefetched_bytes_wasted: int = 0
    """Bytes of `bytes_read` that belong to prefetched bundles that were not needed."""

    @property
    def io_hidden_ns(self) -> int:
        """Time in which reads were under way while something else was computed."""
        return max(self.io_busy_ns - self.parts_ns.get("io_exposed", 0), 0)

    @property
    def hit_rate(self) -> float:
        """Share of the active bundles that were in DRAM already."""
        return ratio(self.hits, self.hits + self.misses, empty=1.0)

    @property
    def kv_share(self) -> float:
        """Share of the keys and values that were seen."""
        return ratio(self.kv_seen, self.kv_tokens, empty=1.0)

    def shared(self, weights: Sequence[int]) -> list[TokenCost]:
        """The cost of a step as costs of its parts by `weights`, whose sums are those of the step.

        What cannot be divided is the first one's.
        """
        counts = [getattr(self, name) for name in _SUMMED_COSTS]
        numbers = [*counts, *self.parts_ns.values(), *self.size_histogram]
        columns = [_divided(number, weights) for number in numbers]
        first, second = len(counts), len(counts) + len(self.parts_ns)
        return [
            replace(
                self,
                **dict(zip(_SUMMED_COSTS, row[:first], strict=True)),
                parts_ns=dict(zip(self.parts_ns, row[first:second], strict=True)),
                size_histogram=tuple(row[second:]),
            )
            for row in zip(*columns, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain values, derived ones included, under the stored names of `--json`.

        There a round is a pass, an early eviction a spill and a prefetch a guess.
        """
        return {
            **{_JSON_NAMES.get(name, name): value for name, value in asdict(self).items()},
            "io_hidden_ns": self.io_hidden_ns,
            "hit_rate": self.hit_rate,
            "queue_depth_mean": ratio(self.depth_ns, self.io_busy_ns),
            "io_bytes_per_second": ratio(self.bytes_read * 1e9, self.io_busy_ns),
        }


_SUMMED_COSTS = (
    "wall_ns", "bytes_read", "bytes_useful", "reads", "io_busy_ns", "depth_ns", "hits", "misses",
    "extra_rounds", "evicted_early", "prefetched", "prefetched_used", "prefetched_bytes_wasted",
    "neurons", "neurons_silent",
)  # fmt: skip
NO_COST = TokenCost(0, dict.fromkeys(PARTS, 0), 0, 0, 0, 0, 0, 0, (), 0, 0, 0, 0, 0, 0, 0, 0, 0)
"""The cost of a token for which nothing was measured."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """What reading the prompt cost, sampling the first token included."""

    tokens: int = 0
    """Tokens of the whole prompt, `reused` ones included."""
    wall_ns: int = 0
    bytes_read: int = 0
    reused: int = 0
    """Tokens that the context already held, from earlier turns."""
    not_reused_why: str = ""
    """Why the context held more that was of no use, in a few words; empty where that is unknown,
    or where all of it was."""

    @classmethod
    def of(cls, cost: TokenCost, tokens: int, reused: int = 0) -> PrefillCost:
        """The cost of a prompt, from the cost of the first step."""
        return cls(tokens=tokens, wall_ns=cost.wall_ns, bytes_read=cost.bytes_read, reused=reused)


def _divided(number: int, weights: Sequence[int]) -> list[int]:
    """A number in whole parts by weights; the first one has the rest."""
    whole = sum(weights)
    parts = [number * weight // whole for weight in weights]
    parts[0] += number - sum(parts)
    return parts


def decode_summary(costs: Sequence[TokenCost]) -> dict[str, Any]:
    """The `decode` object of a report: sums over the decoded tokens, and their rates."""
    wall_ns = sum(cost.wall_ns for cost in costs)
    hits = sum(cost.hits for cost in costs)
    misses = sum(cost.misses for cost in costs)
    io_busy_ns = sum(cost.io_busy_ns for cost in costs)
    bytes_read = sum(cost.bytes_read for cost in costs)
    sizes = [list(cost.size_histogram) for cost in costs]
    kv_tokens = sum(cost.kv_tokens for cost in costs)
    kv_seen = sum(cost.kv_seen for cost in costs)
    recalls = [cost.kv_recall for cost in costs if cost.kv_recall is not None]
    return {
        "tokens": len(costs),
        "wall_ns": wall_ns,
        "tokens_per_second": ratio(len(costs) * 1e9, wall_ns),
        "parts_ns": {part: sum(cost.parts_ns[part] for cost in costs) for part in PARTS},
        "bytes_read": bytes_read,
        "bytes_useful": sum(cost.bytes_useful for cost in costs),
        "reads": sum(cost.reads for cost in costs),
        "hit_rate": ratio(hits, hits + misses, empty=1.0),
        "hits": hits,
        "misses": misses,
        "passes": sum(cost.extra_rounds for cost in costs),
        "spilled": sum(cost.evicted_early for cost in costs),
        "guessed": sum(cost.prefetched for cost in costs),
        "guesses_used": sum(cost.prefetched_used for cost in costs),
        "guess_bytes_wasted": sum(cost.prefetched_bytes_wasted for cost in costs),
        "neurons": sum(cost.neurons for cost in costs),
        "neurons_silent": sum(cost.neurons_silent for cost in costs),
        "io_busy_ns": io_busy_ns,
        "io_bytes_per_second": ratio(bytes_read * 1e9, io_busy_ns),
        "queue_depth_mean": ratio(sum(cost.depth_ns for cost in costs), io_busy_ns),
        "queue_depth_max": max((cost.depth_max for cost in costs), default=0),
        "read_sizes": _histogram(sizes),
        "kv_tokens": kv_tokens,
        "kv_seen": kv_seen,
        "kv_share": ratio(kv_seen, kv_tokens, empty=1.0),
        "kv_recalls": len(recalls),
        "kv_recall": ratio(sum(recalls), len(recalls), empty=1.0),
    }


_SUMMED = ("tokens", "wall_ns", "bytes_read", "bytes_useful", "reads", "hits", "misses", "passes",
           "spilled", "guessed", "guesses_used", "guess_bytes_wasted", "neurons",
           "neurons_silent", "io_busy_ns", "kv_tokens", "kv_seen", "kv_recalls")  # fmt: skip


def merged_summary(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The `decode` object of two answers together: `decode_summary` of the costs of both."""
    # Conversations of earlier versions have fewer of them.
    sums = {name: one.get(name, 0) + other.get(name, 0) for name in _SUMMED}
    depth_ns = sum(each["queue_depth_mean"] * each["io_busy_ns"] for each in (one, other))
    sizes = [*one["read_sizes"], *other["read_sizes"]]
    reads_of = {
        size: one["read_sizes"].get(size, 0) + other["read_sizes"].get(size, 0)
        for size in sorted(set(sizes), key=int)
    }
    return {
        **sums,
        "tokens_per_second": ratio(sums["tokens"] * 1e9, sums["wall_ns"]),
        "parts_ns": {part: one["parts_ns"][part] + other["parts_ns"][part] for part in PARTS},
        "hit_rate": ratio(sums["hits"], sums["hits"] + sums["misses"], empty=1.0),
        "io_bytes_per_second": ratio(sums["bytes_read"] * 1e9, sums["io_busy_ns"]),
        "queue_depth_mean": ratio(depth_ns, sums["io_busy_ns"]),
        "queue_depth_max": max(one["queue_depth_max"], other["queue_depth_max"]),
        "read_sizes": reads_of,
        "kv_share": ratio(sums["kv_seen"], sums["kv_tokens"], empty=1.0),
        "kv_recall": ratio(
            sum(each.get("kv_recall", 0) * each.get("kv_recalls", 0) for each in (one, other)),
            sums["kv_recalls"],
            empty=1.0,
        ),
    }


def _histogram(sizes: Sequence[Sequence[int]]) -> dict[str, int]:
    totals = [sum(column) for column in zip(*sizes, strict=True)]
    return {str(1 << power): count for power, count in enumerate(totals) if count}


def ratio(part: float, whole: float, empty: float = 0.0) -> float:
    """`part` over `whole`, and `empty` where there is nothing to divide by."""
    return part / whole if whole else empty


def useful_share(neurons: int, silent: int) -> float:
    """The share of experts' bytes that changed anything, where `silent` of their neurons were zero.

    Of three matrices of equal size, gate is always needed; of up and down what active neurons have.
    """
    return (1 + 2 * (1 - ratio(silent, neurons))) / 3
