"""Large arrays of floats, whose memory is used again.

The C library maps a block of a mebibyte and more for itself and gives it back when it is freed
(`system.malloc`), so that its heap stays flat. But then each such array is memory that is touched
for the first time, and the vectors of a prompt are a dozen of them in each layer. Here a block
stays after its last array, for the next one, within what models that are open have in their plans,
until somebody gives it back: a decoder does with an answer's first token.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Block = NDArray[np.uint8]

LEAST_BYTES = 1 << 20
"""Smaller arrays come from the C library's heap, which uses memory again by itself."""
_FIT = 2
"""A block is used for arrays of at least this part of its size, as long as there is room."""


class LargeArrays:
    """Blocks of memory and the arrays in them; one for a process, as its heap is."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # an array may end wherever garbage is collected
        self._free: list[Block] = []
        self._used_bytes = 0
        self._limits: list[int] = []

    @contextlib.contextmanager
    def kept(self, limit_bytes: int) -> Iterator[None]:
        """Within it free blocks are kept, up to so many bytes together with those in use."""
        with self._lock:
            self._limits.append(limit_bytes)
        try:
            yield
        finally:
            with self._lock:
                self._limits.remove(limit_bytes)
            self._trim()

    @property
    def kept_bytes(self) -> int:
        """In blocks that no array is in."""
        return sum(len(block) for block in self._free)

    def empty(self, *shape: int) -> Floats:
        """An array of floats that are not set; its memory is kept once nothing refers to it."""
        nbytes = 4 * math.prod(shape)
        if nbytes < LEAST_BYTES:
            return np.empty(shape, np.float32)
        block = np.asarray(_Lease(self, self._take(nbytes)))
        return block[:nbytes].view(np.float32).reshape(shape)

    def zeros(self, *shape: int) -> Floats:
        """An array of zeros."""
        if 4 * math.prod(shape) < LEAST_BYTES:
            return np.zeros(shape, np.float32)
        array = self.empty(*shape)
        array.fill(0.0)
        return array

    def _trim(self) -> None:
        """Gives back the blocks that no array is in, but those that may still be kept."""
        with self._lock:
            limit = max(self._limits, default=0)
            while self._free and self._used_bytes + self.kept_bytes > limit:
                self._free.pop(0)

    def give_back(self) -> None:
        """Gives back all blocks that no array is in."""
        with self._lock:
            self._free.clear()

    def _take(self, nbytes: int) -> Block:
        with self._lock:
            block = self._best(nbytes)
            if block is None:
                limit = max(self._limits, default=0)
                while self._free and self._used_bytes + self.kept_bytes + nbytes > limit:
                    self._free.pop(0)
                block = np.empty(nbytes, np.uint8)
            self._used_bytes += len(block)
            return block

    def _best(self, nbytes: int) -> Block | None:
        """The smallest free block that fits, taken out of the free ones; None where none does."""
        fitting = [i for i, block in enumerate(self._free) if nbytes <= len(block) <= _FIT * nbytes]
        if not fitting:
            return None
        return self._free.pop(min(fitting, key=lambda i: len(self._free[i])))

    def end(self, block: Block) -> None:
        """To be called when nothing refers to an array in this block any more."""
        with self._lock:
            self._used_bytes -= len(block)
            self._free.append(block)
            self._trim()


class _Lease:
    """What arrays in a block refer to: with the last of them it ends."""

    __slots__ = ("__array_interface__", "_block", "_of")

    def __init__(self, of: LargeArrays, block: Block) -> None:
        self._of, self._block = of, block
        self.__array_interface__: dict[str, Any] = block.__array_interface__

    def __del__(self) -> None:
        self._of.end(self._block)


LARGE_ARRAYS = LargeArrays()
"""Those of this process."""
