"""Encodings of weights: their names, and the bytes that a row or a tensor takes in each."""

from __future__ import annotations

import math
from typing import Literal, get_args

DType = Literal["f32", "f16", "bf16", "int8", "int4", "mxfp4"]
DTYPES: tuple[str, ...] = get_args(DType)
"""Encodings of weights. A row in int8, int4 or mxfp4 is whole groups, each with a scale."""
PREDICTOR_DTYPES = ("f16", "int8", "int4")
"""Encodings that predictors can be given."""
PREDICTOR_MATRIX_DTYPES = (*PREDICTOR_DTYPES, "f32")
"""Encodings that predictors' matrices may have; published ones may be in f32 too."""
DTYPE_BYTES: dict[str, int] = {"f32": 4, "f16": 2, "bf16": 2}
"""Bytes of a weight, in the encodings without groups: those of checkpoints."""
GROUP = 32
"""Weights that share a scale in the encodings by groups."""
SCALE_BYTES: dict[str, int] = {"int8": 2, "int4": 2, "mxfp4": 1}
"""Bytes of a scale: an f16, or in mxfp4 a power of two."""
GROUP_BYTES: dict[str, int] = {
    "int8": GROUP + SCALE_BYTES["int8"],
    "int4": GROUP // 2 + SCALE_BYTES["int4"],
    "mxfp4": GROUP // 2 + SCALE_BYTES["mxfp4"],
}
"""Bytes of a group with its scale."""


def row_bytes(dtype: str, columns: int) -> int:
    """Bytes of an encoded row of `weights` weights; the last group of a row is padded."""
    if dtype in GROUP_BYTES:
        return GROUP_BYTES[dtype] * -(-columns // GROUP)
    return DTYPE_BYTES[dtype] * columns


def row_scale_bytes(dtype: str, columns: int) -> int:
    """Bytes of all scales of an encoded row, which end it; for encodings by groups only."""
    return SCALE_BYTES[dtype] * -(-columns // GROUP)


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of an encoded matrix or vector."""
    return math.prod(shape[:-1]) * row_bytes(dtype, shape[-1])


def expert_bytes(dtype: str, d_model: int, d_ffn: int, *, bias: bool = False) -> int:
    """Bytes of an expert: gate and up [d_ffn, d_model], then down [d_model, d_ffn].

    With a `bias`, behind these the biases of gate, up and down, in f32.
    """
    biases = 2 * d_ffn + d_model if bias else 0
    matrices = 2 * d_ffn * row_bytes(dtype, d_model) + d_model * row_bytes(dtype, d_ffn)
    return matrices + biases * DTYPE_BYTES["f32"]
