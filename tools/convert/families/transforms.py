"""Tensors of a checkpoint as we store them: parts of fused ones, columns as rows, plus one.

A part is rows of a matrix that repeat in even steps, so one pair of numbers describes where the
heads of a fused projection lie. What is read at a time is a block; only a matrix that is to be
transposed is held whole, in its own encoding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flashllm.dtypes import DTYPE_BYTES
from flashllm.spec import ModelSpec

from ..source.blocks import decoded_columns, is_block_type
from ..source.checkpoint import Checkpoint
from ..source.encoding import encode
from ..source.files import BLOCK_BYTES
from ..source.parallel import in_order
from ..source.tensor import SourceTensor

Transform = Literal["as is", "transpose", "plus one", "values"]
"""Values: single numbers of a tensor, in the order in which it has them, count as rows."""
Part = Literal[
    "all",
    "first half",
    "second half",
    "q of groups",
    "k of groups",
    "v of groups",
    "q of stack",
    "k of stack",
    "v of stack",
]

# A square of this many values stays in cache while it is turned.
_TILE = 64


@dataclass(frozen=True, slots=True)
class Rows:
    """`groups` runs of `count` rows; the first begins at row `first`, each `stride` later."""

    first: int
    count: int
    stride: int
    groups: int

    @property
    def total(self) -> int:
        """How many rows there are."""
        return self.count * self.groups

    def source(self, row: int) -> int:
        """The row of the tensor that is ours of that number."""
        group, inside = divmod(row, self.count)
        return self.first + group * self.stride + inside

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """First row in the tensor, and how many follow it, for ours from `start` to `stop`."""
        while start < stop:
            group, inside = divmod(start, self.count)
            taken = min(self.count - inside, stop - start)
            yield self.first + group * self.stride + inside, taken
            start += taken


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a tensor of the source, and what becomes of them."""

    tensor: SourceTensor
    rows: Rows
    transform: Transform = "as is"
    stack: int = 0
    """Where the tensor is a stack of matrices to be transposed: which of them."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the source; a row of a vector is a number."""
        shape = self.tensor.shape
        if self.transform == "values":
            return self.tensor.nbytes // math.prod(shape)
        if self.transform == "transpose" and len(shape) == 3:
            return self.tensor.nbytes // (shape[0] * shape[-1])
        return self.tensor.nbytes // (math.prod(shape[:-1]) if len(shape) > 1 else shape[0])

    @property
    def columns(self) -> int:
        """Values of one row."""
        shape = self.tensor.shape
        if self.transform == "transpose":
            return shape[-2]
        return shape[-1] if len(shape) > 1 and self.transform != "values" else 1


def rows_of(part: Part, n_rows: int, spec: ModelSpec) -> Rows:
    """The rows that a part of a tensor of `n_rows` rows consists of.

    Groups: as many as there are key heads, each with its query heads, then its key, its value.
    Stack: all queries, all keys, all values.
    """
    dims, kv_heads = spec.head_dim, spec.n_kv_heads
    shared = spec.n_heads // kv_heads
    group = (shared + 2) * dims
    queries, keys = spec.n_heads * dims, kv_heads * dims
    parts: dict[Part, tuple[int, int, int, int]] = {
        "all": (0, n_rows, n_rows, 1),
        "first half": (0, n_rows // 2, n_rows, 1),
        "second half": (n_rows // 2, n_rows // 2, n_rows, 1),
        "q of groups": (0, shared * dims, group, kv_heads),
        "k of groups": (shared * dims, dims, group, kv_heads),
        "v of groups": ((shared + 1) * dims, dims, group, kv_heads),
        "q of stack": (0, queries, n_rows, 1),
        "k of stack": (queries, keys, n_rows, 1),
        "v of stack": (queries + keys, keys, n_rows, 1),
    }
    return Rows(*parts[part])


def block_starts(piece: Piece) -> range:
    """The first rows of the blocks that a piece is read in."""
    return range(0, piece.rows.total, _block_rows(piece))


def encoded_block(
    checkpoint: Checkpoint, piece: Piece, first: int, dtype: str
) -> NDArray[np.uint8]:
    """The block of a piece that begins at row `first`, in the encoding `dtype`."""
    tensor, columns = piece.tensor, piece.columns
    place = functools.partial(_format_row_place, piece, first, columns)
    count = min(_block_rows(piece), piece.rows.total - first)
    source = tensor.dtype
    if piece.transform == "transpose":
        raw = _turned(checkpoint, piece)
    else:
        raw = read_rows(checkpoint, piece, first, count)
    if piece.transform == "plus one":
        values = encode(raw, source, "f32", tensor.name, place=place).view(np.float32)
        raw, source = (values + np.float32(1)).view(np.uint8), "f32"
    return encode(raw, source, dtype, tensor.name, columns, place)


def _block_rows(piece: Piece) -> int:
    if piece.transform == "transpose":
        return piece.rows.total  # a matrix is read once, and held whole
    return min(max(BLOCK_BYTES // piece.row_bytes, 1), piece.rows.total)


def _format_row_place(piece: Piece, first: int, columns: int, value: int) -> str:
    """Where a value of a block lies that begins at row `first` of a piece."""
    if piece.transform == "transpose":
        column, row = divmod(value, columns)
        return (
            f" in row {row} and column {piece.rows.source(column)} of matrix {piece.stack}, in"
            f" {piece.tensor.file}"
        )
    return f" in row {piece.rows.source(first + value // columns)}, in {piece.tensor.file}"


def read_rows(checkpoint: Checkpoint, piece: Piece, first: int, count: int) -> NDArray[np.uint8]:
    """Rows `first` to `first + count` of a piece, as one run of bytes."""
    content = np.empty(count * piece.row_bytes, dtype=np.uint8)
    if piece.rows.count == 1 and count > 1:
        # Single rows of which others lie between: read together, and left out here.
        between = piece.rows.stride
        near = np.empty((count, between, piece.row_bytes), dtype=np.uint8)
        whole = near.reshape(-1)[: ((count - 1) * between + 1) * piece.row_bytes]
        start = piece.rows.source(first) * piece.row_bytes
        checkpoint.read_into(whole.data, piece.tensor, start)
        content.reshape(count, -1)[:] = near[:, 0]
        return content
    filled = 0
    for start, taken in piece.rows.runs(first, first + count):
        nbytes = taken * piece.row_bytes
        part = content[filled : filled + nbytes]
        checkpoint.read_into(part.data, piece.tensor, start * piece.row_bytes)
        filled += nbytes
    return content


def read_whole(checkpoint: Checkpoint, tensor: SourceTensor) -> NDArray[np.uint8]:
    """All bytes of a tensor, read by several threads."""
    content = np.empty(tensor.nbytes, dtype=np.uint8)

    def read(start: int) -> None:
        checkpoint.read_into(content[start : start + BLOCK_BYTES].data, tensor, start)

    for _ in in_order(read, range(0, tensor.nbytes, BLOCK_BYTES)):
        pass
    return content


def _turned(checkpoint: Checkpoint, piece: Piece) -> NDArray[np.uint8]:
    """The columns of one matrix of a stack that are our rows, as one run of bytes."""
    tensor, rows = piece.tensor, piece.rows
    item = np.dtype(f"u{DTYPE_BYTES[tensor.dtype]}")
    matrix = np.empty(tensor.shape[-2:], dtype=item)
    checkpoint.read_into(
        matrix.reshape(-1).view(np.uint8).data, tensor, piece.stack * matrix.nbytes
    )
    step = 1 if rows.groups == 1 else rows.stride
    ours = matrix[:, rows.first : rows.first + (rows.total - 1) * step + 1 : step]
    return np.ascontiguousarray(ours.T).reshape(-1).view(np.uint8)


def columns_dtype(tensor: SourceTensor) -> str:
    """The encoding of columns that become rows: f32 where the tensor has blocks along its rows."""
    return "f32" if is_block_type(tensor.dtype) else tensor.dtype


def columns(
    whole: NDArray[np.uint8], tensor: SourceTensor, first: int, count: int
) -> NDArray[np.uint8]:
    """Columns `first` to `first + count` of a matrix, each as a row, as one run of bytes.

    They are encoded as `columns_dtype` says.
    """
    unsigned = np.dtype(f"u{DTYPE_BYTES[columns_dtype(tensor)]}")
    if is_block_type(tensor.dtype):
        matrix = decoded_columns(whole, tensor, first, count).view(unsigned)
    else:
        matrix = whole.view(unsigned).reshape(tensor.shape)[:, first : first + count]
    turned = np.empty((count, tensor.shape[0]), dtype=unsigned)
    for start in range(0, tensor.shape[0], _TILE):
        turned[:, start : start + _TILE] = matrix[start : start + _TILE].T
    return turned.reshape(-1).view(np.uint8)
