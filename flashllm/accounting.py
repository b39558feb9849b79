"""Where the time and the bytes of each token went."""

from __future__ import annotations

import dataclasses
import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashllm.flash.counters import StreamCounters
from flashllm.resident_memory import rss_bytes

PARTS = ("predict", "plan", "io_exposed", "manage", "attention", "ffn", "head", "sample", "other")
COUNTS = tuple(field.name for field in dataclasses.fields(StreamCounters))
_COUNTED = operator.attrgetter(*COUNTS)
RSS_EVERY_NS = 100_000_000
"""What a token says of memory is at most so old."""
_now_ns = time.perf_counter_ns


class PartClock:
    """Attributes every nanosecond between `start` and `stop` to exactly one part.

    It only writes down when which part began, and adds up at the end: by then the weights of a
    layer have pushed everything else out of the processor's caches, and each touch costs.
    """

    __slots__ = ("_note", "_notes", "_runs")

    def __init__(self) -> None:
        self._notes: list[Any] = []  # part, time at which it began, next part, ...
        self._note = self._notes.extend
        self._runs = False

    def start(self) -> None:
        """Forget what was counted and count for `other`."""
        self._notes = []
        self._note = self._notes.extend
        self._runs = True
        self._note(("other", _now_ns()))

    def switch(self, part: str) -> None:
        """From now on, time belongs to `part`; nothing happens outside of `start` and `stop`."""
        if self._runs:
            self._note((part, _now_ns()))

    def halt(self) -> None:
        """Count no more, and add nothing up."""
        self._runs = False

    def stop(self) -> dict[str, int]:
        """Nanoseconds by part since `start`."""
        self.switch("other")
        self._runs = False
        spent_ns = dict.fromkeys(PARTS, 0)
        notes = self._notes
        for part, begin_ns, end_ns in zip(notes[::2], notes[1::2], notes[3::2], strict=False):
            spent_ns[part] += end_ns - begin_ns
        return spent_ns


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


@dataclass(slots=True)
class Meter:
    """Reads the counters of reader and slot pool around each step."""

    reader_stats: Any
    counters: StreamCounters
    clock: PartClock = field(default_factory=PartClock)
    _wall_ns: int = 0
    _reader: Mapping[str, Any] | None = None
    _counts: tuple[int, ...] = ()
    _rss_bytes: int = 0
    _rss_ns: int = -RSS_EVERY_NS

    def start(self) -> None:
        """A step begins."""
        self._wall_ns = _now_ns()
        self.clock.start()
        if self._reader is None:  # otherwise the end of the step before is the beginning of this
            self._reader = self.reader_stats()
            self._counts = self._counted()

    def token(self) -> TokenCost:
        """A step ends, and this is what it cost; what it took to know that belongs to `other`."""
        self.clock.switch("other")
        now, before = self.reader_stats(), self._reader
        assert before is not None, "a step that never began"
        counts = self._counted()
        counted = dict(zip(COUNTS, map(operator.sub, counts, self._counts), strict=True))
        self._reader, self._counts = now, counts
        sizes = tuple(map(operator.sub, now["size_histogram"], before["size_histogram"]))
        rss_bytes = self._rss()
        parts_ns = self.clock.stop()
        wall_ns = _now_ns() - self._wall_ns
        parts_ns["other"] += wall_ns - sum(parts_ns.values())  # what adding up took
        return TokenCost(
            wall_ns=wall_ns,
            parts_ns=parts_ns,
            bytes_read=now["bytes_read"] - before["bytes_read"],
            bytes_useful=now["bytes_useful"] - before["bytes_useful"],
            reads=now["reads"] - before["reads"],
            io_busy_ns=now["busy_ns"] - before["busy_ns"],
            depth_ns=now["depth_ns"] - before["depth_ns"],
            depth_max=now["depth_max"],
            size_histogram=sizes,
            rss_bytes=rss_bytes,
            **counted,
        )

    def _counted(self) -> tuple[int, ...]:
        counts: tuple[int, ...] = _COUNTED(self.counters)
        return counts

    def _rss(self) -> int:
        """Resident memory, asked for now and then: it takes the system as long as a small layer."""
        now_ns = _now_ns()
        if now_ns - self._rss_ns >= RSS_EVERY_NS:
            self._rss_bytes, self._rss_ns = rss_bytes(), now_ns
        return self._rss_bytes


class NoMeter:
    """Stands where a `Meter` would and measures nothing, so that what that costs can be seen."""

    def __init__(self, clock: PartClock) -> None:
        self.clock = clock

    def start(self) -> None:
        """A step begins; the clock stands still even where a cancelled step left it running."""
        self.clock.halt()

    def token(self) -> TokenCost:
        """A step ends."""
        return NO_COST


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
