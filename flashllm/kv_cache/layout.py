"""Keys and values of a context: their encodings, and the memory that they take. Pure arithmetic."""

from __future__ import annotations

import math

from flashllm.dtypes import GROUP, row_bytes
from flashllm.errors import UsageError
from flashllm.options import KV_DTYPES, KvDType
from flashllm.spec import ModelSpec

_BLOCK_COLUMNS = 256
"""Columns of all heads that a prompt's attention decodes together, where a head has fewer."""


def parse_kv_dtype(name: str) -> KvDType:
    """The encoding of that name; `UsageError` where there is none."""
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
    """Heads of keys and values that a prompt's attention looks at together: the shape's alone."""
    return min(max(_BLOCK_COLUMNS // spec.head_dim, 1), spec.n_kv_heads)


def decoded_block_shape(spec: ModelSpec, context: int, dtype: KvDType) -> tuple[int, ...]:
    """Of the f32 block in which keys, then values, of some heads are decoded for a prompt.

    [2, heads, context, columns]; nothing where they are f32 already. Columns are whole groups.
    """
    if dtype == "f32":
        return (0,)
    columns = -(-spec.head_dim // GROUP) * GROUP if dtype == "int8" else spec.head_dim
    return 2, block_heads(spec), context, columns


def decoded_block_bytes(spec: ModelSpec, context: int, dtype: KvDType) -> int:
    """What that block takes."""
    return 4 * math.prod(decoded_block_shape(spec, context, dtype))


def score_bytes(spec: ModelSpec, context: int) -> int:
    """The scores of one token's attention, in f32, for all heads and positions."""
    return 4 * spec.n_heads * context
