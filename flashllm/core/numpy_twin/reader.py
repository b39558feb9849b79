"""Buffer and Reader of the numpy twin: the same plan of reads as the native core, one at a time.

A batch is checked and planned by `submit` and read by `wait`. Every read goes through an aligned
scratch and is copied from there, so that direct I/O needs nothing of the destinations.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.core.numpy_twin import latency
from flashllm.core.numpy_twin.arguments import require_array
from flashllm.core.numpy_twin.bundle_checks import BundleChecks, ChecksumError

_PAGE = 4096
_LARGEST_PAGE = 65536
_TIMES_MAX = 1 << 18
_MAX_THREADS = 1024
_MAX_PIECES = 256  # destinations of one read; the native core's vectors of a call are bounded
_EIO_RETRIES = 2
_TRANSIENT_RETRIES = 1000
_SHORTAGES = (errno.ENOMEM, errno.ENOBUFS, errno.EMFILE, errno.ENFILE)
_SHORTAGE_PAUSES_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016)
_DEGRADES = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM)


def check_threads(threads: int) -> None:
    """`ValueError` for a number of threads out of range."""
    if not 1 <= threads <= _MAX_THREADS:
        raise ValueError(f"threads is {threads}; expected 1 to {_MAX_THREADS}")


class Buffer:
    """Anonymous page-aligned memory: allocated once, zero, never moves, touched when first used."""

    def __init__(self, nbytes: int, huge_pages: bool = True) -> None:  # noqa: ARG002
        if nbytes <= 0:
            raise ValueError(f"a buffer of {nbytes} bytes")
        try:
            # Private: of shared memory, pages that are discarded keep what they held.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._memory = mmap.mmap(-1, -(-nbytes // _PAGE) * _PAGE, flags=flags)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no memory for a buffer of {nbytes} bytes") from error
        self._array = np.frombuffer(self._memory, np.uint8, nbytes)
        self.nbytes = nbytes
        self.address = int(self._array.ctypes.data)

    def array(self) -> NDArray[np.uint8]:
        """The memory itself, writable; the array keeps it alive."""
        return self._array

    def discard(self, begin: int, nbytes: int) -> None:
        """Give the whole pages within these bytes back to the system; what they held is lost."""
        if begin < 0 or nbytes < 0 or begin + nbytes > self.nbytes:
            raise ValueError(f"{nbytes} bytes at {begin} of a buffer of {self.nbytes}")
        first, end = -(-begin // _PAGE) * _PAGE, (begin + nbytes) // _PAGE * _PAGE
        if first < end:
            self._memory.madvise(mmap.MADV_DONTNEED, first, end - first)


@dataclass(frozen=True, slots=True)
class _Piece:
    offset: int
    length: int
    destination: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(slots=True)
class _Batch:
    runs: list[list[_Piece]]
    target: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    length: int
    destinations: NDArray[np.int64]
    is_dropped: bool = False


class _Retries:
    """Which failures of a read may pass, and how often it is tried again; as `io/retries.h`."""

    def __init__(self) -> None:
        self._left = {errno.EIO: _EIO_RETRIES, errno.EAGAIN: _TRANSIENT_RETRIES}
        self._left[errno.EINTR] = _TRANSIENT_RETRIES
        self._pauses = iter(_SHORTAGE_PAUSES_SECONDS)

    def may_pass(self, code: int) -> bool:
        """Whether to read again after this errno; waits first where something is short."""
        if code in _SHORTAGES:
            pause = next(self._pauses, None)
            time.sleep(pause or 0.0)
            return pause is not None
        left = self._left.get(code, 0)
        self._left[code] = left - 1
        return left > 0


class Reader:
    """Positioned reads on one file; `threads` is kept for its twin's sake, one read runs at a time.

    Errors as in the native core: OSError from opening; EOFError, InterruptedError and OSError
    from `wait`; ValueError and IndexError from `submit`.
    """

    def __init__(
        self,
        path: str,
        direct: str = "optional",
        threads: int = 32,
        gap_bytes: int = 0,
        max_read_bytes: int = 524288,
        backend: str = "auto",
    ) -> None:
        if direct not in ("required", "optional", "disabled"):
            raise ValueError(f"direct is {direct!r}; expected required, optional or disabled")
        if backend not in ("auto", "threads", "uring"):
            raise ValueError(f"backend is {backend!r}; expected auto, threads or uring")
        check_threads(threads)
        if gap_bytes < 0 or max_read_bytes < 1:
            raise ValueError(f"gap_bytes is {gap_bytes} and max_read_bytes {max_read_bytes}")
        self._path, self.threads = path, threads
        self._file, self.alignment, self.fallback = _open(path, direct)
        self._may_stop_direct = direct == "optional" and not self.fallback
        self.backend = "threads"
        self.backend_problem = "the numpy core has no ring" if backend == "uring" else ""
        self.file_bytes = _size(self._file)
        self._gap = gap_bytes
        self._piece = max(max_read_bytes // self.alignment * self.alignment, self.alignment)
        widest = self._piece + 2 * max(self.alignment, _PAGE)
        self._scratch = mmap.mmap(-1, -(-widest // _PAGE) * _PAGE)
        self._cancelled = threading.Event()
        self._batches: dict[int, _Batch] = {}
        self._next_ticket = 1
        self._counts = dict.fromkeys(
            ("bytes_read", "bytes_useful", "reads", "busy_ns", "depth_ns", "depth_max"), 0
        ) | dict.fromkeys(("retries", "short_reads", "bounced", "downgrades"), 0)
        self._sizes = [0] * 32
        self._latencies = np.zeros(latency.BINS, np.uint64)
        self._times: list[int] = []
        self._keeps_times = False
        self._checks: BundleChecks | None = None

    def verify_bundles(
        self,
        checksums: NDArray[np.uint32],
        file_id: bytes,
        data_offset: int,
        stride: int,
        bundle_bytes: int,
        bundles_per_layer: int,
        always: bool = False,
    ) -> None:
        """Hold every bundle against its checksum when it is read, at first or `always`."""
        self._check_open()
        if self._checks is not None or self._next_ticket != 1:
            raise ValueError(f"bundles of {self._path} are verified from the first batch on")
        self._checks = BundleChecks(
            checksums, file_id, data_offset, stride, bundle_bytes, bundles_per_layer, always
        )

    @property
    def direct(self) -> bool:
        """Whether reads bypass the page cache."""
        return not self.fallback

    def submit(
        self,
        offsets: NDArray[np.int64],
        length: int,
        buffer: Buffer,
        destinations: NDArray[np.int64],
        urgent: bool = False,  # noqa: ARG002
        ahead: bool = False,  # noqa: ARG002
        spans_gaps: bool = True,
    ) -> int:
        """Check and plan reads of `length` bytes at each offset; returns a ticket for `wait`.

        `urgent` and `ahead` are kept for their twin's sake: what is waited for first is read first.
        Without `spans_gaps` a read takes no more of what lies between two than alignment asks for.
        """
        self._check_open()
        require_array("offsets", offsets, np.int64)
        require_array("destinations", destinations, np.int64)
        _check_bounds(offsets, length, destinations, self.file_bytes, buffer.nbytes)
        if self._checks is not None:
            self._checks.check_batch(offsets, length)
        gap = self._gap if spans_gaps else min(self._gap, self.alignment - 1)
        runs = list(self._plan(offsets, length, destinations, gap))
        ticket = self._next_ticket
        self._next_ticket += 1
        self._batches[ticket] = _Batch(
            runs, buffer.array(), offsets.copy(), length, destinations.copy()
        )
        return ticket

    def hasten(self, ticket: int) -> None:
        """Does nothing but check the ticket: what is waited for is read."""
        self._batch(ticket)

    def drop(self, ticket: int) -> int:
        """Read nothing of a batch; how many of its bytes were read already."""
        self._batch(ticket).is_dropped = True
        return 0

    def _batch(self, ticket: int) -> _Batch:
        self._check_open()
        if ticket not in self._batches:
            raise ValueError(f"no ticket {ticket}; each is waited for once")
        return self._batches[ticket]

    def wait(self, ticket: int) -> None:
        """Read what was submitted."""
        batch = self._batch(ticket)
        del self._batches[ticket]
        for run in batch.runs:
            if self._cancelled.is_set() or batch.is_dropped:
                raise InterruptedError(f"reading {self._path} was cancelled")
            self._read_run(run, batch.target)
        if self._checks is not None:
            self._verify(self._checks, batch)

    def read(
        self,
        offsets: NDArray[np.int64],
        length: int,
        buffer: Buffer,
        destinations: NDArray[np.int64],
    ) -> None:
        """Submit and wait."""
        self.wait(self.submit(offsets, length, buffer, destinations))

    def cancel(self) -> None:
        """Drop what has not been read yet."""
        self._cancelled.set()

    def clear_cancel(self) -> None:
        """Accept work again."""
        self._cancelled.clear()

    def stats(self) -> dict[str, int | list[int]]:
        """Counters since the reader was opened."""
        checks = self._checks.counts if self._checks is not None else BundleChecks.NO_COUNTS
        return {**self._counts, **checks, "size_histogram": list(self._sizes)}

    def latency_histogram(self) -> NDArray[np.uint64]:
        """Reads by how long they took, since then; `flash.latency` has the bins."""
        counts: NDArray[np.uint64] = self._latencies.copy()
        return counts

    def keep_read_times(self, keep: bool) -> None:
        """From now on note when reads begin and end, up to 262,144 of them; or no longer."""
        self._times, self._keeps_times = [], keep

    def take_read_times(self) -> NDArray[np.int64]:
        """Beginning and end of each read that was noted, in ns of `time.perf_counter_ns`, in turn.

        They are forgotten with that.
        """
        taken, self._times = self._times, []
        return np.asarray(taken, np.int64)

    def close(self) -> None:
        """Close the file; later calls raise ValueError."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._batches.clear()

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.close()

    def _check_open(self) -> None:
        if self._file < 0:
            raise ValueError(f"the reader of {self._path} is closed")

    def _is_aligned(self, run: list[_Piece]) -> bool:
        return all(
            not (piece.offset | piece.length | piece.destination) % self.alignment for piece in run
        )

    def _plan(
        self, offsets: NDArray[np.int64], length: int, destinations: NDArray[np.int64], gap: int
    ) -> Iterator[list[_Piece]]:
        """Pieces sorted by offset and gathered into reads, each a list that is one read."""
        run: list[_Piece] = []
        for i in np.argsort(offsets, kind="stable").tolist():
            for done in range(0, length, self._piece):
                piece = _Piece(
                    int(offsets[i]) + done,
                    min(self._piece, length - done),
                    int(destinations[i]) + done,
                )
                if run and not self._joins(run, piece, gap):
                    yield run
                    run = []
                run.append(piece)
        if run:
            yield run

    def _joins(self, run: list[_Piece], piece: _Piece, gap: int) -> bool:
        return (
            len(run) < _MAX_PIECES
            and 0 <= piece.offset - run[-1].end <= gap
            and piece.end - run[0].offset <= self._piece
        )

    def _read_run(self, run: list[_Piece], target: NDArray[np.uint8]) -> None:
        """One read into the scratch, again from where it stopped if it came back short."""
        start = run[0].offset // self.alignment * self.alignment
        length = -(-run[-1].end // self.alignment) * self.alignment - start
        needed = run[-1].end - start
        view = memoryview(self._scratch)
        done = 0
        while done < needed:
            resume = done // self.alignment * self.alignment
            got = self._attempt(start + resume, view[resume:length])
            if resume + got <= done:
                raise EOFError(f"{self._path}: the file ends at offset {start + resume + got}")
            done = resume + got
            self._counts["short_reads"] += done < needed
        scratch = np.frombuffer(self._scratch, np.uint8)
        for piece in run:
            first = piece.offset - start
            target[piece.destination : piece.destination + piece.length] = scratch[
                first : first + piece.length
            ]
            self._counts["bytes_useful"] += piece.length
        self._counts["bounced"] += not self._is_aligned(run)

    def _verify(self, checks: BundleChecks, batch: _Batch) -> None:
        """Hold what was read against its checksums; what is wrong is read again, once."""
        bundles, places = checks.read_by(batch.offsets, batch.length, batch.destinations)
        wrong = checks.wrong_ones(bundles, places, batch.target)
        checks.counts["bundles_mismatched"] += len(wrong)
        for bundle, place in zip(bundles[wrong], places[wrong], strict=True):
            offset = np.array([checks.offset(int(bundle))], np.int64)
            _forget(self._file, int(offset[0]), checks.stride)
            for run in self._plan(offset, checks.stride, np.array([place], np.int64), 0):
                self._read_run(run, batch.target)
            again = np.array([bundle], np.int64), np.array([place], np.int64)
            if len(checks.wrong_ones(*again, batch.target)):
                checks.counts["bundles_damaged"] += 1
                raise ChecksumError(
                    f"{checks.place(int(bundle))}: the checksum is wrong, also of what was read"
                    " again"
                )

    def _attempt(self, offset: int, view: memoryview) -> int:
        """One positioned read, tried again where the failure may pass."""
        retries = _Retries()
        while True:
            begin_ns = time.perf_counter_ns()
            try:
                return self._read_at(view, offset)
            except OSError as error:
                if not (self._stop_direct(error) or retries.may_pass(error.errno or 0)):
                    message = f"{error.strerror}, reading {len(view)} bytes at offset {offset}"
                    raise OSError(error.errno, message, self._path) from error
                self._counts["retries"] += 1
            finally:
                self._count_read(len(view), time.perf_counter_ns() - begin_ns)

    def _read_at(self, view: memoryview, offset: int) -> int:
        """The system call itself."""
        return os.preadv(self._file, [view], offset)

    def _stop_direct(self, error: OSError) -> bool:
        """Gives direct reads up for the page cache after EINVAL; False where that is no way out."""
        if error.errno != errno.EINVAL or not self._may_stop_direct:
            return False
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self._may_stop_direct = False
        self.fallback = f"a direct read was refused: {os.strerror(errno.EINVAL)}"
        self._counts["downgrades"] += 1
        return True

    def _count_read(self, asked: int, elapsed_ns: int) -> None:
        self._counts["reads"] += 1
        self._counts["bytes_read"] += asked
        self._counts["busy_ns"] += elapsed_ns
        self._counts["depth_ns"] += elapsed_ns
        self._counts["depth_max"] = 1
        self._latencies[latency.bin_of(elapsed_ns)] += np.uint64(1)
        if self._keeps_times and len(self._times) < 2 * _TIMES_MAX:
            now_ns = time.perf_counter_ns()
            self._times += (now_ns - elapsed_ns, now_ns)
        self._sizes[min(asked.bit_length() - 1, 31)] += 1


def _check_bounds(
    offsets: NDArray[np.int64],
    length: int,
    destinations: NDArray[np.int64],
    file_bytes: int,
    buffer_bytes: int,
) -> None:
    """Everything that could make a read go wrong, before any is queued."""
    if length <= 0:
        raise ValueError(f"length is {length}")
    if len(offsets) != len(destinations):
        raise ValueError(f"{len(offsets)} offsets for {len(destinations)} destinations")
    for name, values, limit in (
        ("offset", offsets, file_bytes),
        ("destination", destinations, buffer_bytes),
    ):
        # Python's own integers: a huge length must not wrap around.
        for value in values.tolist():
            if value < 0 or value + length > limit:
                raise IndexError(f"{name} {value} + {length} bytes is outside {limit} bytes")
    ordered = np.sort(destinations)
    if np.any(np.diff(ordered) < length):
        raise ValueError("destinations overlap")


def _open(path: str, direct: str) -> tuple[int, int, str]:
    """File descriptor, alignment, and why direct I/O is not used or ""."""
    reason = "disabled by request"
    if direct != "disabled":
        reason = "the platform has no direct I/O"
        if hasattr(os, "O_DIRECT"):
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            except OSError as error:
                if error.errno not in _DEGRADES:
                    raise
                reason = f"open: {errno.errorcode.get(error.errno or 0, error.errno)}"
            else:
                alignment, reason = _probe(file, path)
                if alignment:
                    return file, alignment, ""
                os.close(file)
        if direct == "required":
            raise OSError(errno.EINVAL, f"direct I/O is required but refused ({reason})", path)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if stat.S_ISDIR(os.fstat(file).st_mode):
        os.close(file)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return file, 1, reason


def _forget(file: int, offset: int, nbytes: int) -> None:
    """What the page cache holds of a range goes; whole pages only, so it is rounded out."""
    if hasattr(os, "posix_fadvise"):
        start = offset - offset % _LARGEST_PAGE
        os.posix_fadvise(file, start, nbytes + 2 * _LARGEST_PAGE, os.POSIX_FADV_DONTNEED)


def _size(file: int) -> int:
    status = os.fstat(file)
    # A device has no size but its end.
    return os.lseek(file, 0, os.SEEK_END) if stat.S_ISBLK(status.st_mode) else status.st_size


def _probe(file: int, path: str) -> tuple[int, str]:
    """The alignment at which a direct read works, or 0 and why none does."""
    reason = ""
    memory = mmap.mmap(-1, 2 * _PAGE)
    for alignment in (512, _PAGE):
        offset = alignment if _size(file) >= 2 * alignment else 0
        try:
            os.preadv(file, [memoryview(memory)[alignment : 2 * alignment]], offset)
        except OSError as error:
            if error.errno not in _DEGRADES:
                raise OSError(error.errno, error.strerror, path) from error
            reason = f"probe read: {errno.errorcode.get(error.errno or 0, error.errno)}"
        else:
            return alignment, ""
    return 0, reason
