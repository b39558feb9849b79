"""Keys and values of one context, encoded, in memory that is allocated once.

Attention uses `append`, `attend` and `blocks` only, so that another cache may keep its rows
elsewhere. Rows lie as [layers, keys or values, kv_heads, context, row]: one head of a layer reads
one contiguous range of memory.

Every token sees encoded keys and values, also those of its own chunk. So a prompt that is cut
differently differs only by the rounding of matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from flashllm import core
from flashllm.dtypes import GROUP
from flashllm.errors import ModelError
from flashllm.kv_cache.layout import block_heads, decoded_block_shape, kv_bytes, kv_row_bytes
from flashllm.options import KvDType
from flashllm.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KvBlock:
    """Decoded keys and values of neighbouring heads, valid until the next block is asked for."""

    heads: slice
    """The heads of keys and values in this block."""
    keys: Tensor  # [heads, positions, head_dim]
    values: Tensor  # [heads, positions, head_dim]


def decoded_scratch(spec: ModelSpec, context: int, dtype: KvDType) -> Tensor:
    """Memory for the keys and values of a few heads, decoded."""
    return torch.empty(decoded_block_shape(spec, context, dtype))


class KvCache:
    """Holds `length` tokens; rows beyond them are never read.

    A token's rows are written layer by layer and count once `length` includes them, so the next
    token overwrites those of a cancelled one.
    """

    def __init__(
        self,
        spec: ModelSpec,
        context: int,
        dtype: KvDType,
        kernels: core.Kernels,
        scratch: Tensor | None = None,
    ) -> None:
        """`scratch`, of `decoded_scratch`, may serve several caches, one after the other."""
        # Anonymous memory: pages that a short conversation never reaches cost nothing.
        self._buffer = core.Buffer(kv_bytes(spec, context, dtype))
        heads, row = spec.n_kv_heads, kv_row_bytes(spec, dtype)
        self._layers = self._buffer.array().reshape(spec.n_layers, 2, heads * context * row)
        self._rows = torch.from_numpy(self._layers).view(spec.n_layers, 2, heads, context, row)
        self._decoded = decoded_scratch(spec, context, dtype) if scratch is None else scratch
        self._kernels = kernels
        self.heads, self._columns = heads, spec.head_dim
        self._block_heads = block_heads(spec)
        self.dtype = dtype
        self.context = context
        self.length = 0

    def close(self) -> None:
        """Drop the memory; only `length` and `context` can be asked for afterwards."""
        del self._buffer, self._layers, self._rows, self._decoded

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        assert 0 <= length <= self.length
        self.length = length

    def append(self, layer: int, keys: Tensor, values: Tensor) -> int:
        """Store [kv_heads, tokens, head_dim] after `length`; the number of positions then.

        `ModelError` for NaN, infinity, or a value that the encoding cannot hold.
        """
        end = self.length + keys.shape[1]
        assert end <= self.context
        for kind, (name, tensor) in enumerate((("key", keys), ("value", values))):
            floats = tensor.contiguous().view(-1).numpy()
            try:
                self._kernels.write_head_rows(
                    floats,
                    self.dtype,
                    self._columns,
                    self.heads,
                    self.length,
                    self._layers[layer, kind],
                )
            except OverflowError as error:
                raise ModelError(
                    f"layer {layer}: a {name} of attention is too large for the cache's encoding,"
                    f" {self.dtype} ({error}); use --kv-dtype f32"
                ) from error
            except ValueError as error:
                raise ModelError(
                    f"layer {layer}: a {name} of attention is no number, since what the model"
                    " computes overflows f32; its weights are damaged, or its activation is not the"
                    " one it was trained with"
                ) from error
        return end

    def attend(self, layer: int, query: Tensor, first: int, end: int, scale: float) -> Tensor:
        """Attention of one token's heads [heads, head_dim] over positions `first` to `end` - 1."""
        out = torch.empty(query.shape)
        keys, values = self._layers[layer]
        self._kernels.attend(
            query.contiguous().view(-1).numpy(),
            keys,
            values,
            self.dtype,
            self._columns,
            self.heads,
            first,
            end,
            scale,
            out.view(-1).numpy(),
        )
        return out

    def blocks(self, layer: int, first: int, end: int) -> Iterator[KvBlock]:
        """Keys and values of positions `first` to `end` - 1, a few heads at a time, in f32."""
        for start in range(0, self.heads, self._block_heads):
            heads = slice(start, min(start + self._block_heads, self.heads))
            rows = self._rows[layer, :, heads, first:end]  # [2, heads, positions, row]
            keys, values = self._decode(rows)[..., : self._columns]
            yield KvBlock(heads, keys, values)

    def _decode(self, rows: Tensor) -> Tensor:
        if self.dtype == "f32":
            return rows.view(torch.float32)
        decoded = self._decoded[:, : rows.shape[1], : rows.shape[2]]
        if self.dtype == "f16":
            return decoded.copy_(rows.view(torch.float16))
        columns = decoded.shape[3]
        numbers = rows[..., :columns].view(torch.int8)
        scales = rows[..., columns:].view(torch.float16)[..., None]
        decoded.copy_(numbers).view(*scales.shape[:-1], GROUP).mul_(scales)
        return decoded
