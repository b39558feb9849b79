"""Recorded rows: a layer's input at each token, and which of its neurons were active.

A row is the input in float16, then the packed active bits. Rows on disk are read by position and
never mapped, since pages of a map count as resident memory; small recordings are kept in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from flashllm.errors import ReadFailed

F16_MAX = 65504.0
BATCH_TOKENS = 512
# A layer recorded in fewer bytes is read once and kept: the demo's layers are 43 MB.
MEMORY_ROWS_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class RowShape:
    """Widths of one layer's rows."""

    d_model: int
    d_ffn: int

    @property
    def bits_bytes(self) -> int:
        """Bytes of one token's packed bits."""
        return (self.d_ffn + 7) // 8

    @property
    def row_bytes(self) -> int:
        """Bytes recorded of one token."""
        return 2 * self.d_model + self.bits_bytes


class Rows(Protocol):
    """Storage of rows."""

    def take(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Rows [n, row_bytes] of the tokens asked for, which ascend."""


class RowsInMemory:
    """Rows of a recording small enough to keep."""

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self._rows = rows

    def take(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """A copy of the rows."""
        return self._rows[tokens]


class RowsOnDisk:
    """Rows of a file; only those asked for are in memory."""

    def __init__(self, path: Path, row_bytes: int) -> None:
        self._path = path
        self._row_bytes = row_bytes
        self._descriptor = _open(path)

    def take(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Rows read one run of neighbours at a time."""
        rows = np.empty((len(tokens), self._row_bytes), np.uint8)
        starts = np.flatnonzero(np.diff(tokens, prepend=-2) != 1).tolist()
        for start, stop in zip(starts, [*starts[1:], len(tokens)], strict=True):
            self._read(int(tokens[start]) * self._row_bytes, rows[start:stop].data)
        return rows

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _read(self, offset: int, into: memoryview) -> None:
        view, done = into.cast("B"), 0
        while done < len(view):
            try:
                count = os.preadv(self._descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise ReadFailed(f"{self._path}: {error.strerror}") from error
            if count == 0:
                raise ReadFailed(
                    f"{self._path}: the recording ends too early; remove its directory and train "
                    "again"
                )
            done += count


@dataclass(frozen=True, slots=True)
class LayerData:
    """A run of one layer's recorded tokens."""

    rows: Rows
    shape: RowShape
    tokens: range

    @classmethod
    def of(cls, inputs: NDArray[np.float16], active: NDArray[np.bool_]) -> LayerData:
        """Inputs [tokens, d_model] and activity [tokens, d_ffn] that are in memory."""
        rows = RowsInMemory(pack_rows(inputs, active))
        return cls(rows, RowShape(inputs.shape[1], active.shape[1]), range(len(inputs)))

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, tokens: range) -> LayerData:
        """A run of its tokens, counted from its own first."""
        return LayerData(self.rows, self.shape, self.tokens[tokens.start : tokens.stop])

    def batch(self, where: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs as float32 and activity as booleans, of tokens counted from its own first."""
        rows = self.rows.take(where + self.tokens.start)
        return self._inputs(rows), unpack_active(self._bits(rows), self.shape.d_ffn)

    def sample(self, step: int) -> Iterator[torch.Tensor]:
        """Inputs [at most 512, d_model] in float32 of every `step`-th token."""
        where = np.arange(self.tokens.start, self.tokens.stop, step)
        for start in range(0, len(where), BATCH_TOKENS):
            yield self._inputs(self.rows.take(where[start : start + BATCH_TOKENS]))

    def chunks(self) -> Iterator[tuple[torch.Tensor, NDArray[np.uint8]]]:
        """All tokens in order: inputs [at most 512, d_model] and packed bits."""
        for start in range(self.tokens.start, self.tokens.stop, BATCH_TOKENS):
            stop = min(start + BATCH_TOKENS, self.tokens.stop)
            rows = self.rows.take(np.arange(start, stop))
            yield self._inputs(rows), self._bits(rows)

    def _inputs(self, rows: NDArray[np.uint8]) -> torch.Tensor:
        inputs = np.ascontiguousarray(rows[:, : 2 * self.shape.d_model]).view(np.float16)
        return torch.from_numpy(inputs.astype(np.float32))

    def _bits(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return rows[:, 2 * self.shape.d_model :]


def pack_rows(inputs: NDArray[np.float16], active: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Rows [tokens, row_bytes]."""
    bits = np.packbits(active, axis=1, bitorder="little")
    return np.concatenate([np.ascontiguousarray(inputs).view(np.uint8), bits], axis=1)


def unpack_active(bits: NDArray[np.uint8], d_ffn: int) -> torch.Tensor:
    """Packed bits as a boolean tensor [tokens, d_ffn]."""
    flags = np.unpackbits(bits, axis=1, count=d_ffn, bitorder="little")
    return torch.from_numpy(flags.view(np.bool_))


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ReadFailed(f"{path}: cannot read the recording: {error.strerror}") from error
