"""A file in GGUF as a shard of a checkpoint: its tensors whole, in parts, or with rows in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .files import RangeFile, source_file
from .gguf_header import GgufTensor
from .tensor import SourceTensor


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor of a checkpoint in a tensor of the file: all of it, or one of its outermost slices.

    Where `heads` is not 0, the rows of each head lie in pairs, (0, n/2), (1, n/2 + 1), ..., and are
    put back into the order 0, 1, ...: whole rows, so that no weight changes.
    """

    tensor: GgufTensor
    name: str
    part: int | None = None
    heads: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Its own."""
        return self.tensor.shape if self.part is None else self.tensor.shape[1:]

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return (
            self.tensor.nbytes if self.part is None else self.tensor.nbytes // self.tensor.shape[0]
        )

    @property
    def offset(self) -> int:
        """Where its bytes begin in the file."""
        return self.tensor.offset + (self.part or 0) * self.nbytes


class GgufShard:
    """One file, whose tensors are given by views of it."""

    def __init__(self, directory: Path, name: str, views: Iterable[TensorView]) -> None:
        self._name = name
        self._views: Mapping[str, TensorView] = {view.name: view for view in views}
        self._file = RangeFile(source_file(directory, name))

    def tensors(self) -> list[SourceTensor]:
        """What the views show."""
        return [
            SourceTensor(
                view.name, view.tensor.dtype, view.shape, self._name, view.offset, view.nbytes
            )
            for view in self._views.values()
        ]

    def read_into(self, buffer: memoryview, name: str, start: int) -> None:
        """A positioned read; of heads whose rows are put in order, whole heads."""
        view = self._views[name]
        assert start + len(buffer) <= view.nbytes
        if not view.heads:
            self._file.read_into(buffer, view.offset + start)
            return
        head_bytes = view.nbytes // view.heads
        first, last = start // head_bytes, -(-(start + len(buffer)) // head_bytes)
        raw = np.empty((last - first) * head_bytes, np.uint8)
        self._file.read_into(raw.data, view.offset + first * head_bytes)
        row_bytes = view.nbytes // view.shape[0]
        pairs = raw.reshape(last - first, -1, 2, row_bytes)
        ordered = pairs.swapaxes(1, 2).reshape(-1)
        inside = start - first * head_bytes
        np.asarray(buffer)[:] = ordered[inside : inside + len(buffer)]

    def expect(self, name: str) -> None:
        """Into the page cache."""
        view = self._views[name]
        self._file.expect(view.offset, view.nbytes)

    def check_unchanged(self) -> None:
        """By size and time of the last change."""
        self._file.check_unchanged()

    def close(self) -> None:
        """Close the file; what was read ahead of it leaves the page cache, too."""
        self._file.forget(0, self._file.size)
        self._file.close()
