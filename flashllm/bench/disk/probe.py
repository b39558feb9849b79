"""Random reads of one size by one number of threads, proven to have come from the device.

Reads go through the reader that decoding uses, several batches at a time, so that its queue is
never empty. The bytes that `/proc/self/io` counts must be those that were read, within 1 %:
otherwise the page cache or a hole in the file answered, or another read interfered, and the numbers
are discarded.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flashllm import core
from flashllm.bench import page_cache
from flashllm.core.numpy_twin.latency import Latencies
from flashllm.errors import BenchmarkInvalid, ReadFailed, UsageError

PROOF_SHARE = 0.01
BUFFER_BYTES = 32 << 20  # past the first caches, as slots of a model are
_SLACK_BYTES = 1 << 20  # what else this process may read meanwhile, such as a Python module
_BATCH_READS = 64  # at a million reads a second still few calls
_TICKETS_LEAST = 4
_PAGE_BYTES = 4096
Guard = Callable[[core.Reader], AbstractContextManager[object]]
"""What watches over the reader of a measurement while it runs."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One repetition."""

    read_bytes: int
    threads: int
    reads: int
    elapsed_ns: int
    bytes_per_second: float
    depth_mean: float
    """Reads in flight, on average."""
    latencies: Latencies
    proven: bool
    """Whether the system confirmed that the device was read; False if it cannot tell."""


def probe(
    path: Path,
    read_bytes: int,
    threads: int,
    seconds: float,
    repeats: int = 3,
    direct: str = "required",
    region: tuple[int, int] | None = None,
    buffer_bytes: int = BUFFER_BYTES,
) -> list[ProbeResult]:
    """Random reads of `read_bytes` over a file or the bytes [start, end) of it, `repeats` times.

    They land in a buffer of `buffer_bytes`, or of one read where that is more.
    `BenchmarkInvalid` if they cannot be direct or did not come from the device; `ReadFailed` if the
    file cannot be read; `UsageError` if it is smaller than a read.
    """
    forget(path)
    buffer = make_buffer(read_bytes, buffer_bytes)
    return [
        measure(path, read_bytes, threads, seconds, buffer, direct, region) for _ in range(repeats)
    ]


def make_buffer(read_bytes: int, nbytes: int = BUFFER_BYTES) -> core.Buffer:
    """Memory to read into; written once, since the first use of a page must not count."""
    buffer = core.Buffer(max(nbytes, read_bytes))
    buffer.array()[::_PAGE_BYTES] = 1
    return buffer


def forget(path: Path) -> None:
    """Drops a file's pages from the page cache; `BenchmarkInvalid` if they stay there."""
    try:
        page_cache.drop_pages(path)
    except OSError as error:
        raise ReadFailed(f"{path}: cannot be read ({error.strerror})") from error
    check_not_cached(path)


def check_not_cached(path: Path) -> None:
    """`BenchmarkInvalid` if more than 1 % of a file is in the page cache."""
    try:
        file_bytes = path.stat().st_size
        resident = page_cache.resident_bytes(path, file_bytes)
    except OSError as error:
        raise ReadFailed(f"{path}: cannot be read ({error.strerror})") from error
    if resident is not None and resident > max(PROOF_SHARE * file_bytes, _SLACK_BYTES):
        raise BenchmarkInvalid(
            f"{path}: {resident >> 20} MiB of it lie in the page cache, since another program "
            "uses them or the file system lies in memory; end that program, or give another file"
        )


def measure(
    path: Path,
    read_bytes: int,
    threads: int,
    seconds: float,
    buffer: core.Buffer,
    direct: str = "required",
    region: tuple[int, int] | None = None,
    spacing_bytes: int = 0,
    guard: Guard = contextlib.nullcontext,
) -> ProbeResult:
    """One repetition of `probe`, into a buffer of `make_buffer`, on a file that was forgotten.

    Targets of reads are `spacing_bytes` apart, or adjacent. A `guard` may cancel the reader, which
    ends the measurement with `InterruptedError`. If the device was asked for more than
    was read, the measurement is repeated once: after a shortage of memory, this program's own code
    may have been read meanwhile. A file system that reads more does so again.
    """
    task = (path, read_bytes, threads, seconds, buffer, direct, region, spacing_bytes, guard)
    for _ in range(2):
        before = page_cache.device_bytes()
        result, asked = _measured(*task)
        after = page_cache.device_bytes()
        if before is None or after is None or after - before <= _most(asked):
            break
    return replace(result, proven=check_device_bytes(path, before, after, asked))


def _measured(
    path: Path,
    read_bytes: int,
    threads: int,
    seconds: float,
    buffer: core.Buffer,
    direct: str,
    region: tuple[int, int] | None,
    spacing_bytes: int,
    guard: Guard,
) -> tuple[ProbeResult, int]:
    """The result, not yet proven, and the bytes that the reader was asked for."""
    with _open(path, read_bytes, threads, direct) as reader, guard(reader):
        start, end = region or (0, reader.file_bytes)
        first = -(-start // _PAGE_BYTES) * _PAGE_BYTES
        places = (min(end, reader.file_bytes) - first) // read_bytes
        if places < 1:
            raise UsageError(f"{path}: is smaller than one read of {read_bytes} bytes")
        load = _Load(reader, read_bytes, threads, buffer, first, places, spacing_bytes)
        try:
            result = load.run(seconds)
        except InterruptedError:
            raise
        except (OSError, EOFError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ReadFailed(f"{path}: reading failed ({reason})") from error
        finally:
            load.end()
        asked = int(reader.stats()["bytes_read"])  # type: ignore[arg-type]
    reads, elapsed_ns, depth_mean, latencies = result
    found = ProbeResult(
        read_bytes=read_bytes,
        threads=threads,
        reads=reads,
        elapsed_ns=elapsed_ns,
        bytes_per_second=reads * read_bytes * 1e9 / elapsed_ns,
        depth_mean=depth_mean,
        latencies=latencies,
        proven=False,
    )
    return found, asked


def _most(asked: int) -> float:
    """The most bytes that the device may have been asked for, given the bytes read."""
    return asked * (1 + PROOF_SHARE) + _SLACK_BYTES


def check_device_bytes(path: Path, before: int | None, after: int | None, asked: int) -> bool:
    """Whether devices were asked for what was read; `BenchmarkInvalid` if they were not.

    False if the system does not tell.
    """
    if before is None or after is None:
        return False
    fetched = after - before
    if asked * (1 - PROOF_SHARE) <= fetched <= _most(asked):
        return True
    status = path.stat()
    cause = "they came from the page cache, or the file has ranges that were never written"
    if status.st_blocks * 512 < status.st_size * (1 - PROOF_SHARE):
        cause = f"of {status.st_size} bytes only {status.st_blocks * 512} are stored (holes?)"
    elif fetched > asked:
        cause = "the file system reads more than it is asked for, or this program read elsewhere"
    raise BenchmarkInvalid(
        f"{path}: {asked} bytes were read, but the device was asked for {fetched}: {cause}; "
        "nothing of this run is kept; give a file that was written in full, on a local disk"
    )


@contextlib.contextmanager
def _open(path: Path, read_bytes: int, threads: int, direct: str) -> Iterator[core.Reader]:
    try:
        # Neighbours are not merged: a read may not be longer than one of them.
        reader = core.Reader(str(path), direct, threads, 0, read_bytes, core.IO_BACKEND)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise BenchmarkInvalid(
                f"{path}: {error.strerror}; what was read from there would be memory, not a "
                "device; give a file on a disk's own file system"
            ) from error
        raise ReadFailed(f"{path}: cannot be read ({error.strerror})") from error
    try:
        yield reader
    finally:
        reader.close()


class _Load:
    """Batches of random reads, several outstanding, so that every thread always has a next one."""

    def __init__(
        self,
        reader: core.Reader,
        read_bytes: int,
        threads: int,
        buffer: core.Buffer,
        first: int,
        places: int,
        spacing_bytes: int,
    ) -> None:
        self._reader, self._read_bytes, self._buffer = reader, read_bytes, buffer
        self._first, self._places = first, places
        self._random = np.random.default_rng()
        self._spacing_bytes = max(spacing_bytes, read_bytes)
        slots = buffer.nbytes // self._spacing_bytes
        self._batch = max(1, min(_BATCH_READS, slots // _TICKETS_LEAST))
        self._slots = np.arange(self._batch, dtype=np.int64) * self._spacing_bytes
        self._windows = slots // self._batch
        self._submitted = 0
        self._tickets: list[int] = []
        for _ in range(max(_TICKETS_LEAST, -(-2 * threads // self._batch) + 1)):
            self._submit()

    def _submit(self) -> None:
        offsets = self._first + self._random.integers(self._places, size=self._batch) * (
            self._read_bytes
        )
        # Batches beyond the buffer's windows share them: nobody uses the data.
        window = self._submitted % self._windows * self._batch * self._spacing_bytes
        destinations = self._slots + window
        self._tickets.append(
            self._reader.submit(offsets, self._read_bytes, self._buffer, destinations)
        )
        self._submitted += 1

    def _turn(self) -> None:
        self._reader.wait(self._tickets.pop(0))
        self._submit()

    def run(self, seconds: float) -> tuple[int, int, float, Latencies]:
        """Reads, nanoseconds, mean depth and latencies, after the first batch."""
        self._turn()
        early, before = self._reader.stats(), self._reader.latency_histogram()
        begin_ns = time.perf_counter_ns()
        end_ns = begin_ns + int(seconds * 1e9)
        while time.perf_counter_ns() < end_ns:
            self._turn()
        late, after = self._reader.stats(), self._reader.latency_histogram()
        elapsed_ns = time.perf_counter_ns() - begin_ns
        grown = {
            name: int(late[name]) - int(early[name])  # type: ignore[arg-type]
            for name in ("reads", "busy_ns", "depth_ns")
        }
        depth_mean = grown["depth_ns"] / max(grown["busy_ns"], 1)
        return grown["reads"], elapsed_ns, depth_mean, Latencies(after) - Latencies(before)

    def end(self) -> None:
        """Drops what has not begun, and waits for the rest."""
        self._reader.cancel()
        for ticket in self._tickets:
            with contextlib.suppress(InterruptedError, OSError, EOFError):
                self._reader.wait(ticket)
        self._tickets.clear()
