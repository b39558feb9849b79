"""What the application is doing, in the words of the status line."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from flashllm.ui.statistics import AnswerStatistics, prefill_text

if TYPE_CHECKING:
    from flashllm.engine_protocol import EngineToken, OpeningProgress
    from flashllm.flash.plan import Plan

HINT_SECONDS = 3.0
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


@dataclass(slots=True)
class Activity:
    """The phase, and the numbers that go with it."""

    model_name: str
    phase: Phase = Phase.OPENING
    plan: Plan | None = None
    send_when_open: bool = False
    """A message waits in the prompt until the model is open."""
    statistics: AnswerStatistics = field(default_factory=AnswerStatistics)
    conversion: str = ""
    """What is being converted beside the chat, and how far it is."""
    _prefill: tuple[float, int] = (0, 0)
    _opening: str = ""
    _since: float = field(default_factory=time.monotonic)
    _hint: str = ""
    _hint_until: float = 0.0

    @property
    def is_answering(self) -> bool:
        """Whether there is an answer that could be stopped."""
        return self.phase in (Phase.READING, Phase.WRITING)

    def enter(self, phase: Phase) -> None:
        """A phase begins."""
        self.phase = phase
        self._since = time.monotonic()
        self._hint = self._opening = ""
        if phase is Phase.READING:
            self.forget()

    def opening(self, progress: OpeningProgress) -> None:
        """Opening is so far; the demo is converted at its first use."""
        self._opening = progress.phase
        if progress.total:
            self._opening += f" {min(100 * progress.done // progress.total, 100)} %"

    def forget(self) -> None:
        """The numbers of the last answer are no longer of interest."""
        self.statistics, self._prefill = AnswerStatistics(), (0, 0)

    def prefill(self, done: float, total: int) -> None:
        """So many tokens of those of the prompt that have to be read are read."""
        self._prefill = (done, total)

    def count(self, tokens: list[EngineToken]) -> None:
        """Tokens have come."""
        for token in tokens:
            self.statistics.add(token)

    def hint(self, text: str) -> None:
        """Shows a remark for a while, in front of the rest."""
        self._hint, self._hint_until = text, time.monotonic() + HINT_SECONDS

    def parts(self) -> tuple[str, ...]:
        """Parts of the status line, the most wanted first."""
        parts = [self._hint] if self._hint and time.monotonic() < self._hint_until else []
        elapsed_seconds = time.monotonic() - self._since
        if self.phase is Phase.OPENING:
            parts.append(f"opening {self.model_name}: {elapsed_seconds:.0f} s")
            if self._opening:
                parts.append(self._opening)
            if self.send_when_open:
                parts.append("then sends (Esc: no)")
        elif self.phase is Phase.READING:
            parts.append(prefill_text(*self._prefill, elapsed_seconds))
        elif self.statistics.tokens and self.plan is not None:
            parts += self.statistics.parts(self.plan.ceiling_bytes)
        elif self.phase is Phase.READY:
            parts.append("ready")
        if self.conversion:
            parts.append(self.conversion)
        return tuple(parts)
