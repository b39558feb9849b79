"""A quick profile: random direct reads of a few sizes for some seconds, giving way to answers.

Unlike a sweep it drops no pages of the file, which others may use: direct reads come from the
device all the same, as the kernel's count of bytes proves for each measurement.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from flashllm import core
from flashllm.bench.disk import probe
from flashllm.bench.disk.fit import reason_to_doubt
from flashllm.bench.disk.sweep import Settings, Sweep, make_profile
from flashllm.bench.disk.target import READS_LEAST, Target
from flashllm.errors import BenchmarkInvalid, UsageError
from flashllm.hardware.curves import MachineRates
from flashllm.hardware.machine_profile import Profile

SIZES = (4 << 10, 32 << 10, 256 << 10)
THREADS = (1, 8, 32)
SECONDS, PASSES, PASSES_MOST = 0.25, 2, 3
"""Nine points twice: 4.5 s, and half as much again where the passes differ."""
FILE_BYTES_LEAST = 4 << 20
"""The demo's weights are small, and the first model that most people open."""
ROTATING_FILE_BYTES_LEAST = 1 << 30
"""Within less, a spinning disk hardly seeks."""
LOOK_SECONDS = 0.002
QUIET_SECONDS = 0.5
"""Nobody may have answered for so long before a measurement begins: turns follow each other."""


class GiveWay:
    """Ends a measurement when somebody else wants the disk, and waits until nobody does."""

    def __init__(
        self, is_wanted: Callable[[], bool] = lambda: False, seconds_most: float = 600.0
    ) -> None:
        """`is_wanted` is asked every 2 ms while something is measured."""
        self._is_wanted = is_wanted
        self._end = time.monotonic() + seconds_most

    @contextlib.contextmanager
    def guard(self, reader: core.Reader) -> Iterator[None]:
        """Cancels the reads of the block as soon as somebody wants the disk."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_SECONDS):
                if self._is_wanted():
                    reader.cancel()
                    return

        watcher = threading.Thread(target=look, name="give-way", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def wait(self) -> None:
        """Returns once nobody has wanted the disk for a while; `BenchmarkInvalid` if all do."""
        quiet_from = time.monotonic() - QUIET_SECONDS
        while (now := time.monotonic()) - quiet_from < QUIET_SECONDS or self._is_wanted():
            if self._is_wanted():
                quiet_from = now
            if now > self._end:
                raise BenchmarkInvalid(
                    "a model answered all the time, so the disk was not measured; run"
                    " `flashllm bench io --quick` while none does"
                )
            time.sleep(LOOK_SECONDS * 10)


def quick_settings(target: Target, *, is_rotational: bool = False) -> Settings:
    """Sizes that fit into the file; `UsageError` if it is too small to say anything."""
    least = ROTATING_FILE_BYTES_LEAST if is_rotational else FILE_BYTES_LEAST
    if target.file_bytes < least:
        raise UsageError(
            f"{target.path}: has {target.file_bytes >> 20} MiB, too few for a quick profile; give"
            f" a file of {least >> 20} MiB or more on that disk"
        )
    sizes = [size for size in SIZES if size * READS_LEAST <= target.file_bytes]
    return Settings(sizes or SIZES[:1], THREADS, SECONDS, PASSES)


def run_quick(
    target: Target,
    settings: Settings,
    way: GiveWay,
    on_point: Callable[[int, int], None],
) -> Sweep:
    """All passes; one more where they differ. `on_point` gets the points done and all.

    `BenchmarkInvalid` if a measurement did not come from the device, or nobody gave way.
    """
    sweep = Sweep()
    buffer = probe.make_buffer(max(settings.sizes))
    passes = settings.runs
    done = 0
    while True:
        for size, threads in settings.places * passes:
            on_point(done, len(settings.places) * settings.runs)
            result = _measured(target, size, threads, settings.seconds, buffer, way)
            done += 1
            if result.reads > 0:
                sweep.ours.setdefault((size, threads), []).append(result)
        if not sweep.ours:
            raise BenchmarkInvalid(
                f"{target.path}: no batch of reads ended within {settings.seconds:g} s; measure"
                " this disk with `flashllm bench io`"
            )
        is_doubtful = bool(reason_to_doubt(make_profile(target, sweep, None)))
        if not is_doubtful or done >= PASSES_MOST * len(settings.places):
            break
        passes = 1
    sweep.complete = True
    return sweep


def make_quick_profile(target: Target, sweep: Sweep, rates: MachineRates | None) -> Profile:
    """The profile that the points make, marked as quick."""
    return replace(make_profile(target, sweep, rates), quick=True)


def _measured(
    target: Target, size: int, threads: int, seconds: float, buffer: core.Buffer, way: GiveWay
) -> probe.ProbeResult:
    """One point, begun anew whenever somebody else wanted the disk meanwhile."""
    while True:
        way.wait()
        with contextlib.suppress(InterruptedError):
            return probe.measure(target.path, size, threads, seconds, buffer, guard=way.guard)
