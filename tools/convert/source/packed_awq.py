"""Matrices in four bits as AWQ stores them: eight weights in a word, each group with a zero point.

`NAME.qweight` is i32 [in, out / 8], `NAME.qzeros` i32 [groups, out / 8], `NAME.scales` f16
[groups, out]; a weight is (q - z) * scale. Nibble j of a word belongs to column `COLUMN_OF[j]` of
its eight. Shown as one tensor [out, in] of blocks: 32 weights that share a scale in f16 and a zero
point of a byte, numbers as Q4_0 has them. q - z is -15 to 15, which bytes hold and four bits do
not. Source: AutoAWQ, `awq/utils/packing_utils.py`, version "gemm".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.dtypes import GROUP
from flashllm.errors import TensorMismatch

from .packed_int4 import (
    COLUMNS_PACKED,
    WORD_WEIGHTS,
    has_words_along_outputs,
    is_group,
    read_columns,
)
from .paired_blocks import NUMBER_BYTES, whole_blocks
from .parts import ReadPart
from .tensor import SourceTensor

COLUMN_OF = (0, 2, 4, 6, 1, 3, 5, 7)
_SCALE_BYTES = 2
_BLOCK_BYTES = _SCALE_BYTES + 1 + NUMBER_BYTES
_WORD_BYTES = 4
Raw = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PackedWithZeros:
    """The tensors of a matrix."""

    packed: SourceTensor
    scales: SourceTensor
    zeros: SourceTensor

    @property
    def parts(self) -> tuple[SourceTensor, ...]:
        """All of them."""
        return self.packed, self.scales, self.zeros

    @property
    def together(self) -> SourceTensor:
        """By the name that the matrix has where it is not packed."""
        inputs, words = self.packed.shape
        return SourceTensor(
            name=f"{self.packed.name.removesuffix(COLUMNS_PACKED)}.weight",
            dtype="awq",
            shape=(words * WORD_WEIGHTS, inputs),
            file=self.packed.file,
            offset=self.packed.offset,
            nbytes=words * WORD_WEIGHTS * inputs // GROUP * _BLOCK_BYTES,
        )

    def read_into(self, buffer: memoryview, start: int, read: ReadPart) -> None:
        """Of each line of words the columns that become the rows that are wanted."""
        first, count = whole_blocks(buffer, start, _BLOCK_BYTES)
        row_blocks = self.packed.shape[0] // GROUP
        stop_row = -(-(first + count) // row_blocks)
        first_word, stop_word = first // row_blocks // WORD_WEIGHTS, -(-stop_row // WORD_WEIGHTS)
        rows = slice(first_word * WORD_WEIGHTS, stop_word * WORD_WEIGHTS)
        numbers, zeros = (
            _numbers(read_columns(tensor, _WORD_BYTES, first_word, stop_word, read))
            for tensor in (self.packed, self.zeros)
        )
        scales = read_columns(self.scales, _SCALE_BYTES, rows.start, rows.stop, read)
        scales = scales.reshape(len(scales), -1, _SCALE_BYTES)
        blocks_of_group = row_blocks // len(zeros)
        groups = numbers.T.reshape(-1, row_blocks, GROUP)
        halves = groups[:, :, : GROUP // 2] | groups[:, :, GROUP // 2 :] << 4
        blocks = np.concatenate(
            [
                np.repeat(scales.swapaxes(0, 1), blocks_of_group, axis=1),
                np.repeat(zeros.T, blocks_of_group, axis=1)[:, :, None],
                halves,
            ],
            axis=2,
        ).reshape(-1, _BLOCK_BYTES)
        inside = first - rows.start * row_blocks
        np.asarray(buffer)[:] = blocks[inside : inside + count].reshape(-1)


def _numbers(words: Raw) -> Raw:
    """Words as bytes [lines, words * 4] as numbers [lines, words * 8], in the order of columns."""
    halves = np.stack([words & 15, words >> 4], axis=-1).reshape(len(words), -1, WORD_WEIGHTS)
    found = np.empty_like(halves)
    found[:, :, COLUMN_OF] = halves
    return found.reshape(len(words), -1)


def find_awq(tensors: Mapping[str, SourceTensor], where: str) -> Iterator[PackedWithZeros]:
    """Those among the tensors; `TensorMismatch` for numbers that scales or zeros do not fit."""
    for name, packed in tensors.items():
        if not name.endswith(COLUMNS_PACKED) or not has_words_along_outputs(tensors, packed):
            continue
        stem = name.removesuffix(COLUMNS_PACKED)
        scales, zeros = tensors[f"{stem}.scales"], tensors.get(f"{stem}.qzeros")
        inputs, words = packed.shape
        groups = scales.shape[0]
        wanted = ("i32", (groups, words))
        if (
            scales.dtype != "f16"
            or zeros is None
            or (zeros.dtype, zeros.shape) != wanted
            or inputs % WORD_WEIGHTS
            or not is_group(inputs // WORD_WEIGHTS, groups)
        ):
            there = "absent" if zeros is None else f"{zeros.dtype} {list(zeros.shape)}"
            raise TensorMismatch(
                f"{where}: tensor {stem}.qzeros is {there}, and {stem}.scales {scales.dtype}"
                f" {list(scales.shape)}, which do not fit qweight {list(packed.shape)} of AWQ with"
                f" groups of a multiple of {GROUP}"
            )
        yield PackedWithZeros(packed, scales, zeros)
