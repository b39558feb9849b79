"""A batch from its rows to its answers, whatever the schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from flashllm.batch.answer_lines import AnswerForm
from flashllm.batch.costs import BatchCosts
from flashllm.batch.encoded_row import EncodedRow, encode_row, failure_of
from flashllm.batch.input_rows import InputRows
from flashllm.batch.output import BatchOutput
from flashllm.batch.row import RowDefaults, RowFailure
from flashllm.batch.row_by_row import Finished, Schedule
from flashllm.batch.row_order import by_prefix
from flashllm.errors import FlashllmError
from flashllm.system.memory import rss_peak_bytes
from flashllm.telemetry.costs import ratio

if TYPE_CHECKING:
    from flashllm.engine.protocol import PromptModel
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.device_rates import DeviceRates


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """How a batch went; costs are those of this run, rows those of all of them."""

    model: str
    rows: int
    answered: int
    errors: int
    resumed: int
    """Rows that were done before this run."""
    seconds: float
    costs: BatchCosts

    @property
    def is_complete(self) -> bool:
        """Whether each row has an answer or an error."""
        return self.answered + self.errors == self.rows

    @property
    def tokens_per_second(self) -> float:
        """Tokens of answers by the time of all, prompts included."""
        return ratio(self.costs.completion_tokens, self.seconds)

    def to_json(
        self,
        rates: DeviceRates | None,
        plan: Plan,
        workers: list[dict[str, Any]] | None = None,
        policy: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Plain values, as `flashllm batch --json` prints them.

        Rates and plan are those of one worker where there are several; without rates there is no
        bound.
        """
        costs = self.costs
        bound = None
        if rates is not None and costs.decode["tokens"]:
            bound = rates.bound(plan, costs.traffic)
        return {
            "model": self.model,
            "complete": self.is_complete,
            "rows": self.rows,
            "answered": self.answered,
            "errors": self.errors,
            "resumed": self.resumed,
            "seconds": round(self.seconds, 3),
            "prompt_tokens": costs.prefill["tokens"],
            "completion_tokens": costs.completion_tokens,
            "tokens_per_second": self.tokens_per_second,
            "bytes_per_token": costs.bytes_per_token,
            "kv_tokens_peak": costs.kv_tokens_peak or None,
            "prefill": costs.prefill,
            "decode": costs.decode,
            "bound": None if bound is None else bound.to_json(),
            "ceiling_bytes": plan.ceiling_bytes,
            "rss_peak_bytes": rss_peak_bytes(),
            "workers": workers,
            "policy": policy,
            "device": None if plan.device is None else asdict(plan.device),
        }


class BatchRun:
    """Answers the rows that have no answer yet."""

    def __init__(
        self,
        engine: PromptModel,
        rows: InputRows,
        defaults: RowDefaults,
        output: BatchOutput,
        is_stopped: Callable[[], bool],
        on_row: Callable[[], None],
    ) -> None:
        """`on_row` is called after each row that is done."""
        self._engine = engine
        self._rows, self._defaults = rows, defaults
        self._output = output
        self._is_stopped, self._on_row = is_stopped, on_row
        self._form = AnswerForm(rows.form, engine.info.name, output.created)

    def answer(self, schedule: Schedule) -> BatchSummary:
        """Answers them by a schedule, until all are done or the batch is stopped.

        What it has passed on stays whatever it raises. Errors: those of the engine that end the
        batch, and of reading rows and writing answers.
        """
        order, begun = self._output.order, time.monotonic()
        resumed = order.n_done
        self._output.begin()
        for finished in schedule.answers(by_prefix(self._encoded())):
            self._write(finished)
        if order.is_complete:
            self._output.finish()
        return BatchSummary(
            model=self._engine.info.name,
            rows=order.n_rows,
            answered=order.n_done - order.n_failures,
            errors=order.n_failures,
            resumed=resumed,
            seconds=time.monotonic() - begun,
            costs=schedule.costs,
        )

    def _encoded(self) -> Iterator[EncodedRow]:
        """The rows to be answered; those that cannot be are done here."""
        for number in range(len(self._rows)):
            if self._is_stopped():
                return
            if self._output.order.is_done(number):
                continue
            row = self._rows.row(number)
            if isinstance(row, RowFailure):
                self._write(Finished(number, row))
                continue
            try:
                prompt = encode_row(self._engine, row, self._defaults)
            except FlashllmError as error:
                self._write(Finished(number, failure_of(row, error)))
            else:
                yield EncodedRow(number, row, prompt)

    def _write(self, finished: Finished) -> None:
        line = self._form.line(finished.result)
        is_failure = isinstance(finished.result, RowFailure)
        self._output.order.write(finished.number, line, is_failure=is_failure)
        self._on_row()
