"""Matrices in four or eight bits as mlx-lm stores them: each group with a scale and an offset.

`NAME.weight` is u32 [..., out, words], weight j of a word of n bits in bits n * j; `NAME.scales`
and `NAME.biases` are [..., out, groups], both in f16 or both in bf16; a weight is q * scale + bias.
Shown as one tensor [..., out, in] of blocks: 32 weights that share a scale and an offset, two bytes
each, and their numbers in order. No encoding of ours has offsets, so that all but f32 rounds again.
Source: MLX, `mlx.core.quantize` (mode "affine").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from flashllm.dtypes import GROUP
from flashllm.errors import TensorMismatch

from .paired_blocks import whole_blocks
from .parts import ReadPart
from .tensor import SourceTensor

NUMBERS, SCALES, OFFSETS = ".weight", ".scales", ".biases"
BITS = (4, 8)
SCALE_DTYPES = ("f16", "bf16")
_PAIR_BYTES = 4
"""Of a scale and an offset."""


@dataclass(frozen=True, slots=True)
class PackedAffine:
    """The tensors of a matrix, or of the matrices of a stack."""

    numbers: SourceTensor
    scales: SourceTensor
    offsets: SourceTensor
    bits: int

    @property
    def parts(self) -> tuple[SourceTensor, ...]:
        """All of them."""
        return self.numbers, self.scales, self.offsets

    @property
    def _inputs(self) -> int:
        return self.numbers.shape[-1] * 32 // self.bits

    @property
    def _block_bytes(self) -> int:
        return _PAIR_BYTES + self._number_bytes

    @property
    def _number_bytes(self) -> int:
        return GROUP * self.bits // 8

    @property
    def together(self) -> SourceTensor:
        """By the name of the numbers."""
        return SourceTensor(
            name=self.numbers.name,
            dtype=f"mlx{self.bits}_{self.scales.dtype}",
            shape=(*self.numbers.shape[:-1], self._inputs),
            file=self.numbers.file,
            offset=self.numbers.offset,
            nbytes=self.numbers.nbytes // self._number_bytes * self._block_bytes,
        )

    def read_into(self, buffer: memoryview, start: int, read: ReadPart) -> None:
        """A range of the numbers, and of their groups' scales and offsets."""
        first, count = whole_blocks(buffer, start, self._block_bytes)
        blocks_of_group = self._inputs // GROUP // self.scales.shape[-1]
        first_group, last_group = first // blocks_of_group, (first + count - 1) // blocks_of_group
        inside = first - first_group * blocks_of_group
        numbers = np.empty((count, self._number_bytes), np.uint8)
        read(numbers.reshape(-1).data, self.numbers, first * self._number_bytes)
        pair = []
        for tensor in (self.scales, self.offsets):
            raw = np.empty((last_group + 1 - first_group, 2), np.uint8)
            read(raw.reshape(-1).data, tensor, first_group * 2)
            pair.append(np.repeat(raw, blocks_of_group, axis=0)[inside : inside + count])
        np.asarray(buffer)[:] = np.concatenate([*pair, numbers], axis=1).reshape(-1)


def find_affine(
    tensors: Mapping[str, SourceTensor], where: str, settings: Mapping[str, object]
) -> Iterator[PackedAffine]:
    """Those among the tensors; `TensorMismatch` for numbers that scales or offsets do not fit.

    `settings` is what the configuration says of quantisation: `bits` and `group_size`, and the same
    under the name of a matrix that has its own.
    """
    for name, numbers in tensors.items():
        if not name.endswith(NUMBERS) or numbers.dtype != "u32" or len(numbers.shape) < 2:
            continue
        stem = name.removesuffix(NUMBERS)
        own = settings.get(stem, settings)
        bits, size = (own.get(key) for key in ("bits", "group_size")) if _is(own) else (None, None)
        scales, offsets = tensors.get(stem + SCALES), tensors.get(stem + OFFSETS)
        fits = (
            scales is not None
            and offsets is not None
            and scales.dtype in SCALE_DTYPES
            and (offsets.dtype, offsets.shape) == (scales.dtype, scales.shape)
            and bits in BITS
            and type(size) is int
            and size > 0
            and size % GROUP == 0
            and numbers.shape[-1] * 32 == scales.shape[-1] * size * bits
            and numbers.shape[:-1] == scales.shape[:-1]
        )
        if not fits:
            found = [
                "absent" if one is None else f"{one.dtype} {list(one.shape)}"
                for one in (scales, offsets)
            ]
            raise TensorMismatch(
                f"{where}: tensor {stem}{SCALES} is {found[0]} and {stem}{OFFSETS} {found[1]},"
                f" which do not fit u32 {list(numbers.shape)} of MLX in {str(bits)[:8]} bits and"
                f" groups of {str(size)[:8]}; taken are {BITS[0]} and {BITS[1]} bits, groups of a"
                f" multiple of {GROUP}, scales in {' and '.join(SCALE_DTYPES)}"
            )
        assert scales is not None
        assert offsets is not None
        yield PackedAffine(numbers, scales, offsets, int(str(bits)))


def _is(settings: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(settings, Mapping)
