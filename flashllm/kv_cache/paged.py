"""Keys and values of one context in pages, in DRAM or on flash: the same bits as in one piece.

Attention reads rows where they lie. Pages on flash are staged (`page_staging`), so that a step
needs memory for two heads' pages and no more, and reads each page once. Source of pages and of
sharing them: PagedAttention, arXiv 2309.06180, section 4.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.errors import ReadFailed
from flashllm.kv_cache.layout import PageShape
from flashllm.kv_cache.page_fetch import PageFetch, Runs, joined, together, token_runs
from flashllm.kv_cache.page_pool import PagePool
from flashllm.kv_cache.page_staging import Slots, StagedHeads
from flashllm.kv_cache.protocol import ChooseByScores, KeysValues, SeesEverything
from flashllm.kv_cache.rows import RowWriter, in_order
from flashllm.kv_cache.tiers import PageFile, PageRead, Pages
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.options import KvDType
from flashllm.spec import ModelSpec

_TOKENS_AT_ONCE = 256
"""Tokens of a prompt whose rows are encoded before they go to their pages."""


class PagedKvCache(SeesEverything):
    """As `KeysValues` says, of pages of a pool that several contexts share."""

    def __init__(
        self,
        spec: ModelSpec,
        context: int,
        dtype: KvDType,
        kernels: core.Kernels,
        pool: PagePool,
    ) -> None:
        """`context` in tokens."""
        self.pool, self._shape = pool, pool.shape
        self._kernels = kernels
        self._heads, self._columns = spec.n_kv_heads, spec.head_dim
        self._sharing = spec.n_heads // spec.n_kv_heads
        self._writer = RowWriter(kernels, dtype, spec.head_dim, spec.n_kv_heads)
        self.blocks: list[int] = []
        """Those of the tokens, in order; the last ones may be of tokens to come."""
        # Whoever drops a context need not close it; its blocks go at the next chance.
        self._end = weakref.finalize(self, pool.abandoned.append, self.blocks)
        self.dtype = dtype
        self.context = context
        self.length = 0
        self.is_damaged = False
        self.row_bytes = pool.shape.row_bytes
        """Of a token's key in one head, and of its value."""
        self.scored_bytes = 0
        self._prefetched: dict[int, PageFetch] = {}
        """By layer: pages that are on their way, or pinned, for `attend_to`."""

    def close(self) -> None:
        """Give all pages back; only `length` and `context` can be asked for afterwards."""
        for layer in list(self._prefetched):
            self._drop_prefetched(layer)
        if self._end.detach() is not None:
            self.pool.drop_blocks(self.blocks)
            self.blocks.clear()

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        assert 0 <= length <= self.length
        for layer in list(self._prefetched):
            self._drop_prefetched(layer)
        self.length = length
        self.is_damaged = self.is_damaged and length > 0
        kept = self._shape.blocks(length)
        self.pool.drop_blocks(self.blocks[kept:])
        del self.blocks[kept:]

    def copy(self, other: KeysValues, length: int) -> None:
        """Forget all tokens, and take over the first `length` of another context of this pool.

        They are shared. Rows are copied only of a block that is not full, when either goes on.
        """
        assert isinstance(other, PagedKvCache)
        assert other.pool is self.pool
        assert 0 <= length <= other.length
        blocks = other.blocks[: self._shape.blocks(length)]
        self.pool.share_blocks(blocks)
        self.truncate(0)
        self.blocks += blocks
        self.length = length

    def append(self, layer: int, keys: Floats, values: Floats) -> int:
        """Store [kv_heads, tokens, head_dim] after `length`; the number of positions then.

        Errors are those of `KvCache`, and of `PagePool.writable`.
        """
        tokens = int(keys.shape[1])
        self._own_blocks(self.length + tokens)
        for first in range(0, tokens, _TOKENS_AT_ONCE):
            own = slice(first, min(first + _TOKENS_AT_ONCE, tokens))
            count = own.stop - first
            encoded = np.empty((2, self._heads * count * self._shape.row_bytes), np.uint8)
            for kind, (name, rows) in enumerate((("key", keys), ("value", values))):
                self._writer.write(layer, name, rows[:, own], 0, encoded[kind])
            self._store(layer, self.length + first, encoded.reshape(2, self._heads, count, -1))
        return self.length + tokens

    def append_encoded(self, layer: int, tokens: int, rows: NDArray[np.uint8]) -> None:
        """Store the bytes of rows of so many tokens, as `encoded` gave them, after `length`."""
        self._own_blocks(self.length + tokens)
        self._store(layer, self.length, rows.reshape(2, self._heads, tokens, -1))

    def expect(self, layer: int, window: int) -> None:
        """The attention after the next one will be this one: its pages may be read meanwhile."""
        here = weakref.ref(self)  # nobody keeps a context for what is expected

        def pages() -> tuple[Pages, Slots]:
            cache = here()
            nothing = np.empty((0, 0), np.int64)
            found = nothing if cache is None else cache.full_pages(layer, window)
            return found, nothing if cache is None else cache.pool.slots(found)

        self.pool.staging.expect(pages)

    def full_pages(self, layer: int, window: int) -> Pages:
        """Pages [kv_heads, blocks] of the full blocks that the next token will see."""
        size = self._shape.tokens
        first = max(self.length + 1 - window, 0) if window else 0
        table = np.array(self.blocks[first // size : self.length // size], np.int64)
        return self.pool.pages(layer, table)

    def attend(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """Attention of tokens that were just appended, as that of `KvCache`.

        `ReadFailed` where pages on flash cannot be read back.
        """
        end = self.length + query.shape[0]
        first = max(self.length + 1 - window, 0) if window else 0
        begin = first - first % self._shape.tokens
        out = LARGE_ARRAYS.empty(*query.shape)
        for part in self._parts(layer, first, end, attends=True):
            heads = slice(part.first * self._sharing, part.end * self._sharing)
            runs = runs_of(self._shape, part.places, first - begin, end - begin)
            own = None if sinks is None else sinks[heads]
            out[:, heads] = self._attend(runs, query[:, heads], window, scale, own)
        return out

    def attend_decoded(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """The same: everything is seen."""
        return self.attend(layer, query, window, scale, sinks)

    def prefetch(self, layer: int, positions: NDArray[np.int32] | None) -> None:
        """Begin to read the pages of `positions` [kv_heads, count]; nothing if that is all."""
        self._drop_prefetched(layer)
        if positions is None or not self.pool.overlaps:
            return
        blocks = [np.unique(own // self._shape.tokens).astype(np.int64) for own in positions]
        # Once the layer's own queries are known there may be as many again. If they had no room
        # all would be staged, and these be read in vain.
        if self.pool.has_room(2 * sum(map(len, blocks))):
            self._prefetched[layer] = self.fetch(layer, blocks)

    def attend_to(
        self,
        layer: int,
        query: Floats,
        positions: NDArray[np.int32],
        scale: float,
        sinks: Floats | None = None,
    ) -> Floats:
        """Attention of one token [1, heads, head_dim] to itself and to some that came before it.

        `positions` [kv_heads, count] are ascending. `ReadFailed` where their pages cannot be read.
        """
        own = np.full((self._heads, 1), self.length, np.int32)
        tokens = np.hstack((positions, own)).astype(np.int64)
        blocks = [np.unique(of_head // self._shape.tokens) for of_head in tokens]
        ahead = self._prefetched.pop(layer, None)
        try:
            if ahead is not None:
                ahead.wait()
            if not self.pool.has_room(sum(map(len, blocks)) - (ahead.pages if ahead else 0)):
                return self._attend_staged(layer, query, tokens, scale, sinks)
            # The page of the token itself is there, since it was written just now.
            whole = self.fetch(layer, blocks, self.length + 1)
            try:
                whole.wait()
                return self.attend_runs(query, whole.runs(list(tokens)), scale, sinks)
            finally:
                whole.release()
        except ReadFailed:
            self.is_damaged = True
            raise
        finally:
            if ahead is not None:
                ahead.release()

    def attend_by_scores(
        self,
        layer: int,
        query: Floats,
        choose: ChooseByScores,
        scale: float,
        sinks: Floats | None = None,
    ) -> Floats:
        """As `SelectableRows` says; the next head's keys are read with the present one's values.

        `ReadFailed` where pages cannot be read back.
        """
        pages = self.pool.pages(layer, np.array(self.blocks[: self._shape.blocks(self.length + 1)]))
        keys = self._keys_of_heads(pages)
        out = LARGE_ARRAYS.empty(*query.shape)
        try:
            for head, (slots, missing) in enumerate(keys):
                heads = slice(head * self._sharing, (head + 1) * self._sharing)
                scores = self._page_scores(slots, query[0, heads], self.length + 1)
                chosen = choose(head, np.float32(scale) * scores)
                tokens = np.append(chosen, self.length).astype(np.int64)
                blocks = tokens // self._shape.tokens
                wanted = np.zeros(len(slots), np.bool_)
                wanted[blocks] = missing[blocks]
                values = self.pool.staging.read_part(pages[head], slots, 1, 0, wanted)
                if values is not None:
                    self._file.wait(values)
                runs = together([self._token_runs(slots, tokens)])
                own = None if sinks is None else sinks[heads]
                out[:, heads] = self._attend(runs, query[:, heads], 0, scale, own)
        except ReadFailed:
            self.is_damaged = True
            raise
        finally:
            keys.close()
        return out

    @property
    def _file(self) -> PageFile:
        assert self.pool.file is not None
        return self.pool.file

    def _keys_of_heads(self, pages: Pages) -> Generator[tuple[Slots, NDArray[np.bool_]]]:
        """Of each head the places of its pages, whose keys are there, and which had no slot."""
        pool = self.pool
        slots = pool.slots(pages)
        missing = slots < 0
        pool.used(slots[~missing])

        def begin(head: int) -> PageRead | None:
            half = head % 2
            return pool.staging.read_part(pages[head], slots[head], 0, half, missing[head])

        coming = begin(0)
        try:
            for head in range(self._heads):
                if coming is not None:
                    self._file.wait(coming)
                coming = begin(head + 1) if pool.overlaps and head + 1 < self._heads else None
                yield slots[head], missing[head]
                if not pool.overlaps and head + 1 < self._heads:
                    coming = begin(head + 1)
        finally:
            if coming is not None:
                self._file.abandon(coming)

    def _page_scores(
        self, places: Slots, queries: NDArray[np.float32], end: int
    ) -> NDArray[np.float32]:
        """Products [queries, end] with the first `end` keys of pages in `places`."""
        rows = self.pool.rows[places, 0].reshape(-1, self._shape.row_bytes)[:end]
        out = np.empty((len(queries), len(rows)), np.float32)
        self._kernels.matmul(rows.reshape(-1), self.dtype, np.ascontiguousarray(queries), out)
        return out

    def _attend_staged(
        self,
        layer: int,
        query: Floats,
        tokens: NDArray[np.int64],
        scale: float,
        sinks: Floats | None,
    ) -> Floats:
        """The same where there are too few slots: their pages are staged, some heads at a time."""
        size = self._shape.tokens
        pages = self.pool.pages(layer, np.array(self.blocks[: self._shape.blocks(self.length + 1)]))
        slots = self.pool.slots(pages)
        is_wanted = np.zeros(pages.shape, np.bool_)
        np.put_along_axis(is_wanted, tokens // size, True, axis=1)
        self.pool.used(slots[is_wanted & (slots >= 0)])
        slots[~is_wanted & (slots < 0)] = 0  # any place will do: nobody looks there
        out = LARGE_ARRAYS.empty(*query.shape)
        for part in self.pool.staging.parts(pages, slots):
            runs = together(
                [
                    self._token_runs(places, own)
                    for places, own in zip(part.places, tokens[part.first : part.end], strict=True)
                ]
            )
            heads = slice(part.first * self._sharing, part.end * self._sharing)
            own_sinks = None if sinks is None else sinks[heads]
            out[:, heads] = self._attend(runs, query[:, heads], 0, scale, own_sinks)
        return out

    def _token_runs(self, places: Slots, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Runs [n, 3] of ascending tokens of a head, whose page n lies in places[n]."""
        size = self._shape.tokens
        firsts, counts = joined(tokens, size)
        return token_runs(self._shape, places[firsts // size], firsts % size, counts)

    def scores(
        self, layer: int, kv_head: int, queries: NDArray[np.float32], end: int
    ) -> NDArray[np.float32]:
        """Products [queries, end] of queries [queries, head_dim] with a head's first `end` keys."""
        table = np.array(self.blocks[: self._shape.blocks(end)], np.int64)
        pages = self.pool.pages(layer, table)[kv_head]
        slots = self.pool.slots(pages)
        missing = slots < 0
        self.scored_bytes += int(np.count_nonzero(missing)) * self._shape.part_bytes
        try:
            keys = self.pool.staging.read_part(pages, slots, 0, 0, missing)
            if keys is not None:
                self._file.wait(keys)
        except ReadFailed:
            self.is_damaged = True
            raise
        return self._page_scores(slots, queries, end)

    def _drop_prefetched(self, layer: int) -> None:
        """What a token fetched that was given up half way."""
        fetch = self._prefetched.pop(layer, None)
        if fetch is not None:
            fetch.release()

    def fetch(
        self, layer: int, blocks: Sequence[NDArray[np.int64]], end: int | None = None
    ) -> PageFetch:
        """Begin to bring chosen pages of a layer into slots, where they stay until it is released.

        `blocks` has for each key head the numbers of pages of this context, ascending: page n has
        the tokens from n * 16 on. `end` is the number of positions that are seen, `length` unless
        told otherwise. Errors of `PagePool.take`.
        """
        table = np.array(self.blocks, np.int64)
        pages = [self.pool.pages(layer, table[chosen])[head] for head, chosen in enumerate(blocks)]
        return PageFetch(self.pool, pages, list(blocks), self.length if end is None else end)

    def attend_runs(
        self, query: Floats, runs: Runs, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """Attention of one token, [1, heads, head_dim] to the same, to the rows of `runs` alone.

        `runs` are those of a `PageFetch` that was waited for.
        """
        return self._attend(runs, query, 0, scale, sinks)

    def encoded(self, layer: int, first: int, end: int) -> NDArray[np.uint8]:
        """A copy of [keys or values, kv_heads, positions, bytes of a row]."""
        shape, at = self._shape, np.arange(first, end)
        pages, tokens = at // shape.tokens - first // shape.tokens, at % shape.tokens
        rows = np.empty((2, self._heads, end - first, shape.row_bytes), np.uint8)
        for part in self._parts(layer, first, end):
            places = part.places[:, pages]
            for kind in range(2):
                rows[kind, part.first : part.end] = self.pool.rows[places, kind, tokens]
        return rows

    def _own_blocks(self, end: int) -> None:
        """Blocks for positions up to `end`; the one that goes on is this context's alone."""
        pool, shape = self.pool, self._shape
        last = self.length // shape.tokens
        if self.length % shape.tokens and pool.is_shared(self.blocks[last]):
            copy = pool.take_block()
            pool.copy_block(self.blocks[last], copy)
            pool.drop_blocks([self.blocks[last]])
            self.blocks[last] = copy
        while len(self.blocks) < shape.blocks(end):
            self.blocks.append(pool.take_block())

    def _store(self, layer: int, position: int, encoded: NDArray[np.uint8]) -> None:
        """Rows [2, kv_heads, tokens, row] to the pages at `position`, some pages at a time."""
        pool, shape = self.pool, self._shape
        tokens, rows = encoded.shape[2], pool.rows
        step = max(pool.plan.slots // (4 * self._heads), 1)
        first_block, end_block = position // shape.tokens, shape.blocks(position + tokens)
        for begin in range(first_block, end_block, step):
            end = min(begin + step, end_block)
            slots = self._writable(layer, self.blocks[begin:end])
            first = max(begin * shape.tokens, position)
            stop = min(end * shape.tokens, position + tokens)
            positions = np.arange(first, stop)
            chosen = slots[:, positions // shape.tokens - begin]  # [kv_heads, positions]
            own = slice(first - position, stop - position)
            for kind in range(2):
                rows[chosen, kind, positions % shape.tokens] = encoded[kind, :, own]

    def _writable(self, layer: int, blocks: list[int]) -> Slots:
        try:
            return self.pool.writable(layer, np.array(blocks, np.int64))
        except ReadFailed:
            self.is_damaged = True
            raise

    def _attend(
        self, runs: Runs, query: Floats, window: int, scale: float, sinks: Floats | None
    ) -> Floats:
        memory, tokens, queries = self.pool.memory, query.shape[0], in_order(query)
        out = LARGE_ARRAYS.empty(*query.shape)
        cache = memory, memory, self.dtype, self._columns, *runs
        rest = scale, out.reshape(-1), sinks
        if tokens == 1:
            self._kernels.attend_runs(queries, *cache, *rest)
        else:
            self._kernels.attend_many_runs(queries, *cache, tokens, window, *rest)
        return out

    def _parts(
        self,
        layer: int,
        first: int,
        end: int,
        *,
        attends: bool = False,
    ) -> Iterator[StagedHeads]:
        """Heads whose rows of positions `first` to `end` - 1 are in DRAM, some at a time."""
        table = np.array(self.blocks[first // self._shape.tokens : self._shape.blocks(end)])
        pages = self.pool.pages(layer, table.astype(np.int64))
        slots = self.pool.slots(pages)
        self.pool.used(slots[slots >= 0])
        assert self.pool.is_on_flash(pages[slots < 0]).all()
        try:
            yield from self.pool.staging.parts(pages, slots, attends=attends)
        except ReadFailed:
            self.is_damaged = True
            raise


def runs_of(shape: PageShape, places: Slots, first: int, end: int) -> Runs:
    """Runs of pages in `places` [kv_heads, pages], of which rows `first` to `end` - 1 are seen."""
    heads, pages = places.shape
    runs = np.empty((heads, pages, 3), np.int64)
    runs[..., 0] = places * shape.page_bytes
    runs[..., 2] = shape.tokens
    runs[:, -1, 2] = end - (pages - 1) * shape.tokens
    runs[:, 0, 0] += first * shape.row_bytes
    runs[:, 0, 2] -= first
    runs[..., 1] = runs[..., 0] + shape.part_bytes
    return runs.reshape(-1, 3), np.arange(1, heads + 1, dtype=np.int32) * np.int32(pages)
