"""The status line: what the engine does, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from flashllm.engine.protocol import EngineWait
from flashllm.tokenizer.reasoning import ReasoningCounter
from flashllm.ui.widgets.single_layout import SingleLayout
from flashllm.units import format_bytes, format_memory
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.engine.protocol import OpeningProgress
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.token_record import EngineToken


SEPARATOR = " | "


@dataclass(slots=True)
class AnswerStatistics:
    """Sums over the tokens of one answer; the first one's cost, the prompt's, is left out."""

    counter: ReasoningCounter = field(default_factory=ReasoningCounter)
    decoded: int = 0
    """Steps that time and bytes are of."""
    wall_ns: int = 0
    bytes_read: int = 0
    hits: int = 0
    misses: int = 0
    rss_bytes: int = 0

    @property
    def tokens(self) -> int:
        """Tokens so far, those of reasoning among them."""
        return self.counter.tokens

    def go_on(self, begun: str) -> None:
        """An answer that has begun with this text goes on."""
        self.counter = ReasoningCounter(begun)

    def add(self, token: EngineToken) -> None:
        """Counts one more token."""
        self.counter.add(token.text)
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
        thought = self.counter.reasoning_tokens
        parts = [f"{self.tokens} tok, {thought} thought" if thought else f"{self.tokens} tok"]
        if self.decoded and self.wall_ns:
            parts.append(f"{self.decoded * 1e9 / self.wall_ns:.1f} tok/s")
            parts.append(f"{self.bytes_read / self.decoded / 1e6:.2f} MB/tok")
        if self.hits + self.misses:
            parts.append(f"hit {100 * self.hits / (self.hits + self.misses):.0f} %")
        if self.rss_bytes:
            parts.append(f"RSS {format_memory(self.rss_bytes, ceiling_bytes)}")
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


def format_released(nbytes: int) -> str:
    """What is said where the engine gave memory back, or took it again."""
    if not nbytes:
        return "the model has all of its memory again"
    return (
        f"{format_bytes(nbytes)} of weights left memory, to stay below the ceiling; answers are"
        " the same"
    )


def wait_text(wait: EngineWait) -> str:
    """`waiting for disk 4.2 s`; empty for waits that are usual."""
    if wait.silent_seconds >= UNUSUAL_SILENCE_SECONDS:
        return f"the engine does not answer: {wait.silent_seconds:.0f} s"
    if wait.disk_seconds >= UNUSUAL_WAIT_SECONDS:
        return f"waiting for disk {wait.disk_seconds:.1f} s"
    return ""


HINT_SECONDS = 3.0
UNUSUAL_WAIT_SECONDS = 1.0
"""A read takes some milliseconds; one that takes this long is told of."""
UNUSUAL_SILENCE_SECONDS = 3.0
NO_WAIT = EngineWait()
OPENING_HINT = "the model is being opened"
CLOSED_HINT = "there is no model; Ctrl+R tries again"
BUSY_HINT = "an answer is on its way; Esc stops it"


class Phase(Enum):
    """What the engine is doing."""

    OPENING = auto()
    CLOSED = auto()
    READY = auto()
    READING = auto()
    WRITING = auto()


_STATES = {
    Phase.CLOSED: "failed",
    Phase.READY: "ready",
    Phase.READING: "reading a prompt",
    Phase.WRITING: "answering",
}


@dataclass(slots=True)
class Activity:
    """The phase, and the numbers that go with it."""

    opening_name: str
    """The model that is being opened, or was opened last."""
    phase: Phase = Phase.OPENING
    title: str = ""
    """The model that is open, in words; empty where none is."""
    plan: Plan | None = None
    """Of the model that is open, or was last."""
    identity: object = None
    """Whatever of that model decides its answers, to be compared."""
    statistics: AnswerStatistics = field(default_factory=AnswerStatistics)
    conversion: str = ""
    """What is being converted beside the chat, and how far it is."""
    measuring: str = ""
    """What is measured of the machine beside the chat, and how far it is."""
    warmed_percent: int | None = None
    """How much an idle engine has read ahead; None where it does not."""
    wait: EngineWait = NO_WAIT
    """What the engine waits for, where its answer does not go on."""
    _prefill: tuple[float, int] = (0, 0)
    _opening: str = ""
    _opening_share: int | None = None
    _since: float = field(default_factory=time.monotonic)
    _progress_at: float = field(default_factory=time.monotonic)
    _hint: str = ""
    _hint_until: float = 0.0

    @property
    def is_answering(self) -> bool:
        """Whether there is an answer that could be stopped."""
        return self.phase in (Phase.READING, Phase.WRITING)

    @property
    def reason_not_ready(self) -> str:
        """Why nothing can be asked now; empty if it can."""
        if self.phase is Phase.READY:
            return ""
        if self.phase is Phase.OPENING:
            return OPENING_HINT
        return BUSY_HINT if self.is_answering else CLOSED_HINT

    @property
    def state(self) -> str:
        """What the engine does, in a few words."""
        if self.phase is Phase.OPENING:
            share = f" {self._opening_share} %" if self._opening_share is not None else ""
            return f"opening {self.opening_name}{share}"
        if self.phase is Phase.READY and self.warmed_percent is not None:
            return f"ready, reading ahead {self.warmed_percent} %"
        return _STATES[self.phase]

    def enter(self, phase: Phase) -> None:
        """A phase begins."""
        self.phase = phase
        self.warmed_percent = None
        self._since = time.monotonic()
        self.go_on()
        self._hint = self._opening = ""
        self._opening_share = None
        if phase is Phase.READING:
            self.forget()

    @property
    def is_held_up(self) -> bool:
        """Whether there is an answer that has not gone on for a while."""
        quiet_seconds = time.monotonic() - self._progress_at
        return self.is_answering and quiet_seconds >= UNUSUAL_WAIT_SECONDS

    def go_on(self) -> None:
        """The answer goes on: nothing holds it up."""
        self._progress_at, self.wait = time.monotonic(), NO_WAIT

    def opening(self, progress: OpeningProgress) -> None:
        """Opening is so far; the demo is converted at its first use."""
        self._opening, self._opening_share = progress.phase, None
        if progress.total:
            self._opening_share = min(100 * progress.done // progress.total, 100)
            self._opening += f" {self._opening_share} %"

    def forget(self) -> None:
        """The numbers of the last answer are no longer of interest."""
        self.statistics, self._prefill = AnswerStatistics(), (0, 0)

    def prefill(self, done: float, total: int) -> None:
        """So many tokens of those of the prompt that have to be read are read."""
        self._prefill = (done, total)
        self.go_on()

    def count(self, tokens: list[EngineToken]) -> None:
        """Tokens have come."""
        for token in tokens:
            self.statistics.add(token)
        self.go_on()

    def hint(self, text: str) -> None:
        """Shows a remark for a while, in front of the rest."""
        self._hint, self._hint_until = text, time.monotonic() + HINT_SECONDS

    def parts(self) -> tuple[str, ...]:
        """Parts of the status line, the most wanted first."""
        parts = [self._hint] if self._hint and time.monotonic() < self._hint_until else []
        elapsed_seconds = time.monotonic() - self._since
        if self.is_answering and (waits := wait_text(self.wait)):
            parts.append(waits)
        if self.phase is Phase.OPENING:
            parts.append(f"opening {self.opening_name}: {elapsed_seconds:.0f} s")
            if self._opening:
                parts.append(self._opening)
        elif self.phase is Phase.READING:
            parts.append(prefill_text(*self._prefill, elapsed_seconds))
        elif self.statistics.tokens and self.plan is not None:
            parts += self.statistics.parts(self.plan.ceiling_bytes)
        elif self.phase is Phase.READY:
            parts.append("ready")
        if self.conversion:
            parts.append(self.conversion)
        if self.measuring:
            parts.append(self.measuring)
        return tuple(parts)


class StatusLine(SingleLayout, Widget):
    """One line of parts, the most wanted first; what does not fit is left out."""

    parts: reactive[tuple[str, ...]] = reactive(())

    def render(self) -> Content:
        """The parts that fit."""
        return Content(join_parts([sanitize_line(part) for part in self.parts], self.size.width))
