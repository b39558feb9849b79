"""Measures every read size at every number of threads repeatedly, and makes a profile of it.

Each repetition is one pass over all points, so that a device that gets hot, or a machine that gets
busy, shows as a difference between passes. Where fio measures too, passes alternate between
ours-fio and fio-ours. An interruption ends the sweep and keeps what was measured.
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flashllm.bench.disk import probe
from flashllm.bench.disk.fio import FioResult, run_fio
from flashllm.bench.disk.fit import fit_points
from flashllm.bench.disk.probe import ProbeResult
from flashllm.bench.disk.target import Target
from flashllm.core.numpy_twin.latency import Latencies
from flashllm.errors import BenchmarkInvalid
from flashllm.hardware.curves import IoPoint, MachineRates
from flashllm.hardware.device import machine_name
from flashllm.hardware.machine_profile import Profile
from flashllm.hardware.staleness import current_backend, current_isa

FIO_SIZES = (4 << 10, 16 << 10, 64 << 10)
FIO_THREADS = 32
FIO_SPACING_BYTES = 4 << 20
"""Compared with fio, ours reads as fio does: to one address per thread, each at the start of huge
pages of its own. Where reads land matters: packed into one huge page they were up to 50 % faster,
spread over 32 MiB like slots 10 % slower."""
Place = tuple[int, int]  # read size, threads


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a sweep."""

    sizes: Sequence[int]
    threads: Sequence[int]
    seconds: float
    runs: int
    fio: str | None = None

    @property
    def places(self) -> list[Place]:
        """Every point, in the order in which a pass measures them."""
        return [(size, threads) for size in self.sizes for threads in self.threads]

    @property
    def fio_places(self) -> list[Place]:
        """The points that fio measures too: of FIO_SIZES, or else all, nearest to 32 threads."""
        if self.fio is None:
            return []
        threads = min(self.threads, key=lambda number: (abs(number - FIO_THREADS), number))
        sizes = [size for size in self.sizes if size in FIO_SIZES] or self.sizes[:1]
        return [(size, threads) for size in sizes]


@dataclass(slots=True)
class Sweep:
    """What was measured, by read size and number of threads, in order."""

    ours: dict[Place, list[ProbeResult]] = field(default_factory=dict)
    beside: dict[Place, list[ProbeResult]] = field(default_factory=dict)
    """Our reads for the comparison with fio, into as little memory as fio uses."""
    fio: dict[Place, list[FioResult]] = field(default_factory=dict)
    fio_problem: str = ""
    complete: bool = False

    @property
    def proven(self) -> bool:
        """Whether every measurement was compared with what the device was asked for."""
        return all(result.proven for results in self.ours.values() for result in results)

    def pass_ratios(self) -> list[float]:
        """For each pass, the median over all points of throughput relative to the first pass.

        Falls for a device that gets hot and slow.
        """
        whole = min((len(results) for results in self.ours.values()), default=0)
        return [
            statistics.median(
                results[number].bytes_per_second / results[0].bytes_per_second
                for results in self.ours.values()
            )
            for number in range(whole)
        ]

    def points(self) -> tuple[IoPoint, ...]:
        """Medians and latencies of every point that was measured at least once."""
        found = []
        for (size, threads), results in sorted(self.ours.items()):
            samples = tuple(result.bytes_per_second for result in results)
            summary = Latencies.merge(result.latencies for result in results).summary()
            found.append(IoPoint(size, threads, statistics.median(samples), samples, summary))
        return tuple(found)


def run_sweep(target: Target, settings: Settings, report: Callable[[str], None]) -> Sweep:
    """All passes, or those before an interruption; `report` gets a line before each measurement.

    `BenchmarkInvalid` if a measurement did not come from the device.
    """
    sweep = Sweep()
    probe.forget(target.path)
    buffer = probe.make_buffer(max(settings.sizes))
    beside = set(settings.fio_places)
    try:
        for number in range(settings.runs):
            for size, threads in settings.places:
                report(
                    f"pass {number + 1} of {settings.runs}: {size >> 10} KiB x {threads} threads"
                )
                result = probe.measure(target.path, size, threads, settings.seconds, buffer)
                if result.reads > 0:
                    sweep.ours.setdefault((size, threads), []).append(result)
                if (size, threads) in beside:
                    _beside(sweep, target, settings, (size, threads), fio_first=number % 2 == 1)
        sweep.complete = True
    except KeyboardInterrupt:
        if not sweep.ours:
            raise
    if sweep.complete:
        probe.check_not_cached(target.path)
    if not sweep.ours:
        raise BenchmarkInvalid(
            f"{target.path}: no batch of reads ended within {settings.seconds:g} s; "
            "give more --seconds"
        )
    return sweep


def _beside(
    sweep: Sweep, target: Target, settings: Settings, place: Place, fio_first: bool
) -> None:
    """One measurement by fio and one of ours, right after each other."""
    if settings.fio is None or sweep.fio_problem:
        return
    size, threads = place
    buffer = probe.make_buffer(size, threads * FIO_SPACING_BYTES)
    for turn in (fio_first, not fio_first):
        if not turn:
            result = probe.measure(
                target.path,
                size,
                threads,
                settings.seconds,
                buffer,
                spacing_bytes=FIO_SPACING_BYTES,
            )
            sweep.beside.setdefault(place, []).append(result)
            continue
        found = run_fio(settings.fio, target.path, *place, settings.seconds)
        if isinstance(found, FioResult):
            sweep.fio.setdefault(place, []).append(found)
        else:
            sweep.fio_problem = found
            return


def make_profile(target: Target, sweep: Sweep, rates: MachineRates | None) -> Profile:
    """The profile that a sweep's points make."""
    points = sweep.points()
    largest = max(point.read_bytes for point in points)
    return Profile(
        device=target.device,
        machine_name=machine_name(),
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        direct=True,
        points=points,
        fits=fit_points(points),
        sequential_bytes_per_second=max(
            point.bytes_per_second for point in points if point.read_bytes == largest
        ),
        rates=rates,
        complete=sweep.complete,
        isa=current_isa(),
        io_backend=current_backend(),
    )
