"""SHA-256 of the source's files, by threads beside the first part of a conversion.

The bundles' checksums are seeded with these hashes; resident weights need none of them and can be
written meanwhile. Read directly where the system can, so that nothing is pushed out of the page
cache by bytes that are looked at once.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from flashllm.flash.layout import FileRecord

from .files import RangeFile
from .progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Self

BLOCK_BYTES = 4 << 20
"""What is read and hashed at a time."""
THREADS_MAX = 4
"""Files that are hashed at once: memory holds a block of each."""


class Hashing:
    """Hashes files from its making on; `records` waits for them. A context manager.

    Whatever ends the block, no thread is left after it.
    """

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._sizes = {name: path.stat().st_size for name, path in paths.items()}
        self._done: SimpleQueue[int | BaseException] = SimpleQueue()
        self._stopped = threading.Event()
        threads = max(1, min(THREADS_MAX, os.cpu_count() or 1, len(paths)))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hashing")
        self._records: dict[str, Future[FileRecord]] = {
            name: self._pool.submit(self._hash, path) for name, path in paths.items()
        }

    @property
    def total_bytes(self) -> int:
        """Of all files together, as they were found."""
        return sum(self._sizes.values())

    def records(self, progress: Progress) -> dict[str, FileRecord]:
        """Size and hash of each file; raises what went wrong in reading one."""
        # As many messages whatever the threads have done by now: one a block.
        for _ in range(sum(-(-size // BLOCK_BYTES) for size in self._sizes.values())):
            done = self._done.get()
            if isinstance(done, BaseException):
                raise done
            progress.advance(done)
        return {name: future.result() for name, future in self._records.items()}

    def _hash(self, path: Path) -> FileRecord:
        """One file; a number or an error is put for each of its blocks."""
        digest = hashlib.sha256()
        try:
            # A mapping begins on a page, as direct reads need it.
            block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
            with RangeFile(path) as file:
                size, direct = file.size, file.read_directly()
                for offset in range(0, size, BLOCK_BYTES):
                    if self._stopped.is_set():
                        break
                    nbytes = min(BLOCK_BYTES, size - offset)
                    file.read_into(block, offset, nbytes)
                    digest.update(block[:nbytes])
                    if not direct:
                        file.forget(offset, nbytes)
                    self._done.put(nbytes)
        except BaseException as problem:
            self._done.put(problem)
            raise
        return FileRecord(size, digest.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)
