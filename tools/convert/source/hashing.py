"""SHA-256 of the source's files, by threads that follow a conversion.

A file is hashed in order, each part only after the conversion has used it for the last time: then
it is still in the page cache, if that is large enough, and comes from the disk once. After the hash
it leaves the cache. The conversion never waits for a hash before it has read everything, so tensors
may be in any order; a shortage of memory only costs a second read.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from flashllm.flash.manifest import FileRecord
from flashllm.progress import Progress

from ..phases import HASHING
from .files import RangeFile
from .tensor import SourceTensor

if TYPE_CHECKING:
    from typing import Self

BLOCK_BYTES = 4 << 20
"""Bytes read and hashed at a time; whole pages, since only these can leave the page cache."""
THREADS_MAX = 4
"""Files that are hashed at once: memory holds a block of each."""


class Hashing:
    """Hashes files while its block runs; `records` waits for them.

    `uses` contains a tensor as often as the conversion will use it, and `used` is called after each
    use. However the block ends, no thread is left.
    """

    def __init__(self, paths: Mapping[str, Path], uses: Iterable[SourceTensor] = ()) -> None:
        self._paths = paths
        tensors = list(uses)
        self._left = Counter(tensor.name for tensor in tensors)
        self._tensors = sorted(set(tensors), key=lambda tensor: tensor.offset)
        self._changed = threading.Condition()
        self._all_used = False
        self._stopped = threading.Event()
        self._done: SimpleQueue[int | BaseException] = SimpleQueue()
        self._sizes: list[int] = []
        self._records: dict[str, Future[FileRecord]] = {}
        self._cleanup = ExitStack()

    def used(self, tensor: SourceTensor) -> None:
        """One of the uses of a tensor is over."""
        with self._changed:
            self._left[tensor.name] -= 1
            self._changed.notify_all()

    def records(self, progress: Progress) -> dict[str, FileRecord]:
        """Size and hash of each file; raises what went wrong in reading one.

        Nothing of them is used any more. What is left to be hashed is a phase of `progress`.
        """
        self._use_no_more()
        blocks = sum(-(-size // BLOCK_BYTES) for size in self._sizes)
        # The last block counts as left, so that the phase always comes to its end.
        early = [self._next_done() for _ in range(min(self._done.qsize(), max(blocks - 1, 0)))]
        progress.start(HASHING, sum(self._sizes) - sum(early))
        # As many messages whatever the threads have done by now: one a block.
        for _ in early:
            progress.advance(0)
        for _ in range(blocks - len(early)):
            progress.advance(self._next_done())
        return {name: future.result() for name, future in self._records.items()}

    def _next_done(self) -> int:
        """Bytes of a block that was hashed; raises what went wrong instead."""
        done = self._done.get()
        if isinstance(done, BaseException):
            raise done
        return done

    def _hash(self, file: RangeFile, tensors: deque[SourceTensor]) -> FileRecord:
        """One file, behind the use of its `tensors`; each block puts a number or an error."""
        digest = hashlib.sha256()
        try:
            buffer = memoryview(bytearray(BLOCK_BYTES))
            for offset in range(0, file.size, BLOCK_BYTES):
                block = buffer[: min(BLOCK_BYTES, file.size - offset)]
                while tensors and tensors[0].offset < offset + len(block):
                    self._wait_for(tensors.popleft())
                if self._stopped.is_set():
                    break
                file.read_into(block, offset)
                digest.update(block)
                file.forget(offset, len(block))
                self._done.put(len(block))
            file.check_unchanged()
        except BaseException as problem:
            self._done.put(problem)
            raise
        return FileRecord(file.size, digest.hexdigest())

    def _wait_for(self, tensor: SourceTensor) -> None:
        """Until its last use is over, or nothing is used any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._all_used or self._left[tensor.name] <= 0)

    def _use_no_more(self) -> None:
        """Let the threads go on to the end."""
        with self._changed:
            self._all_used = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        # An interruption here must leave no thread either: it would wait for ever.
        with ExitStack() as begun:
            # All at once: a name may lead to another file by the time a thread is free.
            files = {n: begun.enter_context(RangeFile(path)) for n, path in self._paths.items()}
            self._sizes = [file.size for file in files.values()]
            threads = max(1, min(THREADS_MAX, os.cpu_count() or 1, len(files)))
            pool = ThreadPoolExecutor(threads, thread_name_prefix="hashing")
            begun.callback(self._end, pool)
            for name, file in files.items():
                tensors = deque(tensor for tensor in self._tensors if tensor.file == name)
                self._records[name] = pool.submit(self._hash, file, tensors)
            self._cleanup = begun.pop_all()
        return self

    def _end(self, pool: ThreadPoolExecutor) -> None:
        """Have the threads stop behind the block that they are at, and wait for them."""
        self._stopped.set()
        self._use_no_more()
        pool.shutdown(cancel_futures=True)

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()
