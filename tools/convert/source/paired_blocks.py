"""Tensors in mxfp4 as transformers stores them: blocks of four bits in one, scales in another.

`NAME_blocks` is [..., groups, 16] or [..., groups * 16] bytes, byte j of a group holding weight 2j
in its low half and 2j + 1 in its high half; `NAME_scales` is [..., groups]. Shown as one tensor of
blocks: each a scale and 16 bytes, weight i in the low half of byte i and i + 16 in the high half,
as GGUF has them, so that both sources become the same bytes. Source: transformers,
`integrations/mxfp4.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.dtypes import GROUP
from flashllm.errors import TensorMismatch

from .parts import ReadPart
from .tensor import SourceTensor

BLOCKS, SCALES = "_blocks", "_scales"
NUMBER_BYTES = GROUP // 2
"""Of a block's weights, without its scale."""
_BLOCK_BYTES = 1 + NUMBER_BYTES


@dataclass(frozen=True, slots=True)
class Pair:
    """The tensors of the source that one in mxfp4 consists of."""

    blocks: SourceTensor
    scales: SourceTensor

    @property
    def parts(self) -> tuple[SourceTensor, ...]:
        """Both."""
        return self.blocks, self.scales

    @property
    def together(self) -> SourceTensor:
        """By the name of the blocks."""
        blocks, shape = self.blocks, self.scales.shape
        return SourceTensor(
            name=blocks.name,
            dtype="mxfp4",
            shape=(*shape[:-1], shape[-1] * GROUP),
            file=blocks.file,
            offset=blocks.offset,
            nbytes=self.scales.nbytes * _BLOCK_BYTES,
        )

    def read_into(self, buffer: memoryview, start: int, read: ReadPart) -> None:
        """Blocks, of which numbers and scales lie apart."""
        first, count = whole_blocks(buffer, start, _BLOCK_BYTES)
        numbers = np.empty((count, NUMBER_BYTES), np.uint8)
        scales = np.empty((count, 1), np.uint8)
        read(numbers.reshape(-1).data, self.blocks, first * NUMBER_BYTES)
        read(scales.reshape(-1).data, self.scales, first)
        np.asarray(buffer)[:] = interleave(numbers, scales).reshape(-1)


def find_pairs(tensors: Mapping[str, SourceTensor], where: str) -> Iterator[Pair]:
    """Those among the tensors; `TensorMismatch` for blocks that no scales fit."""
    for name, blocks in tensors.items():
        if not name.endswith(BLOCKS) or blocks.dtype != "u8":
            continue
        scales = tensors.get(name.removesuffix(BLOCKS) + SCALES)
        if scales is None or scales.dtype != "u8" or not _fit(blocks.shape, scales.shape):
            there = "absent" if scales is None else f"{scales.dtype} {list(scales.shape)}"
            raise TensorMismatch(
                f"{where}: tensor {name.removesuffix(BLOCKS)}{SCALES} is {there}; it should be u8"
                f" with a scale for each {NUMBER_BYTES} bytes of a row of"
                f" {name.rpartition('.')[2]}, which is {list(blocks.shape)}"
            )
        yield Pair(blocks, scales)


def _fit(blocks: tuple[int, ...], scales: tuple[int, ...]) -> bool:
    """Whether there is a scale for each group of a row, in either of the two forms."""
    groups = (*scales, NUMBER_BYTES), (*scales[:-1], scales[-1] * NUMBER_BYTES)
    return len(scales) > 1 and blocks in groups


def whole_blocks(buffer: memoryview, start: int, block_bytes: int) -> tuple[int, int]:
    """The first of the blocks that a buffer is for, and how many they are."""
    first, inside = divmod(start, block_bytes)
    count, rest = divmod(len(buffer), block_bytes)
    assert not inside, "rows are whole blocks"
    assert not rest, "rows are whole blocks"
    return first, count


def interleave(numbers: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Blocks of the halves of bytes [n, 16] in their order there, and the scales [n, bytes]."""
    halves = np.stack([numbers & 15, numbers >> 4], axis=-1).reshape(-1, 2, NUMBER_BYTES)
    return np.concatenate([scales, halves[:, 0] | halves[:, 1] << 4], axis=1)
