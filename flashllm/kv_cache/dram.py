"""Keys and values of one context, encoded, in memory that is allocated once.

Attention uses `append` and `attend` only, so that another cache may keep its rows elsewhere, as
`paged` does; tokens of several contexts, whose rows lie as they do here, attend together
(`attend_each`). Rows lie as [layers, keys or values, kv_heads, context, row]: one head of a layer
reads one contiguous range of memory.

Every token sees encoded keys and values, also those of its own chunk, so it does not matter where a
prompt is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.core.device_memory import DeviceMemory
from flashllm.kv_cache.layout import kv_row_bytes
from flashllm.kv_cache.protocol import ChooseByScores, KeysValues, SeesEverything
from flashllm.kv_cache.rows import RowWriter, in_order
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.options import KvDType
from flashllm.spec import ModelSpec


class Placing(NamedTuple):
    """How a token's queries and keys are normed and turned; None where they are not."""

    query_norm: Floats | None  # [head_dim]
    key_norm: Floats | None  # [head_dim]
    eps: float
    cos: Floats | None  # [pairs]
    sin: Floats | None  # [pairs]


class KvCache(SeesEverything):
    """Holds `length` tokens; rows beyond them are never read. As `KeysValues` says."""

    scored_bytes = 0

    def __init__(
        self,
        spec: ModelSpec,
        context: int,
        dtype: KvDType,
        kernels: core.Kernels,
        device: DeviceMemory | None = None,
        device_layers: int = 0,
    ) -> None:
        """The rows of the first `device_layers` layers are on a device."""
        heads, row = spec.n_kv_heads, kv_row_bytes(spec, dtype)
        in_dram, nbytes = spec.n_layers - device_layers, heads * context * row
        # Pages that a short conversation never reaches cost nothing. Each head of each layer begins
        # another range, and with huge pages the first tokens would touch nearly all of it.
        self._buffer = core.Buffer(max(2 * in_dram * nbytes, 1), huge_pages=False)
        here = self._buffer.array()[: 2 * in_dram * nbytes].reshape(in_dram, 2, nbytes)
        self._here = here
        self._layers: list[Sequence[NDArray[np.uint8]]] = [(keys, values) for keys, values in here]
        if device is not None:
            there = ([device.allocate(nbytes) for _ in range(2)] for _ in range(device_layers))
            self._layers[:0] = there
        self._device_layers = device_layers
        self._kernels = kernels
        self._writer = RowWriter(kernels, dtype, spec.head_dim, heads)
        self._heads, self._columns = heads, spec.head_dim
        self.row_bytes = row
        """Of a token's key in one head, and of its value."""
        self.dtype = dtype
        self.context = context
        self.length = 0
        self.is_damaged = False

    def close(self) -> None:
        """Drop the memory; only `length` and `context` can be asked for afterwards."""
        del self._buffer, self._here, self._layers

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        assert 0 <= length <= self.length
        self.length = length

    def copy(self, other: KeysValues, length: int) -> None:
        """Forget all tokens, and take over the first `length` of another cache of the same kind."""
        assert isinstance(other, KvCache)
        for layer in range(len(self._layers)):
            self._write(layer, 0, other.encoded(layer, 0, length))
        self.length = length

    def append(self, layer: int, keys: Floats, values: Floats) -> int:
        """Store [kv_heads, tokens, head_dim] after `length`; the number of positions then."""
        end = self.length + int(keys.shape[1])
        assert end <= self.context
        keys_there, values_there = self._layers[layer]
        self._writer.write(layer, "key", keys, self.length, keys_there)
        self._writer.write(layer, "value", values, self.length, values_there)
        return end

    def attend(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """Attention of tokens that were just appended: [tokens, heads, head_dim] to the same."""
        tokens, end = query.shape[0], self.length + query.shape[0]
        out = LARGE_ARRAYS.empty(*query.shape)
        keys, values = self._layers[layer]
        queries, result = in_order(query), out.reshape(-1)
        cache = keys, values, self.dtype, self._columns, self._heads
        rest = scale, result, sinks
        if tokens == 1:
            first = max(end - window, 0) if window else 0
            self._kernels.attend(queries, *cache, first, end, *rest)
        else:
            self._kernels.attend_many(queries, *cache, tokens, end, window, *rest)
        return out

    def attend_projected(
        self,
        layer: int,
        projected: Sequence[Floats],
        placing: Placing,
        window: int,
        scale: float,
        sinks: Floats | None,
    ) -> Floats:
        """`append` and `attend` of one token in a layer that is in DRAM: [1, heads * head_dim].

        From its keys, values and queries as they are projected, [1, heads * head_dim] each. The
        bits are those of one step after another.
        """
        position = self.length
        assert position < self.context
        key, value, query = projected
        out = np.empty(query.shape, np.float32)
        first = max(position + 1 - window, 0) if window else 0
        keys, values = self._layers[layer]
        try:
            self._kernels.attend_projected(
                query[0], key[0], value[0], *placing, keys, values, self.dtype, self._columns,
                self._heads, first, position, scale, out[0], sinks,
            )  # fmt: skip
        except (OverflowError, ValueError) as error:
            raise self._writer.error_of_projected(error, layer) from error
        return out

    def is_in_dram(self, layer: int) -> bool:
        """Whether a layer's rows are not on a device."""
        return layer >= self._device_layers

    def pieces(self, layer: int) -> Sequence[NDArray[np.uint8]]:
        """Encoded keys and values of a layer, each [kv_heads, context, row] in bytes."""
        return self._layers[layer]

    def attend_each(
        self,
        others: Sequence[KvCache],
        layer: int,
        rows: Sequence[NDArray[np.float32]],
        window: int,
        scale: float,
        sinks: Floats | None,
        out: Floats,
    ) -> None:
        """`append` and `attend` of a token of this context and of one of each of `others`.

        `rows` are keys, values and queries, a row for each context, and `out` is as the queries
        are; the layer is in DRAM. The bits are those of each by itself.
        """
        caches = [self, *others]
        assert all(cache.length < cache.context for cache in caches)
        lengths = np.array([cache.length for cache in caches], np.int64)
        keys, values = ([cache.pieces(layer)[kind] for cache in caches] for kind in range(2))
        self._writer.write_each(layer, "key", rows[0], lengths, keys)
        self._writer.write_each(layer, "value", rows[1], lengths, values)
        cached = keys, values, self.dtype, self._columns, self._heads
        self._kernels.attend_each(rows[2], *cached, lengths + 1, window, scale, out, sinks)

    def encoded(self, layer: int, first: int, end: int) -> NDArray[np.uint8]:
        """[keys or values, kv_heads, positions, bytes of a row]: a view, or a device's copy."""
        return self._rows(layer)[:, :, first:end]

    def append_encoded(self, layer: int, tokens: int, rows: NDArray[np.uint8]) -> None:
        """Store the bytes of rows of so many tokens, as `encoded` gave them, after `length`."""
        assert self.length + tokens <= self.context
        self._write(layer, self.length, rows.reshape(2, self._heads, tokens, -1))

    def _write(self, layer: int, first: int, rows: NDArray[np.uint8]) -> None:
        """Rows [keys or values, kv_heads, positions, bytes of a row] from position `first` on."""
        count = rows.shape[2]
        if layer >= self._device_layers:
            self._rows(layer)[:, :, first : first + count] = rows
            return
        places = np.arange(first, first + count, dtype=np.int32)
        heads = np.arange(self._heads, dtype=np.int32)[:, None] * np.int32(self.context)
        own = np.arange(self._heads * count, dtype=np.int32)
        for kind in range(2):
            encoded = np.ascontiguousarray(rows[kind]).reshape(-1)
            to = self._layers[layer][kind], (heads + places).reshape(-1)
            self._kernels.copy_rows(encoded, own, self.row_bytes, *to)

    def attend_decoded(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """The same: everything is seen."""
        return self.attend(layer, query, window, scale, sinks)

    def prefetch(self, layer: int, positions: NDArray[np.int32] | None) -> None:
        """They are there already."""

    def attend_to(
        self,
        layer: int,
        query: Floats,
        positions: NDArray[np.int32],
        scale: float,
        sinks: Floats | None = None,
    ) -> Floats:
        """Attention of one token [1, heads, head_dim] to itself and to some that came before it.

        `positions` [kv_heads, count] are ascending. The bits are those of attention to a cache that
        holds nothing else.
        """
        own = np.full((self._heads, 1), self.length, np.int32)
        firsts = np.arange(self._heads, dtype=np.int32)[:, None] * np.int32(self.context)
        ids = np.hstack((positions, own)) + firsts
        row, count = self.row_bytes, ids.shape[1]
        gathered = np.empty((2, ids.size * row), np.uint8)
        keys, values = gathered
        places = np.arange(ids.size, dtype=np.int32)
        for kind in range(2):
            self._kernels.copy_rows(
                self._layers[layer][kind], ids.reshape(-1), row, gathered[kind], places
            )
        out = LARGE_ARRAYS.empty(*query.shape)
        cache = keys, values, self.dtype, self._columns, self._heads, 0, count
        rest = scale, out.reshape(-1), sinks
        self._kernels.attend(in_order(query), *cache, *rest)
        return out

    def attend_by_scores(
        self,
        layer: int,
        query: Floats,
        choose: ChooseByScores,
        scale: float,
        sinks: Floats | None = None,
    ) -> Floats:
        """As `SelectableRows` says."""
        of_heads = query[0].reshape(self._heads, -1, self._columns)
        positions = []
        for head, queries in enumerate(of_heads):
            scores = self.scores(layer, head, queries, self.length + 1)
            positions.append(choose(head, np.float32(scale) * scores))
        return self.attend_to(layer, query, np.stack(positions), scale, sinks)

    def scores(
        self, layer: int, kv_head: int, queries: NDArray[np.float32], end: int
    ) -> NDArray[np.float32]:
        """Products [queries, end] of queries [queries, head_dim] with a head's first `end` keys."""
        first = kv_head * self.context * self.row_bytes
        rows = self._layers[layer][0][first : first + end * self.row_bytes]
        out = np.empty((len(queries), end), np.float32)
        self._kernels.matmul(rows, self.dtype, np.ascontiguousarray(queries), out)
        return out

    def _rows(self, layer: int) -> NDArray[np.uint8]:
        rows: NDArray[np.uint8]
        if layer < self._device_layers:
            rows = np.asarray(self._layers[layer])  # a copy
        else:
            rows = self._here[layer - self._device_layers]
        return rows.reshape(2, self._heads, self.context, -1)
