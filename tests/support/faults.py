"""Kinds of faults, what may come of them, and the loop in which the Nth operation fails.

SQLite's way of testing: an operation fails, for N = 1, 2, 3 ... until a run completes in which none
failed; once, and for ever. Each run gives the right result or an error of ours, the engine works
afterwards, and nothing is left behind. `make faults` takes every N, `make test` some.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flashllm.errors import FlashllmError, ModelTruncated, ReadFailed

if TYPE_CHECKING:  # what writes does without torch
    from flashllm.engine.local import Model

EVERY = os.environ.get("FAULTS") == "all"
"""Whether each operation is to fail in turn, as `make faults` has it."""

# What happens instead of an error: the same numbers in `tests/faults/shim/shim.c`.
SHORT, ZERO, DELAY, KILL, FLIP, REFUSE_DIRECT = -1, -2, -3, -4, -5, -6

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]
TOKENS = 8
SECONDS = 5
"""After which what is still there was left behind."""


@dataclass(frozen=True)
class ReadFault:
    """A way in which a read fails, and the error that it may lead to; None: right tokens."""

    code: int
    once: type[FlashllmError] | None
    for_ever: type[FlashllmError] | None
    reopens: bool = False
    """Whether it changes an open model, so that each run needs a new one."""


# A flipped bit (FLIP) belongs here with the checksums that find it.
READ_FAULTS = {
    "EIO": ReadFault(errno.EIO, None, ReadFailed),
    "EINTR": ReadFault(errno.EINTR, None, ReadFailed),
    "EAGAIN": ReadFault(errno.EAGAIN, None, ReadFailed),
    "ENOMEM": ReadFault(errno.ENOMEM, None, ReadFailed),
    "EMFILE": ReadFault(errno.EMFILE, None, ReadFailed),
    "ENODEV": ReadFault(errno.ENODEV, ReadFailed, ReadFailed),
    "EINVAL": ReadFault(REFUSE_DIRECT, None, None, reopens=True),
    "short": ReadFault(SHORT, None, None),
    "zero": ReadFault(ZERO, ModelTruncated, ModelTruncated),
    "delay": ReadFault(DELAY, None, None),
}


@dataclass(frozen=True)
class Failure:
    """An error, without the frames that it went through: these keep files and threads."""

    kind: type[FlashllmError]
    words: str

    @classmethod
    def of(cls, error: FlashllmError) -> Failure:
        """What is kept of an error."""
        return cls(type(error), str(error))


class Injector(Protocol):
    """Makes operations fail."""

    def arm(self, code: int, nth: int, *, for_ever: bool) -> None:
        """From the Nth operation that follows, one or all fail."""

    def disarm(self) -> int:
        """None fails any more; how many did."""


@dataclass
class Tally:
    """What came of the runs of a loop."""

    runs: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    def count(self, failure: Failure | None) -> None:
        """One more run."""
        self.runs += 1
        if failure is not None:
            name = failure.kind.__name__
            self.errors[name] = self.errors.get(name, 0) + 1


def handles() -> tuple[int, int]:
    """Open descriptors and living threads of this process, those of native code included."""
    if not Path("/proc/self/task").exists():
        return len(os.listdir("/dev/fd")), threading.active_count()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def check_handles(before: tuple[int, int], where: object = "") -> None:
    """No more of them than before; a thread that was joined may take a moment to be gone.

    So fewer are no error: of those that were counted before, some may have been about to go.
    """
    deadline = time.monotonic() + SECONDS
    while _is_more(now := handles(), before) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not _is_more(now, before), f"{now} descriptors and threads, {before} before {where}"


def _is_more(now: tuple[int, int], before: tuple[int, int]) -> bool:
    return now[0] > before[0] or now[1] > before[1]


def answer(model: Model) -> list[int]:
    """The tokens that the model gives with nothing in DRAM and nothing in its context."""
    model.forget()
    return [token.id for token in model.generate(PROMPT, max_tokens=TOKENS)]


def check_slots(model: Model) -> None:
    """Nothing is lent, nothing is on its way, and each slot is free or holds a bundle."""
    model.forget()
    pool = model.decoder.pool
    assert not pool.prefetches or not pool._prefetches  # type: ignore[attr-defined]
    assert not getattr(pool, "_is_lent", False)
    for layer, n_slots in enumerate(model.plan.slots_per_layer):
        cache = pool.layer(layer)
        assert cache.table.free_slots + len(cache.resident()) == n_slots


def fail_reads(
    open_model: Callable[[], Model],
    injector: Injector,
    kind: str,
    *,
    for_ever: bool,
    stride: int = 1,
) -> Tally:
    """Makes the Nth read of an answer fail, N from 1 in steps of `stride`, until none does."""
    fault, tally = READ_FAULTS[kind], Tally()
    allowed = fault.for_ever if for_ever else fault.once
    model = open_model()
    try:
        expected, fired, nth = answer(model), 1, 1
        while fired:
            if fault.reopens:
                model.close()
                model = open_model()
                assert answer(model) == expected
            check_slots(model)
            before, failure, found = handles(), None, []
            injector.arm(fault.code, nth, for_ever=for_ever)
            try:
                found = answer(model)
            except FlashllmError as problem:
                failure = Failure.of(problem)
            finally:
                fired = injector.disarm()
            where = f"{kind}, read {nth}, {'for ever' if for_ever else 'once'}: {failure}"
            _check_outcome(fired, failure, found == expected, allowed, where)
            assert answer(model) == expected, where
            check_slots(model)
            check_handles(before, where)
            tally.count(failure)
            nth += stride
    finally:
        model.close()
    return tally


def _check_outcome(
    fired: int,
    failure: Failure | None,
    is_right: bool,
    allowed: type[FlashllmError] | None,
    where: str,
) -> None:
    """A right answer, or the error that this fault may lead to, with its place."""
    if failure is None:
        # A read that nobody needed, ahead of its time, may fail unnoticed.
        assert is_right, where
    else:
        assert fired, where
        assert allowed is not None, where
        assert failure.kind is allowed, where
        assert "ffn.bundles, layer " in failure.words, where
