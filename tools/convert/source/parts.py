"""A tensor that a checkpoint stores as several: numbers in one, scales in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .tensor import SourceTensor

ReadPart = Callable[[memoryview, SourceTensor, int], None]
"""Fills a buffer with the bytes of a stored tensor from a byte of it on."""


class StoredInParts(Protocol):
    """One tensor, and those that it is made of."""

    @property
    def parts(self) -> tuple[SourceTensor, ...]:
        """As the checkpoint stores them."""

    @property
    def together(self) -> SourceTensor:
        """What they are shown as."""

    def read_into(self, buffer: memoryview, start: int, read: ReadPart) -> None:
        """Fill `buffer` with what they are together from its byte `start` on, whole blocks.

        `TensorMismatch` where that does not hold what the parts hold.
        """
