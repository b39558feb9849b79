"""The Nth read, or opening, of a model's files fails, in a process under the shim.

    python -m tests.faults.read_loops MODEL KIND...

A JSON line for each loop.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from flashllm.engine.local import Model, open_model
from flashllm.errors import FlashllmError
from tests.support.fault_shim import ShimInjector, say
from tests.support.faults import (
    EVERY,
    SHORT,
    ZERO,
    Failure,
    Tally,
    answer,
    check_handles,
    fail_reads,
    handles,
)


def read_loops(directory: Path, kinds: list[str]) -> None:
    """The Nth read of the bundles fails, by the native reader."""
    injector = ShimInjector("read", "ffn.bundles")

    def opened() -> Model:
        return open_model(directory, window=1, io_threads=4)

    for kind in kinds:
        for for_ever in (False, True):
            tally = fail_reads(opened, injector, kind, for_ever=for_ever, stride=1 if EVERY else 23)
            say(loop="reads", kind=kind, for_ever=for_ever, runs=tally.runs, errors=tally.errors)


OPENING = {"EIO": errno.EIO, "EMFILE": errno.EMFILE, "ENOMEM": errno.ENOMEM, "EACCES": errno.EACCES}
OPENING_READS = OPENING | {"zero": ZERO, "short": SHORT}


def opening_loops(directory: Path) -> None:
    """The Nth call fails of those that open or read any of the model's files."""
    with open_model(directory) as model:
        expected = answer(model)
    for calls, kinds in (("open", OPENING), ("read", OPENING_READS)):
        for kind, code in kinds.items():
            if not EVERY and kind not in ("EIO", "zero"):
                continue
            for for_ever in (False, True):
                tally = fail_opening(directory, calls, code, expected, for_ever=for_ever)
                say(
                    loop="opening", calls=calls, kind=kind, for_ever=for_ever,
                    runs=tally.runs, errors=tally.errors,
                )  # fmt: skip


def fail_opening(
    directory: Path, calls: str, code: int, expected: list[int], *, for_ever: bool
) -> Tally:
    """Opens again and again: a model that answers right, or an error of ours that names a file."""
    injector, tally, nth, fired = ShimInjector(calls, str(directory)), Tally(), 1, 1
    before = handles()
    while fired:
        failure = None
        injector.arm(code, nth, for_ever=for_ever)
        try:
            model = open_model(directory)
        except FlashllmError as problem:
            failure = Failure.of(problem)
        finally:
            fired = injector.disarm()
        assert failure is None or str(directory) in failure.words, failure
        if failure is None:
            with model:
                assert answer(model) == expected, (calls, code, nth)
        check_handles(before, (calls, code, nth, failure))
        tally.count(failure)
        nth += 1 if EVERY else 4
    return tally


if __name__ == "__main__":
    opening_loops(Path(sys.argv[1]))
    read_loops(Path(sys.argv[1]), sys.argv[2:])
