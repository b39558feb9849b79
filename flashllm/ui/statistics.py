"""Numbers of the status line: sums over an answer's tokens, and how they read on a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashllm.io_words import memory_words

if TYPE_CHECKING:
    from flashllm.engine_protocol import EngineToken

SEPARATOR = " | "


@dataclass(slots=True)
class AnswerStatistics:
    """Sums over the tokens of one answer; the first one's cost, the prompt's, is left out."""

    tokens: int = 0
    decoded: int = 0
    """Steps that time and bytes are of."""
    wall_ns: int = 0
    bytes_read: int = 0
    hits: int = 0
    misses: int = 0
    rss_bytes: int = 0

    def add(self, token: EngineToken) -> None:
        """Counts one more token."""
        self.tokens += 1
        self.rss_bytes = token.cost.rss_bytes
        if self.tokens == 1:
            return
        self.decoded += 1
        self.wall_ns += token.cost.wall_ns
        self.bytes_read += token.cost.bytes_read
        self.hits += token.cost.hits
        self.misses += token.cost.misses

    def end(self, decode: Mapping[str, Any]) -> None:
        """The sums of the answer's report: the mark that ended it took a step, and is no token."""
        self.decoded, self.wall_ns = decode["tokens"], decode["wall_ns"]
        self.bytes_read = decode["bytes_read"]
        self.hits, self.misses = decode["hits"], decode["misses"]

    def parts(self, ceiling_bytes: int) -> list[str]:
        """Parts of the line, the most wanted first."""
        parts = [f"{self.tokens} tok"]
        if self.decoded and self.wall_ns:
            parts.append(f"{self.decoded * 1e9 / self.wall_ns:.1f} tok/s")
            parts.append(f"{self.bytes_read / self.decoded / 1e6:.2f} MB/tok")
        if self.hits + self.misses:
            parts.append(f"hit {100 * self.hits / (self.hits + self.misses):.0f} %")
        if self.rss_bytes:
            parts.append(f"RSS {memory_words(self.rss_bytes, ceiling_bytes)}")
        return parts


def prefill_text(done: float, total: int, elapsed_seconds: float) -> str:
    """`reading the prompt: 120 of 400 tokens, 3 s left`."""
    if not total:
        return "reading the prompt"
    text = f"reading the prompt: {int(done)} of {total} tokens"
    if 0 < done < total and elapsed_seconds >= 1:
        text += f", {elapsed_seconds * (total - done) / done:.0f} s left"
    return text


def join_parts(parts: list[str], width: int) -> str:
    """As many parts as fit into `width` columns, the first ones first."""
    line = ""
    for part in parts:
        longer = f"{line}{SEPARATOR}{part}" if line else part
        if len(longer) > width:
            break
        line = longer
    return line or (parts[0][:width] if parts else "")
