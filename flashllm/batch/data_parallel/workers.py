"""The driver's side: a schedule that hands rows out to workers and takes their answers.

Each worker has a block of rows, and a few more that wait. A worker that is lost gives its rows back
to the others. A row is done when its answer has come here, and only the worker that has it now
can bring one, so each has one answer.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import flashllm
from flashllm.batch.costs import BatchCosts
from flashllm.batch.data_parallel import cluster
from flashllm.batch.data_parallel.worker import Answered, Opened, Opening, RayWorker
from flashllm.batch.encoded_row import EncodedRow
from flashllm.batch.row_by_row import Finished
from flashllm.engine.process.messages import Failure
from flashllm.errors import EngineLost, FlashllmError, UsageError
from flashllm.units import format_count

POLL_SECONDS = 0.2
"""So often a batch that is stopped looks up."""
GROUP_ROWS = 4
"""Rows that are handed out together at the least, where there are so many."""
_CALLS_AT_ONCE = 4
"""Of one worker: answering, and being given rows meanwhile."""


@dataclass(slots=True)
class Worker:
    """What the driver knows of a worker."""

    number: int
    """From 1."""
    actor: Any
    opened: Opened
    answered: int = 0
    rows: dict[int, EncodedRow] = field(default_factory=dict)
    """Handed out and not answered yet, by their numbers."""
    session: Any = None
    """Its answers as they come; None while it has nothing to do."""
    session_number: int = 0
    given: int = 0
    """Rows in all."""
    is_ending: bool = False
    lost_why: str = ""
    """Empty while it is there."""

    @property
    def name(self) -> str:
        """For people."""
        return f"worker {self.number} ({self.opened.host}, process {self.opened.pid})"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "host": self.opened.host,
            "pid": self.opened.pid,
            "rows": self.answered,
            "ceiling_bytes": self.opened.plan.ceiling_bytes,
            "lost": self.lost_why or None,
        }


class RayWorkers:
    """Answers rows by workers of a Ray cluster, which `open_workers` opened."""

    def __init__(
        self,
        ray: Any,
        workers: list[Worker],
        is_stopped: Callable[[], bool],
        on_tokens: Callable[[int], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.costs = BatchCosts()
        self.workers = workers
        """Those that were opened, lost ones included."""
        self._ray = ray
        self._is_stopped = is_stopped
        self._on_tokens, self._on_lost = on_tokens, on_lost
        self._last_loss = ""
        self._returned: deque[EncodedRow] = deque()
        """Rows of workers that were lost."""

    def answers(self, rows: Iterable[EncodedRow]) -> Iterator[Finished]:
        """As `Schedule` has it; `EngineLost` once no worker is left and rows are."""
        coming = iter(rows)
        while not self._is_stopped():
            for worker in self._present():
                self._hand_out(worker, coming)
            going = {worker.session: worker for worker in self._present() if worker.session}
            if not going:
                if not self._present():
                    self._check_answered(coming)
                return
            ready, _ = self._ray.wait(list(going), num_returns=1, timeout=POLL_SECONDS)
            for session in ready:
                yield from self._take(going[session])

    def _present(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.lost_why]

    def _check_answered(self, coming: Iterator[EncodedRow]) -> None:
        """`EngineLost` if rows are left, which nobody can answer."""
        if self._returned or next(coming, None) is not None:
            count = format_count(len(self.workers))
            raise EngineLost(f"all workers are lost ({count}), the last one: {self._last_loss}")

    def _hand_out(self, worker: Worker, coming: Iterator[EncodedRow]) -> None:
        """Gives a worker rows if it has less than it can compute, and ends it if there are none."""
        block = worker.opened.plan.contexts
        if worker.is_ending or len(worker.rows) > block:
            return
        group = max(GROUP_ROWS, block // GROUP_ROWS) + max(block - len(worker.rows), 0)
        rows = list(itertools.islice(self._next_rows(coming), group))
        if rows:
            if worker.session is None:
                worker.session_number += 1
                answer = worker.actor.answer.options(num_returns="streaming")
                worker.session = answer.remote(worker.session_number)
            worker.rows |= {row.number: row for row in rows}
            worker.given += len(rows)
            worker.actor.give.remote(rows)
        elif worker.session is not None:
            worker.is_ending = True
            worker.actor.end.remote(worker.session_number, worker.given)

    def _next_rows(self, coming: Iterator[EncodedRow]) -> Iterator[EncodedRow]:
        while self._returned:
            yield self._returned.popleft()
        for row in coming:  # noqa: UP028  `yield from` would end `coming` with this
            yield row

    def _take(self, worker: Worker) -> Iterator[Finished]:
        """The next answer of a worker that has one, or what it has come to."""
        try:
            message: Answered | Failure = self._ray.get(next(worker.session))
        except StopIteration:
            assert not worker.rows, "a session ends behind its last row"
            worker.session, worker.is_ending = None, False
        except self._ray.exceptions.RayError as error:
            self._lose(worker, _first_line(error))
        else:
            if isinstance(message, Failure):
                self._lose(worker, str(message.error()))
                return
            finished = message.finished
            del worker.rows[finished.number]
            worker.answered += 1
            self.costs.merge(message.costs)
            self._on_tokens(message.costs.completion_tokens)
            yield finished

    def _lose(self, worker: Worker, why: str) -> None:
        """Takes a worker's rows back; what it might still answer comes to nobody."""
        worker.lost_why, worker.session = why, None
        self._last_loss = f"{worker.name}: {why}"
        self._ray.kill(worker.actor)
        rows = format_count(len(worker.rows))
        self._returned.extend(worker.rows.values())
        worker.rows = {}
        self._on_lost(f"{worker.name} is lost: {why}. Its rows, {rows}, go to others")


def open_workers(
    ray: Any,
    count: int | None,
    opening: Opening,
    is_stopped: Callable[[], bool],
) -> list[Worker]:
    """Starts workers, spread over the machines; without a count, one on each.

    Raises what keeps any of them from opening its model, with the machine: `ModelNotFound`,
    `UsageError` for a model that differs, `MemoryCeilingTooSmall`, `EngineLost`. Returns none if it
    was stopped meanwhile.
    """
    nodes = cluster.node_ids(ray)
    count = count or len(nodes)
    placed = [nodes[number % len(nodes)] for number in range(count)]
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    actor = ray.remote(RayWorker)
    actors = [
        actor.options(
            num_cpus=0,  # a worker takes the processors that there are, not a place in a queue
            max_concurrency=_CALLS_AT_ONCE,
            scheduling_strategy=strategy(node, soft=False),
        ).remote(opening, placed.count(node))
        for node in placed
    ]
    openings = [each.open.remote() for each in actors]
    left = list(openings)
    while left:
        if is_stopped():
            return []
        _, left = ray.wait(left, num_returns=len(left), timeout=POLL_SECONDS)
    workers = []
    for number, (each, ref) in enumerate(zip(actors, openings, strict=True), 1):
        where = f"worker {number} of {count}"
        try:
            message: Opened | Failure = ray.get(ref)
        except ray.exceptions.RayError as error:
            raise EngineLost(
                f"{where} ended while it opened the model ({_first_line(error)}); with less"
                " --memory or fewer --workers there is more room"
            ) from error
        workers.append(Worker(number, each, checked(message, where)))
    return workers


def checked(message: Opened | Failure, where: str) -> Opened:
    """What a worker said of itself; raises what is wrong with it, with where it is."""
    if isinstance(message, Failure):
        error = Failure(message.kind, f"{where}: {message.text}", message.attributes).error()
        raise error if isinstance(error, FlashllmError) else EngineLost(f"{where}: {error}")
    if message.version != flashllm.__version__:
        raise UsageError(
            f"{where}: {message.host} has flashllm {message.version}, and here is"
            f" {flashllm.__version__}; install the same version on all machines"
        )
    return message


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    known = [line for line in lines if line.startswith("The actor is dead")]
    return (known or lines or [type(error).__name__])[0].partition(" Some common causes")[0][:300]
