"""The profile of a device on this machine: the cost of reads by size and number of threads.

`flashllm bench io` measures it, `save` keeps it in the user's cache directory, one file per device,
and the planner uses it. A quick profile, a sample of some seconds, is kept in a file of its own and
found only where no other is. Between measured numbers of threads, throughput is linear in their
logarithm; `curves` interpolates between sizes.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashllm.errors import (
    CannotCreate,
    FlashllmError,
    LayoutError,
    ProfileError,
)
from flashllm.hardware.curves import Curve, Fit, IoPoint, MachineRates
from flashllm.hardware.device import KINDS, DeviceIdentity, describe_device
from flashllm.system.atomic_file import write_whole
from flashllm.system.paths import cache_dir
from flashllm.untrusted.strict_fields import from_plain, to_plain
from flashllm.untrusted.strict_json import parse_object

__all__ = [
    "PROFILE_VERSION",
    "DeviceIdentity",
    "Fit",
    "IoPoint",
    "MachineRates",
    "Profile",
    "cache_path",
    "failed_lately",
    "find",
    "load",
    "note_failure",
    "quick_path",
    "save",
]

PROFILE_VERSION = 1
FILE_BYTES_MAX = 4 << 20
GAP_BYTES_MAX = 64 << 10
_GAP_STEP_BYTES = 512
_VALUE_LEAST, _VALUE_MOST = 1e-3, 1e18
"""Of all rates, sizes, numbers and times: beyond them, what is computed overflows or vanishes."""
FAILURE_SECONDS = 3600.0
"""For so long a quick profile that failed is not tried again by itself."""
_BEST_SHARE = 0.97  # of the best throughput: more threads than give this are not worth it


@dataclass(frozen=True, slots=True)
class Profile:
    """The measurements of a device, and estimates for reads that were not measured."""

    device: DeviceIdentity
    machine_name: str
    date: str
    direct: bool
    points: tuple[IoPoint, ...]
    fits: tuple[Fit, ...]
    sequential_bytes_per_second: float
    """The best of the largest reads."""
    rates: MachineRates | None = None
    complete: bool = True
    """False if the measurement was ended early."""
    isa: str = ""
    """Instruction set of the measured kernels; "" in profiles that do not say."""
    io_backend: str = ""
    """The back-end of the reads, threads or uring; "" in profiles that do not say."""
    quick: bool = False
    """Whether it is a sample of some seconds: enough for expected speeds, not to choose by."""
    _curves: dict[int, Curve] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        _check_values(self)
        fits = {fit.threads: fit for fit in self.fits}
        for threads in sorted({point.threads for point in self.points}):
            points = [point for point in self.points if point.threads == threads]
            self._curves[threads] = Curve.of(points, fits.get(threads))

    @property
    def chooses_reads(self) -> bool:
        """Whether threads and gap may be chosen by it.

        One that was ended early or is quick knows too little of many threads, and would choose too
        few.
        """
        return self.complete and not self.quick

    def throughput(self, read_bytes: float, threads: int) -> float:
        """Bytes per second of many reads of that size by that many threads.

        Fewer or more threads than were measured have the throughput of the nearest number.
        """
        assert read_bytes > 0, "a read has at least a byte"
        measured = list(self._curves)
        above = bisect.bisect_left(measured, threads)
        if above == len(measured) or above == 0 or measured[above] == threads:
            return self._curves[measured[min(above, len(measured) - 1)]].throughput(read_bytes)
        few, many = measured[above - 1], measured[above]
        share = math.log(threads / few) / math.log(many / few)
        slow = self._curves[few].throughput(read_bytes)
        return slow + share * (self._curves[many].throughput(read_bytes) - slow)

    def read_seconds(self, reads: float, bytes_: float, threads: int) -> float:
        """Wall time of that many reads, of `bytes_` in all, kept in flight by that many threads.

        Fewer reads than threads keep as many of them at work as there are reads.
        """
        if reads <= 0 or bytes_ <= 0:
            return 0.0
        working = min(threads, max(1, math.ceil(reads)))
        return bytes_ / self.throughput(bytes_ / reads, working)

    def best_threads(self, read_bytes: int) -> int:
        """The least measured number of threads within 3 % of the best throughput."""
        rates = {threads: self.throughput(read_bytes, threads) for threads in self._curves}
        best = max(rates.values())
        return min(threads for threads, rate in rates.items() if rate >= _BEST_SHARE * best)

    def gap_bytes(self, read_bytes: int, threads: int) -> int:
        """The widest gap between two such reads that takes less time than a second read.

        It is the break-even a × B where t = a + S/B holds, a multiple of 512, at most 64 KiB.
        """

        def read_seconds(size: int) -> float:
            return size / self.throughput(size, threads)

        two_reads = 2 * read_seconds(read_bytes) * (1 + 1e-9)
        gap = 0
        while gap < GAP_BYTES_MAX and (
            read_seconds(2 * read_bytes + gap + _GAP_STEP_BYTES) <= two_reads
        ):
            gap += _GAP_STEP_BYTES
        return gap

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` takes them."""
        return {"version": PROFILE_VERSION, **to_plain(self)}

    @classmethod
    def from_json(cls, value: object, where: str) -> Profile:
        """The inverse of `to_json`, with every value checked; `ProfileError` names `where`."""
        values = dict(value) if isinstance(value, dict) else {}
        version = values.pop("version", None)
        if version != PROFILE_VERSION:
            raise ProfileError(
                f"{where}: is no profile of version {PROFILE_VERSION}; "
                "measure one with `flashllm bench io`"
            )
        try:
            return from_plain(cls, values, "profile")
        except (ValueError, OverflowError) as error:
            raise ProfileError(
                f"{where}: {error}; measure again with `flashllm bench io`"
            ) from error


def save(profile: Profile, path: Path | None = None) -> Path:
    """Writes a profile atomically, to the cache unless a path is given; returns its path.

    In the cache, a whole profile takes the place of a quick one, and a quick one never that of a
    whole one. `CannotCreate` if it cannot be written.
    """
    is_kept = path is None
    if path is None:
        path = quick_path(profile.device) if profile.quick else cache_path(profile.device)
    text = json.dumps(profile.to_json(), indent=1) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise CannotCreate(
            f"{path}: the profile cannot be written ({error.strerror}); "
            "give --profile FILE, or set FLASHLLM_HOME to another directory"
        ) from error
    if is_kept and not profile.quick:
        with contextlib.suppress(OSError):  # a whole one is found first anyway
            quick_path(profile.device).unlink(missing_ok=True)
    return path


def load(path: Path) -> Profile:
    """The profile in a file; `ProfileError` if it is not valid or cannot be read."""
    try:
        if not path.is_file():
            raise ProfileError(f"{path}: there is no such file; `flashllm bench io` makes one")
        with path.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror})") from error
    if len(raw) > FILE_BYTES_MAX:
        raise ProfileError(f"{path}: is too large to be a profile")
    try:
        values = parse_object(raw, path, LayoutError)
    except LayoutError as error:
        raise ProfileError(f"{error}; measure again with `flashllm bench io`") from error
    return Profile.from_json(values, str(path))


def find(path: Path) -> Profile | None:
    """The kept profile of the device of `path`, else the quick one; None if neither is valid."""
    try:
        device = describe_device(path)
        places = cache_path(device), quick_path(device)
    except (OSError, RuntimeError):
        return None
    for place in places:
        with contextlib.suppress(FlashllmError, OSError):
            profile = load(place)
            if profile.device.key == device.key:
                return profile
    return None


def cache_path(device: DeviceIdentity) -> Path:
    """Where the profile of a device is kept."""
    return cache_dir() / "profiles" / f"{device.key}.json"


def quick_path(device: DeviceIdentity) -> Path:
    """Where the quick profile of a device is kept."""
    return cache_dir() / "profiles" / f"{device.key}.quick.json"


def note_failure(path: Path) -> None:
    """Remembers that no quick profile could be taken of the device of `path`."""
    with contextlib.suppress(OSError, RuntimeError):
        place = _failure_path(describe_device(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def failed_lately(path: Path, seconds: float = FAILURE_SECONDS) -> bool:
    """Whether that was tried in vain not long ago."""
    with contextlib.suppress(OSError, RuntimeError):
        age = time.time() - _failure_path(describe_device(path)).stat().st_mtime
        return 0 <= age < seconds
    return False


def _failure_path(device: DeviceIdentity) -> Path:
    return quick_path(device).with_suffix(".failed")


def _check_values(profile: Profile) -> None:
    """`ValueError` for impossible numbers."""
    if not profile.points:
        raise ValueError("profile.points: there are none")
    places = [(point.read_bytes, point.threads) for point in profile.points]
    if len(set(places)) < len(places):
        raise ValueError("profile.points: a size and number of threads occurs twice")
    positive: dict[str, list[float]] = {
        "points.read_bytes": [size for size, _ in places],
        "points.threads": [threads for _, threads in places],
        "points.bytes_per_second": [point.bytes_per_second for point in profile.points],
        "fits.bytes_per_second": [fit.bytes_per_second for fit in profile.fits],
        "sequential_bytes_per_second": [profile.sequential_bytes_per_second],
    }
    if rates := profile.rates:
        positive["rates"] = [
            *rates.dram_bytes_per_second.values(),
            *rates.dram_bytes_per_second,
            *rates.kernel_bytes_per_second.values(),
            *rates.rows_bytes_per_second.values(),
        ]
        if min(rates.layer_overhead_ns, rates.token_overhead_ns) < 0:
            raise ValueError("profile.rates: an overhead is negative")
        if max(rates.layer_overhead_ns, rates.token_overhead_ns) > _VALUE_MOST:
            raise ValueError("profile.rates: an overhead is beyond all that is measured")
    for name, values in positive.items():
        if any(value <= 0 for value in values):
            raise ValueError(f"profile.{name}: a value is not above 0")
        if any(not _VALUE_LEAST <= value <= _VALUE_MOST for value in values):
            raise ValueError(f"profile.{name}: a value is beyond all that is measured")
    if any(fit.per_read_ns < 0 for fit in profile.fits):
        raise ValueError("profile.fits.per_read_ns: a value is negative")
    if any(fit.per_read_ns > _VALUE_MOST for fit in profile.fits):
        raise ValueError("profile.fits.per_read_ns: a value is beyond all that is measured")
    if profile.device.kind not in KINDS:
        raise ValueError(f"profile.device.kind: {profile.device.kind[:80]!r} is no kind of device")
