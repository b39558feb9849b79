"""Encodings of tensors in GGUF: weights in blocks that carry their own scales.

What is here is what can be taken over exactly. All other types are known to the package `gguf`,
which has their sizes and decodes them.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import UnsupportedModel, UsageError


@dataclass(frozen=True, slots=True)
class BlockType:
    """An encoding: `name` in lower case, and how many weights and bytes a block has."""

    name: str
    block_weights: int
    block_bytes: int


_EXACT = {
    0: BlockType("f32", 1, 4),
    1: BlockType("f16", 1, 2),
    2: BlockType("q4_0", 32, 18),
    8: BlockType("q8_0", 32, 34),
    30: BlockType("bf16", 1, 2),
    39: BlockType("mxfp4", 32, 17),
}
"""By the number that a file has for them (ggml.h: `enum ggml_type`)."""
_BY_NAME = {found.name: found for found in _EXACT.values()}


@functools.cache
def block_type(number: int, where: str) -> BlockType:
    """The type of that number; `UnsupportedModel` for one that nobody knows.

    `UsageError` where the package would know and is not installed; `where` begins the message.
    """
    if number in _EXACT:
        return _EXACT[number]
    gguf = _package(f"{where} is of type {number}")
    try:
        kind = gguf.GGMLQuantizationType(number)
    except ValueError as problem:
        raise UnsupportedModel(
            f"{where} is of type {number}, which the installed gguf does not know; is the file"
            " damaged, or newer?"
        ) from problem
    return BlockType(kind.name.lower(), *gguf.GGML_QUANT_SIZES[kind])


def find_type(name: str) -> BlockType | None:
    """The type of that name, if it is one of blocks of several weights that can be decoded here."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    try:
        gguf = importlib.import_module("gguf")
    except ImportError:
        return None
    kind = gguf.GGMLQuantizationType.__members__.get(name.upper())
    if kind is None or gguf.GGML_QUANT_SIZES[kind][0] == 1:
        return None
    return BlockType(name, *gguf.GGML_QUANT_SIZES[kind])


def decoded_by_package(raw: NDArray[np.uint8], found: BlockType) -> NDArray[np.float32]:
    """The values of whole blocks, as the package decodes them; `UnsupportedModel` if it cannot."""
    gguf = _package(f"{found.name.upper()}")
    kind = gguf.GGMLQuantizationType[found.name.upper()]
    try:
        with np.errstate(all="ignore"):  # what is not finite is found afterwards
            values = gguf.quants.dequantize(raw.reshape(-1, found.block_bytes), kind)
    except NotImplementedError as problem:
        raise UnsupportedModel(
            f"{found.name.upper()}: the installed gguf cannot decode it; take another file"
        ) from problem
    return np.ascontiguousarray(values, np.float32).reshape(-1)


def _package(what: str) -> Any:
    try:
        return importlib.import_module("gguf")
    except ImportError as problem:
        raise UsageError(
            f"{what}, which the package gguf decodes; install it with `pip install"
            " 'flashllm[gguf]'`, or take a file of the same model in Q4_0, Q8_0, F16 or BF16"
        ) from problem
