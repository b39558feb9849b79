"""Products of encoded rows where these lie: on a device by torch, in DRAM by the core.

A matrix, a layer's slots, or a layer's keys and values lie as a whole on one side, so what computes
a product depends on the plan alone, not on what was read before. That is FlexGen's delegation
(Sheng et al., arXiv 2303.06865, section 4): what does not fit on the device is computed where it
is. Vectors of tokens come from DRAM and go back there.

Rows are decoded on the device, up to `tile_bytes` of f32 at a time, and products are those of f32:
near the core's, not its bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.device.attention import attention
from flashllm.device.decode import decode
from flashllm.device.memory import TorchMemory, is_there, tensor_of
from flashllm.dtypes import row_bytes

_Floats = NDArray[np.float32]
_Rows = NDArray[np.uint8]
_Ids = NDArray[np.int32]
_Arguments = ParamSpec("_Arguments")
_RUN_BYTES = 64 << 10
"""Rows in DRAM that follow one another and are as many are copied by themselves: to begin a copy
takes some microseconds."""


def _guarded(method: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Errors of the device in a product are ours."""

    @functools.wraps(method)
    def guarded(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> None:
        kernels = arguments[0]
        assert isinstance(kernels, TorchKernels)
        with kernels.memory.errors("computing"):
            method(*arguments, **keywords)

    return guarded


class TorchKernels(core.Kernels):
    """The core's kernels, of which rows on the device are torch's."""

    def __init__(self, threads: int, memory: TorchMemory, tile_bytes: int) -> None:
        """`threads` are those of the core."""
        super().__init__(threads)
        self.memory = memory
        self._tile_bytes = tile_bytes

    def matvec(self, rows: _Rows, dtype: str, x: _Floats, out: _Floats) -> None:
        """Out [n] = rows [n, d] @ x [d]."""
        if is_there(rows):
            self._matmul(rows, dtype, x[None], out[None])
        else:
            super().matvec(rows, dtype, x, out)

    def matmul(
        self, rows: _Rows, dtype: str, x: _Floats, out: _Floats, tiled: bool = False
    ) -> None:
        """Out [vectors, n] = x [vectors, d] @ rows [n, d].T."""
        if is_there(rows):
            assert not tiled
            self._matmul(rows, dtype, x, out)
        else:
            super().matmul(rows, dtype, x, out, tiled)

    def matmul_several(
        self, rows: Sequence[_Rows], dtype: str, biases: Sequence[_Floats | None], x: _Floats,
        outs: Sequence[_Floats], tiled: bool = False,
    ) -> None:  # fmt: skip
        """`matmul` of matrices of one encoding with the same vectors, each plus its bias [n]."""
        if not any(map(is_there, rows)):
            super().matmul_several(rows, dtype, biases, x, outs, tiled)
            return
        for matrix, bias, out in zip(rows, biases, outs, strict=True):
            self.matmul(matrix, dtype, x, out, tiled)
            if bias is not None:
                out += bias

    def apply_experts(
        self, data: _Rows, begins: NDArray[np.int64], dtype: str, has_biases: bool, slope: float,
        limit: float, up_offset: float, x: _Floats, room: _Floats, out: _Floats,
        weights: _Floats | None = None, total: _Floats | None = None,
    ) -> None:  # fmt: skip
        """Outputs [experts, d] of experts that begin at bytes of `data`: gate, up and down."""
        gates = slope, limit, up_offset
        if not is_there(data):
            where = data, begins, dtype, has_biases
            super().apply_experts(*where, *gates, x, room, out, weights, total)
            return
        neurons, columns = room.shape[1] // 2, x.shape[1]
        down = 2 * neurons * row_bytes(dtype, columns)
        behind = down + columns * row_bytes(dtype, neurons)
        biases = np.zeros((len(begins), 2 * neurons + columns), np.float32)
        if has_biases:
            for number, begin in enumerate((begins + behind).tolist()):
                biases[number] = np.asarray(data[begin : begin + biases[0].nbytes]).view(np.float32)
        self.matvec_each(data, begins, dtype, x, room)
        room += biases[:, : 2 * neurons]
        hidden = np.empty((len(room), neurons), np.float32)
        core.gate_rows(room[:, :neurons], room[:, neurons:], *gates, hidden)
        self.matvec_each(data, begins + down, dtype, hidden, out)
        out += biases[:, 2 * neurons :]
        if weights is not None and total is not None:
            self.add_shares(out, weights, np.zeros(len(out), np.int32), total[None])

    def route(
        self, rows: _Rows, dtype: str, bias: _Floats | None, choice_bias: _Floats | None,
        per_token: int, sigmoid: bool, groups: int, groups_kept: int, renormalise: bool,
        sum_offset: float, weight_scale: float, x: _Floats, ids: _Ids, weights: _Floats,
    ) -> int:  # fmt: skip
        """The experts of a token whose `expert_weights` are not 0, ascending; how many."""
        how = per_token, sigmoid, groups, groups_kept, renormalise, sum_offset, weight_scale
        if not is_there(rows):
            return super().route(rows, dtype, bias, choice_bias, *how, x, ids, weights)
        logits = np.empty((1, len(rows) // row_bytes(dtype, len(x))), np.float32)
        self.matmul_several([rows], dtype, [bias], x[None], [logits])
        all_weights = np.empty_like(logits)
        core.expert_weights(logits, choice_bias, *how, all_weights)
        chosen = np.flatnonzero(all_weights[0])
        ids[: len(chosen)], weights[: len(chosen)] = chosen, all_weights[0, chosen]
        return len(chosen)

    @_guarded
    def _matmul(self, rows: _Rows, dtype: str, x: _Floats, out: _Floats) -> None:
        vectors = self.memory.upload(x)
        nbytes = row_bytes(dtype, x.shape[1])
        encoded = tensor_of(rows).view(-1, nbytes)
        parts = [
            vectors @ decode(encoded[part], dtype, x.shape[1]).T
            for part in self._tiles(len(encoded), x.shape[1])
        ]
        out[...] = self.memory.download(_together(parts, 1))

    def matvec_each(
        self, data: _Rows, begins: NDArray[np.int64], dtype: str, x: _Floats, out: _Floats
    ) -> None:
        """`matvec` of matrices that begin at bytes of `data`, out [matrices, n]."""
        if not is_there(data):
            super().matvec_each(data, begins, dtype, x, out)
            return
        nbytes = out.shape[1] * row_bytes(dtype, x.shape[1])
        for number, begin in enumerate(begins.tolist()):
            at = 0 if len(x) == 1 else number
            matrix = data[begin : begin + nbytes]
            self._matmul(matrix, dtype, x[at : at + 1], out[number : number + 1])

    def dot_rows(
        self, rows: _Rows, row_stride: int, row_offset: int, dtype: str, ids: _Ids,
        x: _Floats, out: _Floats,
    ) -> None:  # fmt: skip
        """out[i] = dot of x with the row at byte ids[i] * row_stride + row_offset."""
        if is_there(rows):
            self._dots(
                _Places(rows, row_stride, row_offset, dtype, len(x)), ids, x[None], out[None]
            )
        else:
            super().dot_rows(rows, row_stride, row_offset, dtype, ids, x, out)

    def dot_rows_all(
        self, rows: _Rows, row_stride: int, row_offset: int, dtype: str, ids: _Ids,
        x: _Floats, out: _Floats,
    ) -> None:  # fmt: skip
        """`dot_rows` of the same ids for each vector of x [vectors, d]; out [vectors, ids]."""
        if is_there(rows):
            self._dots(_Places(rows, row_stride, row_offset, dtype, x.shape[1]), ids, x, out)
        else:
            super().dot_rows_all(rows, row_stride, row_offset, dtype, ids, x, out)

    @_guarded
    def _dots(self, places: _Places, ids: _Ids, x: _Floats, out: _Floats) -> None:
        vectors, numbers = self._uploaded_together(x, ids)
        parts = [
            vectors @ places.rows(numbers[part]).T for part in self._tiles(len(ids), places.columns)
        ]
        if parts:
            out[...] = self.memory.download(_together(parts, 1))

    def dot_rows_each(
        self, rows: _Rows, row_stride: int, row_offset: int, dtype: str, ids: _Ids,
        vector_ends: _Ids, x: _Floats, out: _Floats,
    ) -> None:  # fmt: skip
        """`dot_rows` of each vector of x [vectors * d], whose ids end at vector_ends [vectors]."""
        if is_there(rows):
            columns = len(x) // len(vector_ends)
            places = _Places(rows, row_stride, row_offset, dtype, columns)
            self._dots_each(places, ids, vector_ends, x, out)
        else:
            super().dot_rows_each(rows, row_stride, row_offset, dtype, ids, vector_ends, x, out)

    @_guarded
    def _dots_each(
        self, places: _Places, ids: _Ids, vector_ends: _Ids, x: _Floats, out: _Floats
    ) -> None:
        vectors = self.memory.upload(x.reshape(len(vector_ends), -1))
        numbers = self.memory.upload(ids)
        found = [
            places.rows(numbers[start + part.start : start + part.stop]) @ vectors[number]
            for number, (start, end) in enumerate(_runs(vector_ends))
            for part in self._tiles(end - start, places.columns)
        ]
        if found:
            out[...] = self.memory.download(_together(found, 0))

    def weighted_sum_rows(
        self, rows: _Rows, row_stride: int, row_offset: int, dtype: str, ids: _Ids,
        weights: _Floats, block_ends: _Ids, out: _Floats,
    ) -> None:  # fmt: skip
        """Out [d] += the sum of weights[i] * row ids[i]."""
        if is_there(rows):
            places = _Places(rows, row_stride, row_offset, dtype, len(out))
            self._sums(places, ids, weights[None], out[None])
        else:
            where = rows, row_stride, row_offset, dtype, ids
            super().weighted_sum_rows(*where, weights, block_ends, out)

    def weighted_sum_rows_all(
        self, rows: _Rows, row_stride: int, row_offset: int, dtype: str, ids: _Ids,
        weights: _Floats, block_ends: _Ids, out: _Floats,
    ) -> None:  # fmt: skip
        """`weighted_sum_rows` of the same ids for each vector of out [vectors, d]."""
        if is_there(rows):
            places = _Places(rows, row_stride, row_offset, dtype, out.shape[1])
            self._sums(places, ids, weights, out)
        else:
            where = rows, row_stride, row_offset, dtype, ids
            super().weighted_sum_rows_all(*where, weights, block_ends, out)

    @_guarded
    def _sums(self, places: _Places, ids: _Ids, weights: _Floats, out: _Floats) -> None:
        if not len(ids):
            return
        factors, numbers = self._uploaded_together(weights, ids)
        first, *others = (
            factors[:, part] @ places.rows(numbers[part])
            for part in self._tiles(len(ids), places.columns)
        )
        for sums in others:
            first += sums
        out += self.memory.download(first)

    def _uploaded_together(self, floats: _Floats, ids: _Ids) -> tuple[Tensor, Tensor]:
        """Copies on the device, by one copy: to begin one takes longer than these bytes."""
        both = self.memory.upload(np.concatenate((floats.reshape(-1).view(np.int32), ids)))
        return both[: floats.size].view(torch.float32).view(floats.shape), both[floats.size :]

    def weighted_sum_rows_each(
        self, rows: _Rows, row_stride: int, row_offset: int, dtype: str, ids: _Ids,
        weights: _Floats, vector_ends: _Ids, block_ends: _Ids, out: _Floats,
    ) -> None:  # fmt: skip
        """`weighted_sum_rows` of each vector of out [vectors * d], by its ids."""
        if is_there(rows):
            sums = out.reshape(len(vector_ends), -1)
            places = _Places(rows, row_stride, row_offset, dtype, sums.shape[1])
            for number, (start, end) in enumerate(_runs(vector_ends)):
                own = slice(start, end)
                self._sums(places, ids[own], weights[None, own], sums[number : number + 1])
        else:
            where = rows, row_stride, row_offset, dtype, ids
            super().weighted_sum_rows_each(*where, weights, vector_ends, block_ends, out)

    def attend(
        self, query: _Floats, keys: _Rows, values: _Rows, dtype: str, columns: int, kv_heads: int,
        first: int, end: int, scale: float, out: _Floats, sinks: _Floats | None = None,
    ) -> None:  # fmt: skip
        """One token's attention, out [heads * columns], to positions first to end - 1."""
        if is_there(keys):
            self._attend(query, keys, values, dtype, columns, kv_heads, 1, end, end - first,
                         scale, out, sinks)  # fmt: skip
        else:
            super().attend(query, keys, values, dtype, columns, kv_heads, first, end, scale, out,
                           sinks)  # fmt: skip

    def attend_many(
        self, query: _Floats, keys: _Rows, values: _Rows, dtype: str, columns: int, kv_heads: int,
        tokens: int, end: int, window: int, scale: float, out: _Floats,
        sinks: _Floats | None = None,
    ) -> None:  # fmt: skip
        """`attend` of the last `tokens` of `end` positions, each to those before it and itself."""
        if is_there(keys):
            self._attend(query, keys, values, dtype, columns, kv_heads, tokens, end, window,
                         scale, out, sinks)  # fmt: skip
        else:
            super().attend_many(query, keys, values, dtype, columns, kv_heads, tokens, end, window,
                                scale, out, sinks)  # fmt: skip

    @_guarded
    def _attend(
        self, query: _Floats, keys: _Rows, values: _Rows, dtype: str, columns: int, kv_heads: int,
        tokens: int, end: int, window: int, scale: float, out: _Floats, sinks: _Floats | None,
    ) -> None:  # fmt: skip
        memory = self.memory
        shape = kv_heads, -1, row_bytes(dtype, columns)
        found = attention(
            memory.upload(query.reshape(tokens, -1, columns)),
            tensor_of(keys).view(shape)[:, :end],
            tensor_of(values).view(shape)[:, :end],
            dtype,
            window,
            scale,
            None if sinks is None else memory.upload(sinks),
            self._tile_bytes,
        )
        out[...] = memory.download(found.reshape(-1))

    def write_head_rows(
        self, values: _Floats, dtype: str, columns: int, kv_heads: int, position: int, cache: _Rows
    ) -> None:
        """Encode [kv_heads, tokens, columns] as the rows of positions from `position` on."""
        if not is_there(cache):
            super().write_head_rows(values, dtype, columns, kv_heads, position, cache)
            return
        # The core encodes, so that keys and values have the same bytes on either side.
        row, tokens = row_bytes(dtype, columns), len(values) // (kv_heads * columns)
        encoded = np.empty(kv_heads * tokens * row, np.uint8)
        super().write_head_rows(values, dtype, columns, kv_heads, 0, encoded)
        with self.memory.errors("writing keys and values"):
            places = tensor_of(cache).view(kv_heads, -1, row)[:, position : position + tokens]
            places.copy_(self.memory.upload(encoded).view(kv_heads, tokens, row))

    def decode_rows(
        self, rows: _Rows, row_stride: int, row_offset: int, dtype: str, ids: _Ids, columns: int,
        out: _Floats,
    ) -> None:  # fmt: skip
        """Out [n * columns] = the values of the rows at bytes ids * row_stride + row_offset."""
        if not is_there(rows):
            super().decode_rows(rows, row_stride, row_offset, dtype, ids, columns, out)
            return
        with self.memory.errors("decoding"):
            places = _Places(rows, row_stride, row_offset, dtype, columns)
            out[...] = self.memory.download(places.rows(self.memory.upload(ids)).reshape(-1))

    def copy_rows(
        self, rows: _Rows, row_ids: _Ids, row_bytes: int, to: _Rows, to_ids: _Ids
    ) -> None:
        """Row to_ids[i] of `to` = row row_ids[i] of `rows`, wherever either is."""
        from_device, to_device = is_there(rows), is_there(to)
        if not (from_device or to_device):
            super().copy_rows(rows, row_ids, row_bytes, to, to_ids)
        elif len(row_ids):
            with self.memory.errors("copying weights"):
                self._copy(rows, row_ids, row_bytes, to, to_ids)

    def _copy(self, rows: _Rows, row_ids: _Ids, nbytes: int, to: _Rows, to_ids: _Ids) -> None:
        memory = self.memory
        if is_there(rows):
            found = self._picked(_whole_rows(tensor_of(rows), nbytes), row_ids)
        else:
            found = self._uploaded(_whole_rows(torch.from_numpy(rows), nbytes), row_ids)
        if is_there(to):
            self._put(_whole_rows(tensor_of(to), nbytes), to_ids, found)
        else:
            places = _whole_rows(torch.from_numpy(to), nbytes)
            places[torch.from_numpy(to_ids).long()] = torch.from_numpy(memory.download(found))

    def _picked(self, rows: Tensor, ids: _Ids) -> Tensor:
        """Rows on the device by number: a view where they follow one another."""
        if _follow_one_another(ids):
            return rows[int(ids[0]) : int(ids[-1]) + 1]
        return rows.index_select(0, self.memory.upload(ids))

    def _uploaded(self, rows: Tensor, ids: _Ids) -> Tensor:
        """Copies on the device of rows in DRAM by number.

        Those that follow one another are copied from where they are, which may be locked in DRAM,
        unless they are so short that to put them together first takes less time.
        """
        ends = np.append(np.flatnonzero(np.diff(ids) != 1) + 1, len(ids))
        if len(ends) > 1 and len(ids) * rows.shape[1] < len(ends) * _RUN_BYTES:
            return self.memory.copied(rows.index_select(0, torch.from_numpy(ids)))
        runs = [
            self.memory.copied(rows[int(ids[start]) : int(ids[end - 1]) + 1])
            for start, end in _runs(ends)
        ]
        return _together(runs, 0)

    def _put(self, places: Tensor, ids: _Ids, rows: Tensor) -> None:
        """Rows on the device to places there by number."""
        if _follow_one_another(ids):
            places[int(ids[0]) : int(ids[-1]) + 1].copy_(rows)
        else:
            places.index_copy_(0, self.memory.upload(ids.astype(np.int64)), rows)

    def _tiles(self, count: int, columns: int) -> Iterator[slice]:
        """Ranges of `count` rows that are decoded together."""
        step = max(self._tile_bytes // (4 * columns), 1)
        for start in range(0, count, step):
            yield slice(start, min(start + step, count))


class _Places:
    """Rows on the device, by number."""

    def __init__(
        self, rows: _Rows, row_stride: int, row_offset: int, dtype: str, columns: int
    ) -> None:
        raw, nbytes = tensor_of(rows), row_bytes(dtype, columns)
        count = (len(raw) - row_offset - nbytes) // row_stride + 1
        at = raw.storage_offset() + row_offset
        self._rows = raw.as_strided((count, nbytes), (row_stride, 1), at)
        self._dtype = dtype
        self.columns = columns

    def rows(self, numbers: Tensor) -> Tensor:
        """Those of some numbers, decoded: [n] to [n, columns]."""
        return decode(self._rows.index_select(0, numbers), self._dtype, self.columns)


def _together(parts: list[Tensor], dimension: int) -> Tensor:
    """Parts after one another; one alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dimension)


def _whole_rows(raw: Tensor, nbytes: int) -> Tensor:
    return raw[: len(raw) // nbytes * nbytes].view(-1, nbytes)


def _follow_one_another(ids: _Ids) -> bool:
    return bool(ids[-1] - ids[0] == len(ids) - 1 and np.all(np.diff(ids) == 1))


def _runs(ends: NDArray[Any]) -> Iterator[tuple[int, int]]:
    start = 0
    for end in ends.tolist():
        yield start, end
        start = end
