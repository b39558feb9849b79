"""What tokens and prompts cost: records, and the sums that reports give."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashllm.system.clock import PARTS


@dataclass(frozen=True, slots=True)
class TokenCost:
    """What one decoded token cost; times in nanoseconds, sizes in bytes."""

    wall_ns: int
    parts_ns: dict[str, int]
    bytes_read: int
    """Asked from the device: gaps between bundles and rounding included."""
    bytes_useful: int
    reads: int
    io_busy_ns: int
    """Time in which at least one read was under way."""
    depth_ns: int
    """Reads under way, summed over time: divided by io_busy_ns, the mean queue depth."""
    depth_max: int
    """The most reads under way at once since the model was opened."""
    size_histogram: tuple[int, ...]
    """Reads by size; entry i counts those of 2**i to 2**(i+1) - 1 bytes."""
    hits: int
    misses: int
    passes: int
    spilled: int
    guessed: int
    """Bundles read before it was known that they are needed; `guesses_used` of them were."""
    guesses_used: int
    rss_bytes: int

    @property
    def io_hidden_ns(self) -> int:
        """Time in which reads were under way while something else was done."""
        return max(self.io_busy_ns - self.parts_ns.get("io_exposed", 0), 0)

    @property
    def hit_rate(self) -> float:
        """Share of the active bundles that were in DRAM already."""
        return ratio(self.hits, self.hits + self.misses, empty=1.0)

    def to_json(self) -> dict[str, Any]:
        """Plain values, the derived ones included."""
        return {
            **dataclasses.asdict(self),
            "io_hidden_ns": self.io_hidden_ns,
            "hit_rate": self.hit_rate,
            "queue_depth_mean": ratio(self.depth_ns, self.io_busy_ns),
            "io_bytes_per_second": ratio(self.bytes_read * 1e9, self.io_busy_ns),
        }


NO_COST = TokenCost(0, dict.fromkeys(PARTS, 0), 0, 0, 0, 0, 0, 0, (), 0, 0, 0, 0, 0, 0, 0)
"""Of a token about which nothing was measured."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """What reading the prompt cost, the first token's draw included."""

    tokens: int = 0
    """Of the whole prompt, those that did not have to be read among them."""
    wall_ns: int = 0
    bytes_read: int = 0
    reused: int = 0
    """Tokens that the context held already, from the turns before."""

    @classmethod
    def of(cls, cost: TokenCost, tokens: int, reused: int = 0) -> PrefillCost:
        """The cost of a first step, as that of its prompt."""
        return cls(tokens=tokens, wall_ns=cost.wall_ns, bytes_read=cost.bytes_read, reused=reused)


def decode_summary(costs: Sequence[TokenCost]) -> dict[str, Any]:
    """The `decode` object of a report: sums over the decoded tokens, and the rates they give."""
    wall_ns = sum(cost.wall_ns for cost in costs)
    hits = sum(cost.hits for cost in costs)
    misses = sum(cost.misses for cost in costs)
    io_busy_ns = sum(cost.io_busy_ns for cost in costs)
    bytes_read = sum(cost.bytes_read for cost in costs)
    sizes = [list(cost.size_histogram) for cost in costs]
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
        "passes": sum(cost.passes for cost in costs),
        "spilled": sum(cost.spilled for cost in costs),
        "guessed": sum(cost.guessed for cost in costs),
        "guesses_used": sum(cost.guesses_used for cost in costs),
        "io_busy_ns": io_busy_ns,
        "io_bytes_per_second": ratio(bytes_read * 1e9, io_busy_ns),
        "queue_depth_mean": ratio(sum(cost.depth_ns for cost in costs), io_busy_ns),
        "queue_depth_max": max((cost.depth_max for cost in costs), default=0),
        "read_sizes": _histogram(sizes),
    }


def _histogram(sizes: Sequence[Sequence[int]]) -> dict[str, int]:
    totals = [sum(column) for column in zip(*sizes, strict=True)]
    return {str(1 << power): count for power, count in enumerate(totals) if count}


def ratio(part: float, whole: float, empty: float = 0.0) -> float:
    """`part` over `whole`, and `empty` where there is nothing to divide by."""
    return part / whole if whole else empty
