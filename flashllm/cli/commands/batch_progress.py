"""The line on standard error while a batch is answered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flashllm.cli.shared.output import PacedLine
from flashllm.units import format_count, format_duration, format_number

if TYPE_CHECKING:
    from flashllm.batch.answer_order import AnswerOrder


class BatchProgress:
    """Rows done, tokens a second and the time left, on standard error."""

    def __init__(self, order: AnswerOrder) -> None:
        self._order = order
        self._line = PacedLine()
        self._begun_rows, self._begun_seconds = order.n_done, time.monotonic()
        self._tokens = 0

    def begin(self) -> None:
        """The model is open."""
        self._begun_seconds = time.monotonic()

    def token(self, count: int = 1) -> None:
        """One more token, or so many."""
        self._tokens += count
        self._line.show(self._format)

    def row(self) -> None:
        """One more row."""
        self._line.show(self._format)

    def clear(self) -> None:
        """The batch is over."""
        self._line.clear()

    def _format(self) -> str:
        order = self._order
        seconds = time.monotonic() - self._begun_seconds
        text = f"{format_count(order.n_done)} of {format_count(order.n_rows)} rows"
        if order.n_failures:
            text += f" ({format_count(order.n_failures)} with errors)"
        text += f", {format_number(self._tokens / max(seconds, 1e-9))} tokens a second"
        done = order.n_done - self._begun_rows
        left = seconds / done * (order.n_rows - order.n_done) if done else None
        return text if left is None else f"{text}, {format_duration(left)} left"
