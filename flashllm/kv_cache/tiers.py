"""The flash tier of keys and values: a scratch file of pages, written behind and read directly.

The file never has a name that stays, so that nothing is left of it whatever ends the process. Its
size is bounded by what all contexts can hold. A page has one place in it, where the pages of a
layer's head lie one after the other, so that reading all of them is one long read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import queue
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.errors import Cancelled, CannotCreate, NotEnoughSpace, ReadFailed
from flashllm.kv_cache.layout import PAGE_READS, PageShape
from flashllm.system.clock import now_ns
from flashllm.system.filesystem import describe_storage
from flashllm.system.noted_times import NotedTimes, TimedTransfers
from flashllm.units import format_bytes

Pages = NDArray[np.int64]
"""Numbers of pages, (layer * kv_heads + head) * blocks + block each."""

_PAGES_A_WRITE = 64
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM)
_ADVICE = "give --kv-dir another disk, more DRAM by --kv-memory, or a shorter --ctx-size"


@dataclass(slots=True)
class PageWrite:
    """Pages on their way to flash, and the slots that they are in meanwhile."""

    pages: Pages
    slots: NDArray[np.int64]
    error: OSError | None = None
    failed_page: int = 0


@dataclass(frozen=True, slots=True)
class PageRead:
    """Pages on their way to byte positions of the buffer: whole, or part 0, keys, or 1, values."""

    ticket: int
    pages: Pages
    destinations: NDArray[np.int64]
    part: int | None


class PageFile:
    """The pages of a pool that are not in DRAM. One caller at a time; it writes in a thread."""

    def __init__(
        self,
        directories: Sequence[Path],
        shape: PageShape,
        blocks: int,
        buffer: core.Buffer,
        direct: bool = True,
    ) -> None:
        """In the first of `directories` that takes it; `buffer` has the slots, from byte 0 on.

        `NotEnoughSpace` where the disk could not take all pages, `CannotCreate` where none of the
        directories takes a file.
        """
        self._shape, self._blocks = shape, blocks
        self._buffer, self._memory = buffer, buffer.array()
        self.nbytes = shape.block_pages * blocks * shape.page_bytes
        self.directory, self._file = _create(directories, self.nbytes)
        self._id = os.urandom(16)
        self._sums = np.zeros((2, shape.block_pages * blocks), np.uint32)
        try:
            self._reader = _open_reader(self._file.fileno(), direct)
            self._direct_writes = direct and self._set_direct(True)
        except BaseException:
            self._file.close()
            raise
        self.bytes_written = 0
        self.write_times = NotedTimes()
        self._last_stats: dict[str, Any] = {}
        self._jobs: queue.SimpleQueue[PageWrite | None] = queue.SimpleQueue()
        self._done: deque[PageWrite] = deque()
        self._changed = threading.Condition()
        self._writer = threading.Thread(target=self._write_jobs, name="kv-writer", daemon=True)
        self._writer.start()

    @property
    def name(self) -> str:
        """The file, for people: it has no path."""
        return f"{self.directory}, scratch file of keys and values"

    @property
    def bytes_read(self) -> int:
        """Bytes that were read so far."""
        return int(self.stats()["bytes_read"])

    def stats(self) -> dict[str, Any]:
        """The reader's counters since the file was made; after `close`, those at the end."""
        return self._last_stats or self._reader.stats()

    @property
    def timed(self) -> dict[str, TimedTransfers]:
        """What notes when pages are read and written, by the names of their lanes in a trace."""
        return {"kv read": self._reader, "kv write": self.write_times}

    @functools.cached_property
    def _storage(self) -> dict[str, Any]:
        return describe_storage(self.directory)

    @property
    def cautions(self) -> list[str]:
        """Sentences about what makes this file a bad place; may be empty."""
        storage, found = self._storage, []
        if storage["filesystem"] in ("tmpfs", "ramfs"):
            found.append(
                f"keys and values go to {self.directory}, which is in memory itself: --kv-memory"
                " saves nothing; name a directory on a disk by --kv-dir"
            )
        elif storage["network"]:
            found.append(
                f"keys and values go to {self.directory} on a network disk, which is slow; name a"
                " directory on a disk of this machine by --kv-dir"
            )
        elif not (self._reader.direct and self._direct_writes):
            found.append(f"keys and values in {self.directory} go through the page cache")
        return found

    def write(self, pages: Pages, slots: NDArray[np.int64]) -> None:
        """Begin to write pages from their slots, which must not change until they are `written`."""
        order = np.argsort(pages)
        self._jobs.put(PageWrite(pages[order], slots[order]))

    def written(self, wait: bool) -> list[PageWrite]:
        """Those that ended since the last call; `wait` for one where there is none."""
        with self._changed:
            while wait and not self._done:
                self._changed.wait()
            found = list(self._done)
            self._done.clear()
        return found

    def write_failed(self, write: PageWrite) -> CannotCreate:
        """The error of ours for a write that failed."""
        error = write.error
        assert error is not None
        where = self._where(write.failed_page)
        if error.errno in _FULL:
            return NotEnoughSpace(
                f"{where}: the disk is full; free some space and ask again, or {_ADVICE}"
            )
        return CannotCreate(
            f"{where}: {error.strerror or error}. What was computed stays; check the disk, or"
            f" {_ADVICE}"
        )

    def submit(
        self, pages: Pages, destinations: NDArray[np.int64], part: int | None = None
    ) -> PageRead:
        """Begin to read pages to byte positions of the buffer, for `wait`."""
        shape = self._shape
        offsets, length = pages * shape.page_bytes, shape.page_bytes
        if part is not None:
            offsets, length = offsets + part * shape.part_bytes, shape.part_bytes
        ticket = self._reader.submit(offsets, length, self._buffer, destinations)
        return PageRead(int(ticket), pages, destinations, part)

    def wait(self, read: PageRead) -> None:
        """Until the pages are there and right; `ReadFailed` if not. A wrong one is read again."""
        with self._read_errors(read.pages):
            self._reader.wait(read.ticket)
        wrong = self._wrong(read)
        if not len(wrong):
            return
        # What passed through memory may be right when it is read again.
        again = self.submit(read.pages[wrong], read.destinations[wrong], read.part)
        with self._read_errors(again.pages):
            self._reader.wait(again.ticket)
        still = self._wrong(again)
        if len(still):
            raise ReadFailed(
                f"{self._where(int(again.pages[still[0]]))}: a page is not what was written"
                f" ({len(still)} of {len(read.pages)} are wrong). The disk or the memory is"
                f" damaged; the answer so far is right. Ask again, and {_ADVICE}"
            )

    def abandon(self, read: PageRead) -> None:
        """Wait until nothing arrives any more of a read that nobody wants."""
        with contextlib.suppress(OSError, EOFError, ValueError):
            self._reader.wait(read.ticket)

    def close(self) -> None:
        """End the thread and give the space back."""
        if self._file.closed:
            return
        self._jobs.put(None)
        self._writer.join()
        self._last_stats = self.stats()
        self._reader.close()
        self._file.close()
        del self._buffer, self._memory

    def _wrong(self, read: PageRead) -> NDArray[np.intp]:
        """Which of the pages that were read do not have their checksums."""
        wrong = np.zeros(len(read.pages), bool)
        for part in range(2) if read.part is None else (read.part,):
            begins = read.destinations
            if read.part is None:
                begins = begins + part * self._shape.part_bytes
            wrong |= self._checksums(read.pages, begins, part) != self._sums[part, read.pages]
        return np.flatnonzero(wrong)

    def _checksums(self, pages: Pages, begins: NDArray[np.int64], part: int) -> NDArray[np.uint32]:
        """Of a part of each of the pages, whose first byte in memory is in `begins`."""
        part_bytes, numbers = self._shape.part_bytes, pages.astype(np.uint32)
        return core.bundle_checksums(self._memory, begins, part_bytes, self._id, part, numbers)

    def _write_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._write(job)
            except OSError as error:
                if self._direct_writes and error.errno in _NO_DIRECT:
                    self._direct_writes = self._set_direct(False)
                    self._jobs.put(job)
                    continue
                job.error = error
            with self._changed:
                self._done.append(job)
                self._changed.notify()

    def _write(self, job: PageWrite) -> None:
        size = self._shape.page_bytes
        places = job.slots * size
        for part in range(2):
            begins = places + part * self._shape.part_bytes
            self._sums[part, job.pages] = self._checksums(job.pages, begins, part)
        at = 0
        while at < len(job.pages):
            job.failed_page = int(job.pages[at])
            near = job.pages[at : at + _PAGES_A_WRITE]
            count = int(np.argmin(np.append(near == near[0] + np.arange(len(near)), False)))
            vectors = [
                self._memory[place : place + size].data
                for place in places[at : at + count].tolist()
            ]
            begun_ns = now_ns()
            done = os.pwritev(self._file.fileno(), vectors, job.failed_page * size)
            if done < size:  # not one whole page: the disk is full, or about to say what is wrong
                done = os.pwrite(self._file.fileno(), vectors[0], job.failed_page * size)
                if done < size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.write_times.note(begun_ns, now_ns())
            at += done // size
            self.bytes_written += done // size * size

    def _set_direct(self, wanted: bool) -> bool:
        """Whether writes are direct from now on: where the file system and its disk take such."""
        flag, file = getattr(os, "O_DIRECT", 0), self._file.fileno()
        if not self._reader.direct or not flag or self._shape.page_bytes % self._reader.alignment:
            return False
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(file, fcntl.F_SETFL, flags | flag if wanted else flags & ~flag)
        except OSError as error:
            if error.errno not in _NO_DIRECT:
                raise
            return False
        return wanted

    @contextlib.contextmanager
    def _read_errors(self, pages: Pages) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError) as error:
            # A cancelled read has no errno; a device that gives EINTR for ever has one.
            if isinstance(error, InterruptedError) and error.errno is None:
                raise Cancelled("stopped while reading") from error
            raise ReadFailed(
                f"{self._where(int(pages[0]))}: keys and values cannot be read back ({error})."
                f" Check the disk, then ask again, and {_ADVICE}"
            ) from error

    def _where(self, page: int) -> str:
        layer = page // self._blocks // self._shape.kv_heads
        return f"{self.name}, layer {layer}, offset {page * self._shape.page_bytes}"


def _create(directories: Sequence[Path], nbytes: int) -> tuple[Path, FileIO]:
    """A file of `nbytes`, all of them a hole, that has no name any more, and where it is."""
    refused: list[str] = []
    for directory in directories:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(directory).free
            if free < nbytes:
                refused.append(
                    f"{directory} has {format_bytes(free)} free of the {format_bytes(nbytes)} that"
                    " keys and values may take"
                )
                continue
            # Where the system can, it never has a name; else the name goes at once.
            file = tempfile.TemporaryFile(  # noqa: SIM115
                prefix=".flashllm-kv-", dir=directory, buffering=0
            )
        except OSError as error:
            refused.append(f"{directory}: {error.strerror or error}")
            continue
        try:
            os.ftruncate(file.fileno(), nbytes)
        except OSError as error:
            file.close()
            refused.append(f"{directory}: {error.strerror or error}")
            continue
        return directory, file
    lacks_space = any(" free of the " in reason for reason in refused)
    kind = NotEnoughSpace if lacks_space else CannotCreate
    raise kind(f"no place for keys and values: {'; '.join(refused)}. {_ADVICE.capitalize()}")


def _open_reader(file: int, direct: bool) -> core.Reader:
    """A reader of a file that is open and has no path."""
    return core.Reader(
        f"/dev/fd/{file}",
        direct="optional" if direct else "disabled",
        threads=PAGE_READS,
        backend=core.IO_BACKEND,
    )
