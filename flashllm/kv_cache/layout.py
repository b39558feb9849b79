"""Keys and values of a context: their encodings, and the memory that they take. Pure arithmetic."""

from __future__ import annotations

import math

from flashllm.dtypes import GROUP, row_bytes
from flashllm.errors import UsageError
from flashllm.options import KV_DTYPES, KvDType
from flashllm.spec import ModelSpec

_BLOCK_COLUMNS = 256
"""Columns that a prompt's attention decodes together, as whole heads."""


def parse_kv_dtype(name: str) -> KvDType:
    """The encoding of that name; `UsageError` if there is none."""
    for dtype in KV_DTYPES:
        if name == dtype:
            return dtype
    raise UsageError(f"--kv-dtype {name}: expected one of {', '.join(KV_DTYPES)}")


def kv_row_bytes(spec: ModelSpec, dtype: KvDType) -> int:
    """Bytes of the keys of one token and head, and of its values."""
    return row_bytes(dtype, spec.head_dim)


def kv_bytes(spec: ModelSpec, context: int, dtype: KvDType) -> int:
    """Keys and values of a whole context."""
    return 2 * spec.n_layers * spec.n_kv_heads * context * kv_row_bytes(spec, dtype)


def block_heads(spec: ModelSpec) -> int:
    """Heads of keys and values that a prompt's attention decodes together, by the model's shape."""
    return min(max(_BLOCK_COLUMNS // spec.head_dim, 1), spec.n_kv_heads)


def decoded_block_shape(spec: ModelSpec, context: int, dtype: KvDType) -> tuple[int, ...]:
    """Shape of the f32 block into which a prompt's attention decodes keys and values of some heads.

    [2, heads, context, columns], columns in whole groups; empty where they are stored in f32.
    """
    if dtype == "f32":
        return (0,)
    columns = -(-spec.head_dim // GROUP) * GROUP if dtype == "int8" else spec.head_dim
    return 2, block_heads(spec), context, columns


def decoded_block_bytes(spec: ModelSpec, context: int, dtype: KvDType) -> int:
    """Bytes of that block."""
    return 4 * math.prod(decoded_block_shape(spec, context, dtype))


def score_bytes(spec: ModelSpec, context: int) -> int:
    """Bytes of one token's attention scores, in f32, for all heads and positions."""
    return 4 * spec.n_heads * context
