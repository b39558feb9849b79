"""Matrices in floats of eight bits with a scale for each square of 128 x 128 (DeepSeek's).

`NAME.weight` is f8_e4m3 [out, in] and `NAME.weight_scale_inv`, f32 or bf16, has a number for each
square; the last ones are cut off by the edges. Shown as one tensor of blocks, each a scale in f32
and 32 weights. Source: transformers, `integrations/finegrained_fp8.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from flashllm.dtypes import GROUP
from flashllm.errors import TensorMismatch

from .encoding import widen
from .paired_blocks import whole_blocks
from .parts import ReadPart
from .tensor import SourceTensor

SIDE = 128
"""Rows and columns of a square, as `quantization_config` has to say."""
_FP8 = "f8_e4m3"
_SCALES = "_scale_inv"
_SCALE_BYTES = 4
_BLOCK_BYTES = _SCALE_BYTES + GROUP


@dataclass(frozen=True, slots=True)
class ScaledSquares:
    """The weights of a matrix, and the scales of its squares."""

    weights: SourceTensor
    scales: SourceTensor

    @property
    def parts(self) -> tuple[SourceTensor, ...]:
        """Both."""
        return self.weights, self.scales

    @property
    def together(self) -> SourceTensor:
        """By the name of the weights."""
        weights = self.weights
        return SourceTensor(
            name=weights.name,
            dtype="fp8",
            shape=weights.shape,
            file=weights.file,
            offset=weights.offset,
            nbytes=weights.nbytes // GROUP * _BLOCK_BYTES,
        )

    def read_into(self, buffer: memoryview, start: int, read: ReadPart) -> None:
        """A range of the weights, and the lines of squares that it lies in."""
        first, count = whole_blocks(buffer, start, _BLOCK_BYTES)
        blocks = np.empty((count, _BLOCK_BYTES), np.uint8)
        weights = np.empty((count, GROUP), np.uint8)
        read(weights.reshape(-1).data, self.weights, first * GROUP)
        blocks[:, _SCALE_BYTES:] = weights
        rows, columns = np.divmod(np.arange(first, first + count), self.weights.shape[1] // GROUP)
        first_line, stop_line = int(rows[0]) // SIDE, int(rows[-1]) // SIDE + 1
        lines, width = self.scales.shape
        line_bytes = self.scales.nbytes // lines
        raw = np.empty((stop_line - first_line) * line_bytes, np.uint8)
        read(raw.data, self.scales, first_line * line_bytes)
        squares = widen(raw, self.scales.dtype).reshape(-1, width)
        scales = squares[rows // SIDE - first_line, columns * GROUP // SIDE]
        blocks[:, :_SCALE_BYTES] = scales.view(np.uint8).reshape(-1, _SCALE_BYTES)
        np.asarray(buffer)[:] = blocks.reshape(-1)


def find_squares(tensors: Mapping[str, SourceTensor], where: str) -> Iterator[ScaledSquares]:
    """Those among the tensors; `TensorMismatch` for weights that no scales fit."""
    for name, weights in tensors.items():
        if weights.dtype != _FP8:
            continue
        scales = tensors.get(f"{name}{_SCALES}")
        squares = tuple(-(-size // SIDE) for size in weights.shape)
        fits = scales is not None and scales.dtype in ("f32", "bf16") and scales.shape == squares
        if not fits or len(weights.shape) != 2 or weights.shape[1] % GROUP != 0:
            there = "absent" if scales is None else f"{scales.dtype} {list(scales.shape)}"
            raise TensorMismatch(
                f"{where}: tensor {name}{_SCALES} is {there}; {name.rpartition('.')[2]} is"
                f" {weights.dtype} {list(weights.shape)}, which needs a scale in f32 for each"
                f" square of {SIDE} x {SIDE}, and a multiple of {GROUP} columns"
            )
        assert scales is not None
        yield ScaledSquares(weights, scales)
