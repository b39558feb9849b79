"""Matrices in four bits as compressed-tensors and GPTQ store them: eight weights in a word.

Both hold weight q as q + 8, and a scale for groups of weights along the inputs. Shown as one
tensor [out, in] of Q4_0 blocks: 32 weights that share a scale in f16. A group is one or several of
them, so that each gets the scale of its group, and no weight is rounded.

compressed-tensors ("pack-quantized"): `NAME.weight_packed` is i32 [out, in / 8], weight j of a word
in bits 4j; `NAME.weight_scale` is [out, groups] in f16, bf16 or f32; `NAME.weight_shape` repeats
the shape. Source: compressed-tensors, `compressors/pack_quantized/`.

GPTQ: `NAME.qweight` is i32 [in / 8, out], words along the inputs; `NAME.scales` is f16
[groups, out]; `NAME.qzeros` is i32 [groups, out / 8], each of its numbers one less than the zero
point, so 7; `NAME.g_idx` [in] is the group of each input. Source: AutoGPTQ, `qlinear_cuda.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.dtypes import GROUP
from flashllm.errors import TensorMismatch

from .encoding import widen
from .paired_blocks import NUMBER_BYTES, interleave, whole_blocks
from .parts import ReadPart
from .tensor import SourceTensor

ROWS_PACKED, COLUMNS_PACKED = ".weight_packed", ".qweight"
_SCALE_BYTES = 2
_BLOCK_BYTES = _SCALE_BYTES + NUMBER_BYTES
WORD_WEIGHTS = 8
_ZEROS = 0x88
"""A byte of two weights that are 0."""
_ZERO_POINTS = 0x77777777
"""A word of `qzeros` where all zero points are 8."""
Raw = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """As compressed-tensors has them; `shape` is that of the matrix."""

    packed: SourceTensor
    scales: SourceTensor
    others: tuple[SourceTensor, ...]

    @property
    def parts(self) -> tuple[SourceTensor, ...]:
        """Numbers, scales, and the shape if it is there."""
        return self.packed, self.scales, *self.others

    @property
    def together(self) -> SourceTensor:
        """By the name that the matrix has where it is not packed."""
        rows, words = self.packed.shape
        return _together(self.packed, ROWS_PACKED, (rows, words * WORD_WEIGHTS))

    def read_into(self, buffer: memoryview, start: int, read: ReadPart) -> None:
        """A range of the words, and of the scales."""
        first, count = whole_blocks(buffer, start, _BLOCK_BYTES)
        numbers = np.empty((count, NUMBER_BYTES), np.uint8)
        read(numbers.reshape(-1).data, self.packed, first * NUMBER_BYTES)
        rows, groups = self.scales.shape
        blocks_of_group = rows * self.together.shape[1] // GROUP // (rows * groups)
        first_group, last_group = first // blocks_of_group, (first + count - 1) // blocks_of_group
        value_bytes = self.scales.nbytes // (rows * groups)
        raw = np.empty((last_group + 1 - first_group) * value_bytes, np.uint8)
        read(raw.data, self.scales, first_group * value_bytes)
        scales = np.repeat(widen(raw, self.scales.dtype), blocks_of_group)
        inside = first - first_group * blocks_of_group
        _fill(buffer, numbers, scales[inside : inside + count], self.scales.name)


@dataclass(frozen=True, slots=True)
class PackedColumns:
    """As GPTQ has them."""

    packed: SourceTensor
    scales: SourceTensor
    zeros: SourceTensor
    group_of: SourceTensor | None

    @property
    def parts(self) -> tuple[SourceTensor, ...]:
        """All of them."""
        others = () if self.group_of is None else (self.group_of,)
        return self.packed, self.scales, self.zeros, *others

    @property
    def together(self) -> SourceTensor:
        """By the name that the matrix has where it is not packed."""
        words, rows = self.packed.shape
        return _together(self.packed, COLUMNS_PACKED, (rows, words * WORD_WEIGHTS))

    def read_into(self, buffer: memoryview, start: int, read: ReadPart) -> None:
        """Of each line of words the columns that become the rows that are wanted."""
        first, count = whole_blocks(buffer, start, _BLOCK_BYTES)
        self._check(read)
        row_blocks = self.together.shape[1] // GROUP
        first_row, stop_row = first // row_blocks, -(-(first + count) // row_blocks)
        words = read_columns(self.packed, 4, first_row, stop_row, read).view(np.uint32)
        numbers = np.ascontiguousarray(words.T).view(np.uint8).reshape(-1, NUMBER_BYTES)
        raw_scales = read_columns(self.scales, 2, first_row, stop_row, read).view(np.float16)
        blocks_of_group = row_blocks // self.scales.shape[0]
        scales = np.repeat(raw_scales.T, blocks_of_group, axis=1).reshape(-1)
        wanted = slice(first - first_row * row_blocks, first - first_row * row_blocks + count)
        _fill(buffer, numbers[wanted], scales[wanted].astype(np.float32), self.scales.name)

    def _check(self, read: ReadPart) -> None:
        """`TensorMismatch` for other zero points, or inputs in another order: small tensors."""
        zeros = np.empty(self.zeros.nbytes, np.uint8)
        read(zeros.data, self.zeros, 0)
        if not (zeros.view(np.uint32) == _ZERO_POINTS).all():
            raise TensorMismatch(
                f"tensor {self.zeros.name}: zero points other than 8; of GPTQ symmetric weights"
                " alone can be taken over: take another file, or the original weights"
            )
        if self.group_of is None:
            return
        found = np.empty(self.group_of.nbytes, np.uint8)
        read(found.data, self.group_of, 0)
        inputs = self.group_of.shape[0]
        if (found.view(np.int32) != np.arange(inputs) // (inputs // self.scales.shape[0])).any():
            raise TensorMismatch(
                f"tensor {self.group_of.name}: the inputs are not in order (desc_act); take a file"
                " without it, or the original weights"
            )


def _together(packed: SourceTensor, ending: str, shape: tuple[int, int]) -> SourceTensor:
    return SourceTensor(
        name=f"{packed.name.removesuffix(ending)}.weight",
        dtype="q4_0",
        shape=shape,
        file=packed.file,
        offset=packed.offset,
        nbytes=shape[0] * shape[1] // GROUP * _BLOCK_BYTES,
    )


def read_columns(
    tensor: SourceTensor, value_bytes: int, first: int, stop: int, read: ReadPart
) -> Raw:
    """Columns `first` to `stop` of a matrix, as bytes [rows, columns * value_bytes]."""
    lines, width = tensor.shape
    raw = np.empty((lines, (stop - first) * value_bytes), np.uint8)
    for line in range(lines):
        read(raw[line].data, tensor, (line * width + first) * value_bytes)
    return raw


def _fill(buffer: memoryview, numbers: Raw, scales: NDArray[np.float32], name: str) -> None:
    """`TensorMismatch` for a scale that f16 does not hold, unless its weights are all 0."""
    with np.errstate(over="ignore"):
        narrow = scales.astype(np.float16)
    changed = (narrow.astype(np.float32) != scales) & np.isfinite(scales)
    if changed.any():
        all_zero = (numbers == _ZEROS).all(axis=1)
        if (changed & ~all_zero).any():
            scale = float(scales[np.argmax(changed & ~all_zero)])
            raise TensorMismatch(
                f"tensor {name}: scales of int4 are in f16, which does not hold {scale:g}; take the"
                " original weights"
            )
        narrow[changed] = 0
    blocks = interleave(numbers, narrow.view(np.uint8).reshape(-1, _SCALE_BYTES))
    np.asarray(buffer)[:] = blocks.reshape(-1)


def find_packed(
    tensors: Mapping[str, SourceTensor], where: str
) -> Iterator[PackedRows | PackedColumns]:
    """Those among the tensors; `TensorMismatch` for numbers that their scales do not fit."""
    for name, packed in tensors.items():
        if packed.dtype != "i32" or len(packed.shape) != 2:
            continue
        if name.endswith(ROWS_PACKED):
            yield _rows(tensors, packed, where)
        elif name.endswith(COLUMNS_PACKED) and not has_words_along_outputs(tensors, packed):
            yield _columns_of(tensors, packed, where)


def has_words_along_outputs(tensors: Mapping[str, SourceTensor], packed: SourceTensor) -> bool:
    """Whether a `.qweight` is one of AWQ: GPTQ has words along the inputs."""
    scales = tensors.get(f"{packed.name.removesuffix(COLUMNS_PACKED)}.scales")
    return (
        packed.dtype == "i32"
        and len(packed.shape) == 2
        and scales is not None
        and len(scales.shape) == 2
        and scales.shape[1] == packed.shape[1] * WORD_WEIGHTS
    )


def _rows(tensors: Mapping[str, SourceTensor], packed: SourceTensor, where: str) -> PackedRows:
    stem = packed.name.removesuffix(ROWS_PACKED)
    for ending, what in (("zero_point", "zero points"), ("g_idx", "inputs in another order")):
        if f"{stem}.weight_{ending}" in tensors:
            raise TensorMismatch(
                f"{where}: tensor {stem}.weight_{ending}: weights with {what} cannot be taken over;"
                " take another file, or the original weights"
            )
    rows, words = packed.shape
    scales = tensors.get(f"{stem}.weight_scale")
    fits = (
        scales is not None
        and scales.dtype in ("f16", "bf16", "f32")
        and len(scales.shape) == 2
        and scales.shape[0] == rows
        and is_group(words, scales.shape[1])
    )
    if not fits:
        raise _unfit(f"{where}: tensor {stem}.weight_scale", scales, packed)
    assert scales is not None
    shape = tensors.get(f"{stem}.weight_shape")
    return PackedRows(packed, scales, () if shape is None else (shape,))


def _columns_of(
    tensors: Mapping[str, SourceTensor], packed: SourceTensor, where: str
) -> PackedColumns:
    stem = packed.name.removesuffix(COLUMNS_PACKED)
    words, rows = packed.shape
    scales, zeros, group_of = (
        tensors.get(f"{stem}.{ending}") for ending in ("scales", "qzeros", "g_idx")
    )
    fits = (
        scales is not None
        and scales.dtype == "f16"
        and len(scales.shape) == 2
        and scales.shape[1] == rows
        and is_group(words, scales.shape[0])
    )
    if not fits:
        raise _unfit(f"{where}: tensor {stem}.scales", scales, packed)
    assert scales is not None
    zero_words = (scales.shape[0], -(-rows // WORD_WEIGHTS))
    if zeros is None or (zeros.dtype, zeros.shape) != ("i32", zero_words):
        raise _unfit(f"{where}: tensor {stem}.qzeros", zeros, packed)
    inputs = (words * WORD_WEIGHTS,)
    if group_of is not None and (group_of.dtype, group_of.shape) != ("i32", inputs):
        raise _unfit(f"{where}: tensor {stem}.g_idx", group_of, packed)
    return PackedColumns(packed, scales, zeros, group_of)


def is_group(words: int, groups: int) -> bool:
    """Whether so many groups of a row of words are whole blocks each."""
    return groups > 0 and words > 0 and words * WORD_WEIGHTS % (groups * GROUP) == 0


def _unfit(name: str, found: SourceTensor | None, packed: SourceTensor) -> TensorMismatch:
    there = "absent" if found is None else f"{found.dtype} {list(found.shape)}"
    return TensorMismatch(
        f"{name} is {there}, which does not fit {packed.name.rpartition('.')[2]}"
        f" {list(packed.shape)} of four bits a weight in groups of a multiple of {GROUP}"
    )
