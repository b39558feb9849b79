"""Runs targets by hypothesis until their time is over or their inputs are done."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase

from .target import Target

EXAMPLES_AT_ONCE = 200
CHECK_SECONDS_MAX = 10.0


class TooSlow(Exception):
    """An input takes longer than any file may cost."""


@dataclass(frozen=True)
class Executed:
    """What was done for one target."""

    executions: int
    seconds: float


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises `TooSlow` in what goes on for longer; for the main thread."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(
    target: Target, seconds: float, seed: int, last_input: Path | None = None, runs: int = -1
) -> Executed:
    """Checks inputs for `seconds` or `runs` of them, -1 for no end; whichever ends first.

    The first that fails is made small and raised.

    `last_input` gets each input before it is checked: what a library's crash leaves behind.
    """
    begun = time.monotonic()
    executions = 0

    def is_over() -> bool:
        return executions == runs or time.monotonic() - begun >= seconds

    def check(value: Any) -> None:
        nonlocal executions
        if failed or not is_over():
            executions += 1
            if last_input is not None:
                last_input.write_bytes(value if isinstance(value, bytes) else repr(value).encode())
            try:
                with time_limit(CHECK_SECONDS_MAX):
                    target.check(value)
            except BaseException:
                failed.append(value)
                raise

    failed: list[Any] = []  # then it is made small, however long that takes
    block = 0
    while not is_over():
        run = hypothesis.settings(
            max_examples=EXAMPLES_AT_ONCE,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )(hypothesis.seed(seed + block)(hypothesis.given(target.inputs)(check)))
        run()
        block += 1
    return Executed(executions, time.monotonic() - begun)
