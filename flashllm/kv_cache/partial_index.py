"""A few columns of all keys in few bits: an index that finds tokens before their rows are read.

Source: InfiniGen (Lee et al., OSDI 2024, arXiv 2406.19707), section 4.3. There the columns are
chosen from the prompt; here from the first tokens of a context alone, so that the choice does not
depend on how a prompt was cut into chunks, nor on whether the context was continued or begun anew.

Few bits hold little where one column is far larger than the others, or far from zero in all tokens.
So each column is centred, which changes the scores of a query by the same for all tokens, and
scaled, which its queries undo: both by the same first tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Index
from flashllm.dtypes import row_bytes
from flashllm.errors import ModelError
from flashllm.kv_cache.layout import SAMPLE_TOKENS, column_count
from flashllm.options import KvIndexDType
from flashllm.spec import ModelSpec

Floats = NDArray[np.float32]
_SCALE_LEAST = 2.0**-10
"""Of the largest column of the first tokens: one that is next to nothing there may grow."""
Skewing = Sequence[Floats]
"""Of each layer an orthogonal matrix a key head, [kv_heads, head_dim, head_dim]."""


def query_sizes(queries: Floats) -> Floats:
    """|queries| [tokens, group, columns] of heads that share keys, as their mean [tokens, columns].

    So a key counts as much as a query however many share it.
    """
    sizes: Floats = np.abs(queries).mean(axis=1)
    return sizes


def choose_columns(sizes: Floats, keys: Floats, count: int) -> Index:
    """The `count` columns of the largest sums of |queries| + |keys|, ascending.

    `sizes` are those of the queries, `keys` the keys of the same tokens, [tokens, columns].
    """
    sums = (sizes + np.abs(keys)).sum(axis=0, dtype=np.float64)
    return np.sort(np.argsort(-sums, kind="stable")[:count])


@dataclass(slots=True)
class _LayerSample:
    """The first tokens of a layer, skewed, until they have chosen the columns.

    [kv_heads, tokens, columns] both.
    """

    sizes: Floats
    keys: Floats


@dataclass(slots=True)
class _LayerColumns:
    """What makes partial rows of a layer: the chosen columns of each key head."""

    columns: list[Index]
    centres: list[Floats]
    """Of each key head, what is taken from its columns."""
    scales: list[Floats]
    """What they are divided by then, and queries are multiplied by."""
    matrices: list[NDArray[np.uint8]] = field(default_factory=list)
    """The transposed columns of the skewing matrices, as rows in f32; none without skewing."""


class PartialIndex:
    """The partial keys of one context. Rows beyond its length are never read.

    Like the cache's rows, those of a cancelled token are overwritten by the next one's.
    """

    def __init__(
        self,
        spec: ModelSpec,
        context: int,
        kernels: core.Kernels,
        ratio: float = 0.3,
        dtype: KvIndexDType = "int4",
        skewing: Skewing | None = None,
    ) -> None:
        """Of `context` tokens at most; without `skewing`, columns are chosen as they are."""
        self.columns = column_count(ratio, spec.head_dim)
        self.dtype = dtype
        self.row_bytes = row_bytes(dtype, self.columns)
        self._kv_heads, self._heads = spec.n_kv_heads, spec.n_heads
        self._head_dim, self._context = spec.head_dim, context
        per_layer = spec.n_kv_heads * context * self.row_bytes
        self._buffer = core.Buffer(spec.n_layers * per_layer, huge_pages=False)
        self._rows = self._buffer.array().reshape(spec.n_layers, per_layer)
        self._kernels = kernels
        self._skewing = skewing
        self._samples: list[_LayerSample | None] = [None] * spec.n_layers
        self._chosen: list[_LayerColumns | None] = [None] * spec.n_layers

    def chosen_columns(self, layer: int) -> list[Index]:
        """The columns of each key head; empty until there are enough tokens."""
        chosen = self._chosen[layer]
        return [] if chosen is None else chosen.columns

    def append(self, layer: int, position: int, queries: Floats, keys: Floats) -> None:
        """Tokens from `position` on: queries [tokens, heads, columns], keys [kv_heads, tokens, ..].

        `ModelError` for a key that the index cannot hold.
        """
        end = position + keys.shape[1]
        if position >= SAMPLE_TOKENS:
            self._samples[layer] = None
            self._write(layer, position, keys)
            return
        sample = self._sample(layer)
        own = slice(position, min(end, SAMPLE_TOKENS))
        taken = own.stop - position
        for head in range(self._kv_heads):
            sample.keys[head, own] = self._skewed(layer, head, keys[head, :taken])
            group = self._group(head)
            flat = queries[:taken, group].reshape(-1, self._head_dim)
            skewed = self._skewed(layer, head, flat)
            sample.sizes[head, own] = query_sizes(skewed.reshape(taken, -1, self._head_dim))
        if end < SAMPLE_TOKENS:
            return
        columns = [
            choose_columns(sizes, own, self.columns)
            for sizes, own in zip(sample.sizes, sample.keys, strict=True)
        ]
        partial = [sample.keys[head][:, columns[head]] for head in range(self._kv_heads)]
        self._chosen[layer] = self._layer_columns(layer, columns, partial)
        self._encode(layer, 0, partial)
        if end > SAMPLE_TOKENS:
            self._write(layer, SAMPLE_TOKENS, keys[:, taken:])

    def scores(self, layer: int, queries: Floats, tokens: int, scale: float) -> Floats:
        """Estimated scores [heads, tokens] of queries [heads, columns] with the first tokens."""
        assert SAMPLE_TOKENS <= tokens <= self._context
        out = np.empty((self._heads, tokens), np.float32)
        rows = self._rows[layer].reshape(self._kv_heads, -1)
        for head in range(self._kv_heads):
            group = self._group(head)
            partial = (
                self._partial(layer, head, queries[group]) * self._chosen_of(layer).scales[head]
            )
            first = rows[head, : tokens * self.row_bytes]
            self._kernels.matmul(first, self.dtype, partial, out[group])
        out *= np.float32(scale)
        return out

    def scores_bytes(self, tokens: int) -> int:
        """Bytes of the index that scoring so many tokens of a layer reads."""
        return self._kv_heads * tokens * self.row_bytes

    def close(self) -> None:
        """Drop the memory."""
        del self._buffer, self._rows

    def _group(self, head: int) -> slice:
        """The query heads that share a key head."""
        size = self._heads // self._kv_heads
        return slice(head * size, (head + 1) * size)

    def _sample(self, layer: int) -> _LayerSample:
        sample = self._samples[layer]
        if sample is None:
            shape = (self._kv_heads, SAMPLE_TOKENS, self._head_dim)
            sample = _LayerSample(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
            self._samples[layer] = sample
        return sample

    def _skewed(self, layer: int, head: int, x: Floats) -> Floats:
        """Rows [n, columns] times the head's skewing matrix."""
        if self._skewing is None:
            return x
        return self._product(_as_rows(self._skewing[layer][head].T), x, self._head_dim)

    def _partial(self, layer: int, head: int, x: Floats) -> Floats:
        """The chosen columns of rows [n, columns], skewed."""
        chosen = self._chosen_of(layer)
        if not chosen.matrices:
            return np.ascontiguousarray(x[:, chosen.columns[head]])
        return self._product(chosen.matrices[head], x, self.columns)

    def _product(self, rows: NDArray[np.uint8], x: Floats, outputs: int) -> Floats:
        # A row's product has the same bits whether one token or many go through together.
        out = np.empty((len(x), outputs), np.float32)
        self._kernels.matmul(rows, "f32", np.ascontiguousarray(x), out)
        return out

    def _layer_columns(
        self, layer: int, columns: list[Index], partial: Sequence[Floats]
    ) -> _LayerColumns:
        centres = [np.median(own, axis=0) for own in partial]
        scales = [_scales_of(own - centre) for own, centre in zip(partial, centres, strict=True)]
        chosen = _LayerColumns(columns, centres, scales)
        if self._skewing is not None:
            chosen.matrices = [
                _as_rows(matrix[:, own].T)
                for matrix, own in zip(self._skewing[layer], columns, strict=True)
            ]
        return chosen

    def _chosen_of(self, layer: int) -> _LayerColumns:
        chosen = self._chosen[layer]
        assert chosen is not None
        return chosen

    def _write(self, layer: int, position: int, keys: Floats) -> None:
        partial = [self._partial(layer, head, keys[head]) for head in range(self._kv_heads)]
        self._encode(layer, position, partial)

    def _encode(self, layer: int, position: int, partial: Sequence[Floats]) -> None:
        """Partial keys [kv_heads][tokens, columns] as rows from `position` on."""
        chosen = self._chosen_of(layer)
        even = np.stack([
            (own - centre) / scale
            for own, centre, scale in zip(partial, chosen.centres, chosen.scales, strict=True)
        ])  # fmt: skip
        try:
            self._kernels.write_head_rows(
                even.reshape(-1),
                self.dtype,
                self.columns,
                self._kv_heads,
                position,
                self._rows[layer],
            )
        except OverflowError as error:
            raise ModelError(
                f"layer {layer}: a key of attention is too large for the index of keys in"
                f" {self.dtype} ({error}); use --kv-policy full"
            ) from error


def _scales_of(centred: Floats) -> Floats:
    """The mean size of each column [tokens, columns], none of them far below the largest.

    In whole powers of two, so that scaling rounds nothing.
    """
    sizes = np.abs(centred).mean(axis=0, dtype=np.float64)
    floor = max(float(sizes.max()) * _SCALE_LEAST, float(np.finfo(np.float32).tiny))
    scales: Floats = np.exp2(np.rint(np.log2(np.maximum(sizes, floor)))).astype(np.float32)
    return scales


def _as_rows(matrix: Floats) -> NDArray[np.uint8]:
    """The rows of a matrix as the kernels read them."""
    return np.ascontiguousarray(matrix, np.float32).reshape(-1).view(np.uint8)
