"""Records of `flashllm bench tokens`: tokens, runs and measurements of the machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from flashllm.bench.tokens.process import ProcessCounts
from flashllm.core.numpy_twin.latency import Latencies
from flashllm.errors import UsageError
from flashllm.system.clock import PARTS
from flashllm.telemetry.costs import TokenCost

COLD, WARM, PLAIN, AGAIN = "cold", "warm", "plain", "again"
"""Kinds of runs: the first one; those that count; without telemetry; further ones with it."""
_COUNTS = (
    "bytes_read", "bytes_useful", "reads", "io_busy_ns", "io_hidden_ns", "depth_max", "hits",
    "misses", "passes", "spilled", "guessed", "guesses_used", "guess_bytes_wasted",
    "rss_bytes", "hit_rate", "queue_depth_mean", "io_bytes_per_second",
)  # fmt: skip
TOKENS_MIN = 2
"""The fewest tokens of a meaningful run."""


def check_tokens(tokens: int) -> None:
    """`UsageError` if there are too few tokens for a run."""
    if tokens < TOKENS_MIN:
        raise UsageError(f"--tokens {tokens}: expected {TOKENS_MIN} or more")


@dataclass(frozen=True, slots=True)
class TokenSample:
    """One decoded token."""

    run: int
    kind: str
    index: int
    """Number in its run, from 0; the prompt's own first token does not count."""
    id: int | None
    """The sampled id; None for the end of the answer."""
    wall_ns: int
    """Time between the request to the engine and its answer, by an outside clock."""
    context_tokens: int
    cost: TokenCost | None
    """None without telemetry."""

    def to_json(self) -> dict[str, Any]:
        """A line of `--jsonl`."""
        return {
            "type": "token",
            "run": self.run,
            "kind": self.kind,
            "index": self.index,
            "id": self.id,
            "wall_ns": self.wall_ns,
            "context_tokens": self.context_tokens,
            "cost": None if self.cost is None else self.cost.to_json(),
        }

    def to_row(self) -> dict[str, Any]:
        """A row of `--csv`."""
        cost = {} if self.cost is None else self.cost.to_json()
        row = {
            name: value for name, value in self.to_json().items() if name not in ("type", "cost")
        }
        parts = cost.get("parts_ns", {})
        row |= {f"{part}_ns": parts.get(part, "") for part in PARTS}
        return row | {name: cost.get(name, "") for name in _COUNTS}


@dataclass(frozen=True, slots=True)
class ReaderCounts:
    """The reader's counts between two moments."""

    bytes_read: int
    bytes_useful: int
    reads: int
    busy_ns: int
    depth_ns: int
    retries: int
    short_reads: int
    bounced: int
    downgrades: int
    bundles_verified: int
    bundles_mismatched: int

    @classmethod
    def of(cls, stats: dict[str, Any]) -> ReaderCounts:
        """From the reader's own counts."""
        return cls(*(int(stats[field.name]) for field in dataclasses.fields(cls)))

    def since(self, earlier: ReaderCounts) -> ReaderCounts:
        """The difference to an earlier moment."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(earlier), strict=True)
        return ReaderCounts(*(late - early for late, early in pairs))


@dataclass(frozen=True, slots=True)
class RunSample:
    """One answer: its prompt, its tokens, and the counts of reader and system meanwhile."""

    run: int
    kind: str
    complete: bool
    finish_reason: str | None
    first_token_ns: int
    """Time to the first token: reading the prompt and sampling one token."""
    prefill: TokenCost | None
    token_ids: tuple[int, ...]
    """All sampled ids, with the prompt's own first token."""
    tokens: tuple[TokenSample, ...]
    process: ProcessCounts
    reader: ReaderCounts
    latencies: Latencies
    """Of the reads."""
    rss_peak_bytes: int | None
    """The most that the process had taken when the run was over, looks at the machine included."""
    stolen_share: float | None
    """Share of all processors' time that was stolen during the run; None if unknown."""

    @property
    def decode_ns(self) -> int:
        """Wall time of all decoded tokens."""
        return sum(token.wall_ns for token in self.tokens)

    @property
    def costs(self) -> list[TokenCost]:
        """Of the decoded tokens; none without telemetry."""
        return [token.cost for token in self.tokens if token.cost is not None]

    def to_json(self) -> dict[str, Any]:
        """A line of `--jsonl`, and a part of `--json`; the tokens as their times only."""
        return {
            "type": "run",
            "run": self.run,
            "kind": self.kind,
            "complete": self.complete,
            "finish_reason": self.finish_reason,
            "first_token_ns": self.first_token_ns,
            "prefill": None if self.prefill is None else self.prefill.to_json(),
            "token_ids": list(self.token_ids),
            "token_ns": [token.wall_ns for token in self.tokens],
            "process": self.process.to_json(),
            "reader": dataclasses.asdict(self.reader),
            "latencies": self.latencies.to_json(),
            "rss_peak_bytes": self.rss_peak_bytes,
            "stolen_share": self.stolen_share,
        }


@dataclass(frozen=True, slots=True)
class ProbeSample:
    """Rates of the machine between two runs, at the read size and depth of the previous run."""

    run: int
    read_bytes: int
    depth: int
    """Mean reads under way in the previous run, rounded."""
    flash_bytes_per_second: float | None
    """Rate at that depth; None if nothing is read, or only through the page cache."""
    threads: int
    """All of the reader's."""
    flash_all_bytes_per_second: float | None
    """With all of them."""
    dram_threads: int
    dram_bytes_per_second: float

    def to_json(self) -> dict[str, Any]:
        """A line of `--jsonl`, and a part of `--json`."""
        return {"type": "probe", **dataclasses.asdict(self)}


Sample = TokenSample | RunSample | ProbeSample
