"""Keys and values of a context: their encodings, and the memory that they take. Pure arithmetic."""

from __future__ import annotations

from flashllm.dtypes import row_bytes
from flashllm.errors import UsageError
from flashllm.options import KV_DTYPES, KvDType
from flashllm.spec import ModelSpec


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


def score_bytes(spec: ModelSpec, context: int) -> int:
    """Bytes of one token's attention scores, in f32, for all heads and positions."""
    return 4 * spec.n_heads * context
