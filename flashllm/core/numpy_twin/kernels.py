"""The twin of the native core in numpy: the same names, the same answers, slow.

It runs where nothing was compiled, and it is what the native core is tested against.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import unwarned
from flashllm.core.numpy_twin import attention, token_rows
from flashllm.core.numpy_twin import rows as numpy_rows
from flashllm.core.numpy_twin.arguments import require_array
from flashllm.core.numpy_twin.bundle_checks import ChecksumError
from flashllm.core.numpy_twin.checksums import bundle_checksums, crc32c
from flashllm.core.numpy_twin.matrix_kernels import (
    DECODED_ROWS,
    MatrixKernels,
    check_vectors,
    no_tiles,
)
from flashllm.core.numpy_twin.memory import row_read_ns, row_starts, stream_read_ns
from flashllm.core.numpy_twin.reader import Buffer, Reader
from flashllm.core.numpy_twin.routing import expert_weights
from flashllm.core.numpy_twin.rows import row_bytes
from flashllm.core.numpy_twin.selection import ids_above, keys_above, run_ends, true_columns
from flashllm.core.numpy_twin.slots import SlotTable
from flashllm.core.numpy_twin.token_rows import gate_rows, gelu

__all__ = [
    "NAME",
    "Buffer",
    "ChecksumError",
    "Kernels",
    "Reader",
    "SlotTable",
    "available_isas",
    "bundle_checksums",
    "crc32c",
    "expert_weights",
    "gate_rows",
    "gelu",
    "ids_above",
    "keys_above",
    "row_bytes",
    "row_read_ns",
    "run_ends",
    "stream_read_ns",
    "true_columns",
]

NAME = "numpy"


def available_isas() -> list[str]:
    """Names that `Kernels` takes."""
    return ["numpy"]


class Kernels(MatrixKernels):
    """Products of encoded rows. `threads` is kept for its twin's sake; everything runs on one."""

    @unwarned
    def dot_rows(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        x: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """Dots, out[i] = that of x with the row at byte ids[i] * row_stride + row_offset."""
        self._check_open()
        require_array("x", x, np.float32)
        require_array("out", out, np.float32, writable=True)
        nbytes = row_bytes(dtype, len(x))
        starts = row_starts(rows, row_stride, row_offset, nbytes, ids)
        if len(out) != len(ids):
            raise ValueError(f"out has {len(out)} values for {len(ids)} ids")
        for i, start in enumerate(starts):
            out[i] = numpy_rows.dots(rows[None, start : start + nbytes], dtype, x, self.fast)[0]

    @unwarned
    def weighted_sum_rows(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
        block_ends: NDArray[np.int32],
        out: NDArray[np.float32],
    ) -> None:
        """Sums out [d] += for each block in order, the sum of weights[i] * row ids[i] within it."""
        self._check_open()
        require_array("weights", weights, np.float32)
        require_array("block_ends", block_ends, np.int32)
        require_array("out", out, np.float32, writable=True)
        nbytes = row_bytes(dtype, len(out))
        starts = row_starts(rows, row_stride, row_offset, nbytes, ids)
        if len(weights) != len(ids):
            raise ValueError(f"weights has {len(weights)} values for {len(ids)} ids")
        for run in _runs("block_ends", block_ends, len(ids)):
            used = [i for i in range(run.start, run.stop) if weights[i] != 0.0]
            if used:
                raw = np.stack([rows[starts[i] : starts[i] + nbytes] for i in used])
                out += numpy_rows.weighted_sum(raw, dtype, len(out), weights[used])

    def dot_rows_each(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        vector_ends: NDArray[np.int32],
        x: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """`dot_rows` of each vector of x [vectors * d], whose ids end at vector_ends [vectors]."""
        self._check_open()
        require_array("x", x, np.float32)
        require_array("ids", ids, np.int32)
        require_array("out", out, np.float32, writable=True)
        if len(out) != len(ids):
            raise ValueError(f"out has {len(out)} values for {len(ids)} ids")
        vectors = _vectors("x", x, vector_ends)
        row_starts(rows, row_stride, row_offset, row_bytes(dtype, vectors.shape[1]), ids)
        for vector, run in zip(vectors, _runs("vector_ends", vector_ends, len(ids)), strict=True):
            self.dot_rows(rows, row_stride, row_offset, dtype, ids[run], vector, out[run])

    def weighted_sum_rows_each(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
        vector_ends: NDArray[np.int32],
        block_ends: NDArray[np.int32],
        out: NDArray[np.float32],
    ) -> None:
        """`weighted_sum_rows` of each vector of out [vectors * d], by its ids and its blocks."""
        self._check_open()
        require_array("ids", ids, np.int32)
        require_array("weights", weights, np.float32)
        require_array("block_ends", block_ends, np.int32)
        require_array("out", out, np.float32, writable=True)
        if len(weights) != len(ids):
            raise ValueError(f"weights has {len(weights)} values for {len(ids)} ids")
        vectors = _vectors("out", out, vector_ends)
        row_starts(rows, row_stride, row_offset, row_bytes(dtype, vectors.shape[1]), ids)
        runs = _runs("vector_ends", vector_ends, len(ids))
        _runs("block_ends", block_ends, len(ids))
        for run in runs:
            if run.start < run.stop not in block_ends:
                raise ValueError(f"a block has rows of two vectors: none ends at id {run.stop}")
        for vector, run in zip(vectors, runs, strict=True):
            ends = block_ends[(block_ends > run.start) & (block_ends <= run.stop)] - run.start
            self.weighted_sum_rows(
                rows, row_stride, row_offset, dtype, ids[run], weights[run],
                ends.astype(np.int32), vector,
            )  # fmt: skip

    def dot_rows_all(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        x: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """`dot_rows` of the same ids for each vector of x [vectors, d]; out [vectors, ids]."""
        self._check_open()
        check_vectors("x", x, "out", out)
        _check_ids("out", out, ids)
        row_starts(rows, row_stride, row_offset, row_bytes(dtype, x.shape[1]), ids)
        for vector, products in zip(x, out, strict=True):
            self.dot_rows(rows, row_stride, row_offset, dtype, ids, vector, products)

    def weighted_sum_rows_all(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
        block_ends: NDArray[np.int32],
        out: NDArray[np.float32],
    ) -> None:
        """`weighted_sum_rows` of the same ids for each vector of out [vectors, d]."""
        self._check_open()
        check_vectors("weights", weights, "out", out)
        _check_ids("weights", weights, ids)
        row_starts(rows, row_stride, row_offset, row_bytes(dtype, out.shape[1]), ids)
        _runs("block_ends", block_ends, len(ids))
        where = (rows, row_stride, row_offset, dtype, ids)
        for weigh, total in zip(weights, out, strict=True):
            self.weighted_sum_rows(*where, weigh, block_ends, total)

    @unwarned
    def attend(
        self,
        query: NDArray[np.float32],
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        dtype: str,
        columns: int,
        kv_heads: int,
        first: int,
        end: int,
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """One token's attention: out [heads * columns] = softmax(scale * query @ keys) @ values.

        `sinks` [heads] are scores of no position: they take their share, and bring no value.
        """
        self._check_open()
        cache = attention.HeadRows(dtype, columns, kv_heads)
        attention.attend(query, keys, values, cache, (first, end), scale, out, sinks)

    def attend_projected(
        self,
        query: NDArray[np.float32],
        key: NDArray[np.float32],
        value: NDArray[np.float32],
        query_norm: NDArray[np.float32] | None,
        key_norm: NDArray[np.float32] | None,
        eps: float,
        cos: NDArray[np.float32] | None,
        sin: NDArray[np.float32] | None,
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        dtype: str,
        columns: int,
        kv_heads: int,
        first: int,
        position: int,
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """One token's `place_heads`, `write_head_rows` and `attend`."""
        turned_by = [None if of is None else of[None] for of in (cos, sin)]
        placed = [np.empty_like(one) for one in (query, key)]
        for one, norm, to in zip((query, key), (query_norm, key_norm), placed, strict=True):
            self.place_heads(one[None], columns, norm, eps, turned_by[0], turned_by[1], to)
        for name, rows, cache in (("key", placed[1], keys), ("value", value, values)):
            try:
                self.write_head_rows(rows, dtype, columns, kv_heads, position, cache)
            except (OverflowError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from error
        seen = first, position + 1
        self.attend(placed[0], keys, values, dtype, columns, kv_heads, *seen, scale, out, sinks)

    @unwarned
    def attend_each(
        self,
        query: NDArray[np.float32],
        keys: Sequence[NDArray[np.uint8]],
        values: Sequence[NDArray[np.uint8]],
        dtype: str,
        columns: int,
        kv_heads: int,
        ends: NDArray[np.int64],
        window: int,
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """`attend` of a token of each of several contexts, out [contexts, heads * columns]."""
        self._check_open()
        cache = attention.HeadRows(dtype, columns, kv_heads)
        attention.attend_each(query, keys, values, cache, (ends, window), scale, out, sinks)

    @unwarned
    def attend_many(
        self,
        query: NDArray[np.float32],
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        dtype: str,
        columns: int,
        kv_heads: int,
        tokens: int,
        end: int,
        window: int,
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """`attend` of the last `tokens` of `end` positions, each of which sees those before it."""
        self._check_open()
        cache = attention.HeadRows(dtype, columns, kv_heads)
        seen = (tokens, end, window)
        attention.attend_many(query, keys, values, cache, seen, scale, out, sinks)

    @unwarned
    def attend_runs(
        self,
        query: NDArray[np.float32],
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        dtype: str,
        columns: int,
        runs: NDArray[np.int64],
        run_ends: NDArray[np.int32],
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """`attend` of rows in runs [n, 3]: bytes of keys and of values, and how many rows."""
        self._check_open()
        cache = attention.HeadRows(dtype, columns, len(run_ends))
        rows = attention.Runs(runs, run_ends)
        attention.attend_runs(query, keys, values, cache, rows, scale, out, sinks)

    @unwarned
    def attend_many_runs(
        self,
        query: NDArray[np.float32],
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
        dtype: str,
        columns: int,
        runs: NDArray[np.int64],
        run_ends: NDArray[np.int32],
        tokens: int,
        window: int,
        scale: float,
        out: NDArray[np.float32],
        sinks: NDArray[np.float32] | None = None,
    ) -> None:
        """`attend_many` of rows in runs, of as many positions as each key head has rows."""
        self._check_open()
        cache = attention.HeadRows(dtype, columns, len(run_ends))
        rows, seen = attention.Runs(runs, run_ends), (tokens, window)
        attention.attend_many_runs(query, keys, values, cache, rows, seen, scale, out, sinks)

    def write_head_rows(
        self,
        values: NDArray[np.float32],
        dtype: str,
        columns: int,
        kv_heads: int,
        position: int,
        cache: NDArray[np.uint8],
    ) -> None:
        """Encode [kv_heads, tokens, columns] as the rows of positions from `position` on."""
        self._check_open()
        rows = attention.HeadRows(dtype, columns, kv_heads)
        attention.write_head_rows(values, rows, position, cache)

    def write_head_rows_each(
        self,
        values: NDArray[np.float32],
        dtype: str,
        columns: int,
        kv_heads: int,
        positions: NDArray[np.int64],
        caches: Sequence[NDArray[np.uint8]],
    ) -> None:
        """`write_head_rows` of a token [kv_heads * columns] of each of several contexts."""
        self._check_open()
        rows = attention.HeadRows(dtype, columns, kv_heads)
        attention.write_head_rows_each(values, rows, positions, caches)

    @unwarned
    def norm_rows(
        self,
        x: NDArray[np.float32],
        weight: NDArray[np.float32] | None,
        bias: NDArray[np.float32] | None,
        centred: bool,
        eps: float,
        out: NDArray[np.float32],
    ) -> None:
        """Out = x [rows, columns], normed, times `weight` and plus `bias` [columns]."""
        self._check_open()
        token_rows.norm_rows(x, weight, bias, centred, eps, out)

    @unwarned
    def place_heads(
        self,
        x: NDArray[np.float32],
        columns: int,
        weight: NDArray[np.float32] | None,
        eps: float,
        cos: NDArray[np.float32] | None,
        sin: NDArray[np.float32] | None,
        out: NDArray[np.float32],
    ) -> None:
        """Out [heads, tokens, columns] = the heads of x, normed and turned."""
        self._check_open()
        token_rows.place_heads(x, columns, weight, eps, cos, sin, out)

    @unwarned
    def add_shares(
        self,
        rows: NDArray[np.float32],
        weights: NDArray[np.float32],
        ids: NDArray[np.int32],
        out: NDArray[np.float32],
    ) -> None:
        """Row ids[i] of `out` += weights[i] * row i of `rows`, in order of i."""
        self._check_open()
        token_rows.add_shares(rows, weights, ids, out)

    def encode_rows(
        self,
        values: NDArray[np.float32],
        columns: int,
        dtype: str,
        out: NDArray[np.uint8],
    ) -> None:
        """Encode values [n * columns] into out [n * row_bytes]: ValueError for NaN and infinity."""
        self._check_open()
        require_array("values", values, np.float32)
        require_array("out", out, np.uint8, writable=True)
        nbytes = row_bytes(dtype, columns)
        count = len(values) // columns
        if len(values) % columns or len(out) != count * nbytes:
            raise ValueError(
                f"values has {len(values)} values and out {len(out)} bytes; rows of {columns} "
                f"columns and {nbytes} bytes were expected"
            )
        rows, encoded = values.reshape(count, columns), out.reshape(count, nbytes)
        for first in range(0, count, DECODED_ROWS):
            part = slice(first, first + DECODED_ROWS)
            encoded[part] = numpy_rows.encode(rows[part], dtype, first)

    @unwarned
    def decode_rows(
        self,
        rows: NDArray[np.uint8],
        row_stride: int,
        row_offset: int,
        dtype: str,
        ids: NDArray[np.int32],
        columns: int,
        out: NDArray[np.float32],
    ) -> None:
        """Out [n * columns] = the values of the rows at bytes ids * row_stride + row_offset."""
        self._check_open()
        require_array("out", out, np.float32, writable=True)
        nbytes = row_bytes(dtype, columns)
        starts = row_starts(rows, row_stride, row_offset, nbytes, ids)
        if len(out) != len(ids) * columns:
            raise ValueError(f"out has {len(out)} values for {len(ids)} ids of {columns} columns")
        for decoded, start in zip(out.reshape(len(ids), columns), starts, strict=True):
            decoded[:] = numpy_rows.decode(rows[None, start : start + nbytes], dtype, columns)[0]

    def decode_tiles(self, rows: object, dtype: str, *rest: object) -> None:  # noqa: ARG002
        """Refused: `tile_matrix` makes none."""
        self._check_open()
        raise no_tiles(dtype)

    def copy_rows(
        self,
        rows: NDArray[np.uint8],
        row_ids: NDArray[np.int32],
        row_bytes: int,
        to: NDArray[np.uint8],
        to_ids: NDArray[np.int32],
    ) -> None:
        """Row to_ids[i] of `to` = row row_ids[i] of `rows`, for rows of `row_bytes` bytes."""
        self._check_open()
        require_array("to", to, np.uint8, writable=True)
        if len(to_ids) != len(row_ids):
            raise ValueError(f"to_ids has {len(to_ids)} values for {len(row_ids)} ids")
        begins = row_starts(rows, row_bytes, 0, row_bytes, row_ids)
        ends = row_starts(to, row_bytes, 0, row_bytes, to_ids)
        for begin, end in zip(begins, ends, strict=True):
            to[end : end + row_bytes] = rows[begin : begin + row_bytes]


def _check_ids(name: str, values: NDArray[np.float32], ids: NDArray[np.int32]) -> None:
    """A column for each id."""
    require_array("ids", ids, np.int32)
    if values.shape[1] != len(ids):
        raise ValueError(f"{name} has {values.shape[1]} values for {len(ids)} ids")


def _runs(name: str, ends: NDArray[np.int32], count: int) -> list[slice]:
    """Runs of ids by their ends, which are all of them."""
    require_array(name, ends, np.int32)
    bounds = [0, *ends.tolist()]
    if bounds[-1] != count or any(np.diff(bounds) < 0):
        raise ValueError(f"{name} must rise to the number of ids, {count}")
    return [slice(first, last) for first, last in itertools.pairwise(bounds)]


def _vectors(
    name: str, values: NDArray[np.float32], vector_ends: NDArray[np.int32]
) -> NDArray[np.float32]:
    """[vectors * d] as [vectors, d], the same memory."""
    if not len(vector_ends) or len(values) % len(vector_ends):
        raise ValueError(f"{name} has {len(values)} values for {len(vector_ends)} vectors")
    return values.reshape(len(vector_ends), -1)
