"""Keys and values of one context in pages, in DRAM or on flash: the same bits as in one piece.

Attention reads rows where they lie. Pages on flash are staged, the next heads' while those of the
present ones are multiplied, so that a step needs memory for two heads' pages and no more, and reads
each page once. Source of pages and of sharing them: PagedAttention, arXiv 2309.06180, section 4.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.kv_cache.page_fetch import PageFetch
from flashllm.kv_cache.page_pool import PagePool, Slots
from flashllm.kv_cache.rows import RowWriter
from flashllm.kv_cache.tiers import PageRead
from flashllm.options import KvDType
from flashllm.spec import ModelSpec


class PagedKvCache:
    """As `KvCache`, of pages of a pool that several contexts share."""

    def __init__(
        self,
        spec: ModelSpec,
        context: int,
        dtype: KvDType,
        kernels: core.Kernels,
        pool: PagePool,
    ) -> None:
        """`context` in tokens."""
        self._pool, self._shape = pool, pool.shape
        self._kernels = kernels
        self._heads, self._columns = spec.n_kv_heads, spec.head_dim
        self._sharing = spec.n_heads // spec.n_kv_heads
        self._writer = RowWriter(kernels, dtype, spec.head_dim, spec.n_kv_heads)
        self._blocks: list[int] = []
        # Whoever drops a context need not close it; its blocks go at the next chance.
        self._end = weakref.finalize(self, pool.abandoned.append, self._blocks)
        self.dtype = dtype
        self.context = context
        self.length = 0

    def close(self) -> None:
        """Give all pages back; only `length` and `context` can be asked for afterwards."""
        if self._end.detach() is not None:
            self._pool.drop_blocks(self._blocks)
            self._blocks.clear()

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        assert 0 <= length <= self.length
        self.length = length
        kept = self._shape.blocks(length)
        self._pool.drop_blocks(self._blocks[kept:])
        del self._blocks[kept:]

    def share_prefix(self, other: PagedKvCache, length: int) -> None:
        """Forget all tokens, and begin with the first `length` of another context of this pool.

        No row is copied but those of a block that is not full, when either context goes on.
        """
        assert other._pool is self._pool
        assert 0 <= length <= other.length
        blocks = other._blocks[: self._shape.blocks(length)]
        self._pool.share_blocks(blocks)
        self.truncate(0)
        self._blocks += blocks
        self.length = length

    def append(self, layer: int, keys: Tensor, values: Tensor) -> int:
        """Store [kv_heads, tokens, head_dim] after `length`; the number of positions then.

        `ModelError` for NaN, infinity, or a value that the encoding cannot hold; errors of
        `PagePool.writable`.
        """
        tokens = keys.shape[1]
        end = self.length + tokens
        assert end <= self.context
        self._own_blocks(end)
        encoded = np.empty((2, self._heads * tokens * self._shape.row_bytes), np.uint8)
        for kind, (name, rows) in enumerate((("key", keys), ("value", values))):
            self._writer.write(layer, name, rows, 0, encoded[kind])
        self._store(layer, encoded.reshape(2, self._heads, tokens, -1))
        return end

    def attend(
        self, layer: int, query: Tensor, window: int, scale: float, sinks: Tensor | None = None
    ) -> Tensor:
        """Attention of tokens that were just appended, as that of `KvCache`.

        `ReadFailed` where pages on flash cannot be read back.
        """
        tokens, end = query.shape[0], self.length + query.shape[0]
        first = max(end - tokens + 1 - window, 0) if window else 0
        out = torch.empty(query.shape)
        for part in self._parts(layer, first, end):
            heads = slice(part.first * self._sharing, part.end * self._sharing)
            mine = out if part.is_all else torch.empty_like(out[:, heads])
            self._attend(part, query[:, heads], window, scale, mine, sinks, heads)
            if not part.is_all:
                out[:, heads] = mine
        return out

    def fetch(
        self, layer: int, blocks: Sequence[NDArray[np.int64]], end: int | None = None
    ) -> PageFetch:
        """Begin to bring chosen pages of a layer into slots, where they stay until it is released.

        `blocks` has for each key head the numbers of pages of this context, ascending: page n has
        the tokens from n * 16 on. `end` is the number of positions that are seen, `length` unless
        told otherwise. Errors of `PagePool.take`.
        """
        table = np.array(self._blocks, np.int64)
        pages = [self._pool.pages(layer, table[chosen])[head] for head, chosen in enumerate(blocks)]
        return PageFetch(self._pool, pages, list(blocks), self.length if end is None else end)

    def attend_fetched(
        self,
        query: Tensor,
        runs: tuple[NDArray[np.int64], NDArray[np.int32]],
        scale: float,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention of one token, [1, heads, head_dim] to the same, to the rows of `runs` alone.

        `runs` are those of a `PageFetch` that was waited for.
        """
        out = torch.empty(query.shape)
        memory = self._pool.memory
        self._kernels.attend_runs(
            query.contiguous().view(-1).numpy(), memory, memory, self.dtype, self._columns, *runs,
            scale, out.view(-1).numpy(), None if sinks is None else sinks.numpy(),
        )  # fmt: skip
        return out

    def encoded(self, layer: int) -> NDArray[np.uint8]:
        """A copy of a layer's rows: [keys or values, kv_heads, context, bytes of a row]."""
        shape = self._shape
        rows = np.zeros((2, self._heads, self.context, shape.row_bytes), np.uint8)
        for head in range(self._heads):
            for number, block in enumerate(self._blocks):
                page = self._pool.pages(layer, np.array([block]))[head]
                slots = self._pool.slots(page)
                if slots[0] < 0:
                    slots = self._pool.bring(page)
                first = number * shape.tokens
                count = min(shape.tokens, self.context - first)
                rows[:, head, first : first + count] = self._pool.rows[slots[0], :, :count]
        return rows

    def _own_blocks(self, end: int) -> None:
        """Blocks for positions up to `end`; the one that goes on is this context's alone."""
        pool, shape = self._pool, self._shape
        last = self.length // shape.tokens
        if self.length % shape.tokens and pool.is_shared(self._blocks[last]):
            copy = pool.take_block()
            pool.copy_block(self._blocks[last], copy)
            pool.drop_blocks([self._blocks[last]])
            self._blocks[last] = copy
        while len(self._blocks) < shape.blocks(end):
            self._blocks.append(pool.take_block())

    def _store(self, layer: int, encoded: NDArray[np.uint8]) -> None:
        """Rows [2, kv_heads, tokens, row] to the pages behind `length`, some pages at a time."""
        pool, shape = self._pool, self._shape
        tokens, rows = encoded.shape[2], pool.rows
        step = max(pool.plan.slots // (4 * self._heads), 1)
        first_block, end_block = self.length // shape.tokens, shape.blocks(self.length + tokens)
        for begin in range(first_block, end_block, step):
            end = min(begin + step, end_block)
            slots = pool.writable(layer, np.array(self._blocks[begin:end], np.int64))
            first = max(begin * shape.tokens, self.length)
            stop = min(end * shape.tokens, self.length + tokens)
            positions = np.arange(first, stop)
            chosen = slots[:, positions // shape.tokens - begin]  # [kv_heads, positions]
            own = slice(first - self.length, stop - self.length)
            for kind in range(2):
                rows[chosen, kind, positions % shape.tokens] = encoded[kind, :, own]

    def _attend(
        self,
        part: _Part,
        query: Tensor,
        window: int,
        scale: float,
        out: Tensor,
        sinks: Tensor | None,
        heads: slice,
    ) -> None:
        memory, tokens = self._pool.memory, query.shape[0]
        cache = memory, memory, self.dtype, self._columns, *part.runs
        queries = query.contiguous().view(-1).numpy()
        rest = scale, out.view(-1).numpy(), None if sinks is None else sinks[heads].numpy()
        if tokens == 1:
            self._kernels.attend_runs(queries, *cache, *rest)
        else:
            self._kernels.attend_many_runs(queries, *cache, tokens, window, *rest)

    def _parts(self, layer: int, first: int, end: int) -> Iterator[_Part]:
        """Key heads whose rows of positions `first` to `end` - 1 are in DRAM, some at a time."""
        pool, shape = self._pool, self._shape
        begin = first // shape.tokens
        table = np.array(self._blocks[begin : shape.blocks(end)], np.int64)
        pages = pool.pages(layer, table)
        slots = pool.slots(pages)
        span = first - begin * shape.tokens, end - begin * shape.tokens
        missing = slots < 0
        pool.policy.used(slots[~missing])
        if not missing.any():
            yield _Part(0, self._heads, True, runs_of(pool, slots, *span))
            return
        rounds = _rounds(missing.sum(axis=1).tolist(), pool.plan.staging // 2)
        coming = self._stage(pages, slots, *rounds[0], half=0)
        try:
            for number, (head, last) in enumerate(rounds):
                read, coming = coming, None
                if number + 1 < len(rounds):
                    coming = self._stage(pages, slots, *rounds[number + 1], half=(number + 1) % 2)
                if read is not None:
                    assert pool.file is not None
                    pool.file.wait(read)
                runs = runs_of(pool, slots[head:last], *span)
                yield _Part(head, last, last - head == self._heads, runs)
        finally:
            if coming is not None:
                assert pool.file is not None
                pool.file.abandon(coming)

    def _stage(
        self, pages: NDArray[np.int64], slots: Slots, head: int, last: int, half: int
    ) -> PageRead | None:
        """Begin to read what is missing of these heads into half of the staging; `slots` learn."""
        pool = self._pool
        missing = slots[head:last] < 0
        wanted = pages[head:last][missing]
        if not len(wanted):
            return None
        assert pool.file is not None
        assert pool.is_on_flash(wanted).all()
        places = pool.plan.slots + half * (pool.plan.staging // 2) + np.arange(len(wanted))
        slots[head:last][missing] = places
        return pool.file.submit(wanted, places * self._shape.page_bytes)


@dataclass(frozen=True, slots=True)
class _Part:
    """Key heads first to end - 1, and the runs of their rows."""

    first: int
    end: int
    is_all: bool
    runs: tuple[NDArray[np.int64], NDArray[np.int32]]


def runs_of(
    pool: PagePool, places: Slots, first: int, end: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Runs for `attend_runs` of pages in `places` [kv_heads, pages], and where each head's end.

    Rows `first` to `end` - 1 are seen, of which row 0 is the first of the first page.
    """
    shape = pool.shape
    heads, pages = places.shape
    runs = np.empty((heads, pages, 3), np.int64)
    runs[..., 0] = places * shape.page_bytes
    runs[..., 2] = shape.tokens
    runs[:, -1, 2] = end - (pages - 1) * shape.tokens
    runs[:, 0, 0] += first * shape.row_bytes
    runs[:, 0, 2] -= first
    runs[..., 1] = runs[..., 0] + shape.part_bytes
    return runs.reshape(-1, 3), np.arange(1, heads + 1, dtype=np.int32) * np.int32(pages)


def _rounds(missing: list[int], fitting: int) -> list[tuple[int, int]]:
    """Heads first to end - 1 of each round, of which at most `fitting` pages are missing."""
    rounds, first, count = [], 0, 0
    for head, more in enumerate(missing):
        if count + more > fitting and head > first:
            rounds.append((first, head))
            first, count = head, 0
        count += more
    return [*rounds, (first, len(missing))]
