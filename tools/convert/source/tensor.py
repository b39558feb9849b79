"""A tensor of a checkpoint, and the interface of a file of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor of the source: its name there, its type in lower case, its shape, its file.

    `offset` is where its bytes begin in the file; 0 if unknown.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    nbytes: int


class Shard(Protocol):
    """One file of weights."""

    def tensors(self) -> list[SourceTensor]:
        """What it holds."""

    def read_into(self, buffer: memoryview, name: str, start: int) -> None:
        """Fill `buffer` with the bytes of a tensor from its byte `start` on; from any thread."""

    def expect(self, name: str) -> None:
        """Have the bytes of a tensor fetched, where that can be done without waiting."""

    def check_unchanged(self) -> None:
        """`NotACheckpoint` when the file was written to since it was opened."""

    def close(self) -> None:
        """Close the file."""
