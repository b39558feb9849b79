"""A worker's side: opens the model that its machine has, and answers the rows that come.

Runs in a process that Ray starts. What comes back are plain values: an error travels as a
`Failure`, never as an exception of Ray's.
"""

from __future__ import annotations

import importlib
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import flashllm
from flashllm.batch.admission import DEFAULT_SCHEDULE, admission_of
from flashllm.batch.admission import Schedule as Admitting
from flashllm.batch.block import RowsInBlock, waits_for_places
from flashllm.batch.costs import BatchCosts
from flashllm.batch.encoded_row import EncodedRow
from flashllm.batch.row_by_row import Finished, RowByRow, Schedule
from flashllm.engine.process.messages import Failure
from flashllm.options import DEFAULT_MAX_TOKENS, ModelOptions
from flashllm.planning.model_facts import usual_ceiling
from flashllm.system.memory import rss_bytes
from flashllm.system.processors import THREADS_VARIABLE, usable_processors

if TYPE_CHECKING:
    from flashllm.engine.local import Model
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.device_rates import DeviceRates


@dataclass(frozen=True, slots=True)
class Opening:
    """What each worker opens."""

    opener: str
    """The module:function that opens the model: called with path, options and hash."""
    path: str | None
    """A path or a name, looked up on the worker's machine; None is the demo."""
    model_hash: str
    """Of the manifest; a model of another one is refused."""
    options: ModelOptions
    block: int
    """Rows at once."""
    schedule: Admitting = DEFAULT_SCHEDULE
    """When rows come into the block."""
    answer_tokens: int = DEFAULT_MAX_TOKENS
    """That an answer takes, as far as the schedule asks."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A worker is ready."""

    host: str
    pid: int
    version: str
    """Of flashllm."""
    plan: Plan
    rates: DeviceRates
    cautions: list[str]


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a row, and what that cost."""

    finished: Finished
    costs: BatchCosts


class RayWorker:
    """The actor. `answer` runs while `give` and `end` are called."""

    def __init__(self, opening: Opening, sharing: int) -> None:
        """So many workers share this machine: each takes its part of processors and memory."""
        self._opening = opening
        self._sharing = sharing
        # Ray gives a process one thread.
        threads = (usable_processors() or os.cpu_count() or 1) // sharing
        os.environ[THREADS_VARIABLE] = str(max(threads, 1))
        self._model: Model | None = None
        self._schedule: Schedule | None = None
        self._rows = _ComingRows()

    def open(self) -> Opened | Failure:
        """Opens the model; the failure says what this machine lacks."""
        opening = self._opening
        options = opening.options.having(contexts=opening.block)
        if options.memory is None and self._sharing > 1:
            own = rss_bytes()
            options = options.having(memory=own + (usual_ceiling(own) - own) // self._sharing)
        module, _, name = opening.opener.partition(":")
        try:
            opener = getattr(importlib.import_module(module), name)
            self._model = model = opener(opening.path, options, opening.model_hash)
            self._schedule = RowByRow(model, _never, _nothing)
            if opening.block > 1:
                waits, steps = waits_for_places(model), opening.answer_tokens
                admission = admission_of(opening.schedule, opening.block, steps, waits=waits)
                self._schedule = RowsInBlock(model, _never, _nothing, admission)
            return Opened(
                socket.gethostname(),
                os.getpid(),
                flashllm.__version__,
                model.plan,
                model.rates(),
                model.cautions(),
            )
        except Exception as error:  # noqa: BLE001  told by the driver
            return Failure.of(error)

    def answer(self, session: int) -> Iterator[Answered | Failure]:
        """Answers what is given, until `end` names the session; a failure is the last."""
        schedule = self._schedule
        assert schedule is not None
        try:
            for finished in schedule.answers(self._rows.of(session)):
                costs, schedule.costs = schedule.costs, BatchCosts()
                yield Answered(finished, costs)
        except Exception as error:  # noqa: BLE001  told by the driver
            yield Failure.of(error)

    def give(self, rows: Sequence[EncodedRow]) -> None:
        """More rows to be answered."""
        self._rows.give(rows)

    def end(self, session: int, given: int) -> None:
        """No more than `given` rows in all are for this session and those before it."""
        self._rows.end(session, given)


def _never() -> bool:
    """A worker is not stopped: it is ended."""
    return False


def _nothing() -> None:
    """Tokens are told with their row."""


class _ComingRows:
    """Rows from the thread that gets them to the one that answers them.

    Calls may arrive in any order, so an end is a number of rows.
    """

    def __init__(self) -> None:
        self._waiting: list[EncodedRow] = []
        self._taken = 0
        self._ends: dict[int, int] = {}
        self._changed = threading.Condition()

    def give(self, rows: Sequence[EncodedRow]) -> None:
        with self._changed:
            self._waiting += rows
            self._changed.notify()

    def end(self, session: int, given: int) -> None:
        with self._changed:
            self._ends[session] = given
            self._changed.notify()

    def of(self, session: int) -> Iterator[EncodedRow]:
        """The rows of a session, each as soon as it is there."""
        while True:
            with self._changed:
                while not self._waiting and self._ends.get(session) != self._taken:
                    self._changed.wait()
                if not self._waiting:
                    return
                self._taken += 1
                row = self._waiting.pop(0)
            yield row
