"""Tensors of a checkpoint as blocks of rows, each made alone, so that several threads can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flashllm.convert.source.encoding import narrow
from numpy.typing import NDArray

from .normals import generator, normals

BLOCK_VALUES = 1 << 19
"""In float32 about a core's cache: blocks of 16 MiB took three times as long."""
NUMPY_DTYPES = {"f32": np.float32, "f16": np.float16}

Rows = Callable[[int, int], NDArray[np.float32]]
"""Rows from the first on, so many: [count, width], or [count] of a vector."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its values are made when they are asked for, the same each time."""

    name: str
    shape: tuple[int, ...]
    rows: Rows
    """Values in float32, or already in the encoding of the file."""

    def blocks(self) -> list[tuple[int, int]]:
        """First row and number of rows of each block."""
        width = self.shape[1] if len(self.shape) > 1 else 1
        step = max(1, BLOCK_VALUES // width)
        return [(at, min(step, self.shape[0] - at)) for at in range(0, self.shape[0], step)]

    def encoded(self, first: int, count: int, dtype: str) -> NDArray[np.uint8]:
        """The bytes of some rows."""
        values = np.ascontiguousarray(self.rows(first, count)).reshape(-1)
        if values.dtype == NUMPY_DTYPES[dtype]:
            return values.view(np.uint8)
        return np.asarray(narrow(values, dtype))


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes tensors of plain kinds for one seed and one encoding."""

    seed: int
    dtype: str

    def random(
        self,
        name: str,
        shape: tuple[int, ...],
        deviation: float,
        *,
        blind: bool = False,
        still: bool = False,
        column: float | None = None,
    ) -> Tensor:
        """Normal values, which start another stream with each name.

        A `blind` matrix does not see the constant in column 0 of its input, a `still` one leaves
        that of its output as it is; `column` is put there.
        """
        stream = (self.seed, *name.encode())
        first_column = 0.0 if blind else column

        def rows(first: int, count: int) -> NDArray[np.float32]:
            random = generator(*stream, first)
            values = normals(random, (count, *shape[1:]), deviation, NUMPY_DTYPES[self.dtype])
            if first_column is not None:
                values[:, 0] = first_column
            if still and first == 0:
                values[0] = 0
            return values

        return Tensor(name, shape, rows)

    @staticmethod
    def given(name: str, values: NDArray[np.float32]) -> Tensor:
        """These values."""
        return Tensor(name, values.shape, lambda first, count: values[first : first + count])

    @staticmethod
    def constant(name: str, size: int, value: float) -> Tensor:
        """A vector of one value."""
        return Tensor(name, (size,), lambda _, count: np.full(count, value, np.float32))
