"""Chosen pages of one layer on their way into slots, ahead of the attention that needs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm.kv_cache.layout import PageShape
from flashllm.kv_cache.page_pool import PagePool
from flashllm.kv_cache.tiers import PageRead, Pages

Runs = tuple[NDArray[np.int64], NDArray[np.int32]]
"""Runs [n, 3] and where each head's end, as the core's `attend_runs` takes them."""


class PageFetch:
    """Pages of each key head, of which some are read; all stay until `release`.

    Begin it a layer ahead, `wait`, take the runs, attend, `release`. What was read stays in its
    slots afterwards, as long as the pool's policy keeps it.
    """

    def __init__(
        self,
        pool: PagePool,
        pages: Sequence[Pages],
        blocks: Sequence[NDArray[np.int64]],
        end: int,
    ) -> None:
        """`blocks` are the numbers of `pages` within their context, whose `end` positions count."""
        self._pool, self._blocks, self._end = pool, list(blocks), end
        every = np.concatenate(list(pages)) if pages else np.empty(0, np.int64)
        self._bounds = np.cumsum([len(of_head) for of_head in pages])[:-1]
        self._read: PageRead | None = None
        self._taken = np.empty(0, np.int64)
        self._missing = np.empty(0, np.int64)
        self.bytes_read = 0
        """Bytes of the pages that were not in DRAM."""
        self._slots = pool.slots(every)
        here = self._slots >= 0
        self._pinned = self._slots[here]
        pool.pin(self._pinned)
        try:
            self._begin(every[~here], ~here)
        except BaseException:
            self.release()
            raise
        pool.used(self._pinned)

    @property
    def pages(self) -> int:
        """Pages that stay until they are released."""
        return len(self._pinned) + len(self._taken)

    @property
    def pages_read(self) -> int:
        """Pages that were not in DRAM."""
        return len(self._missing)

    def wait(self) -> None:
        """Until all pages are there; `ReadFailed` if not."""
        if self._read is None:
            return
        assert self._pool.file is not None
        read, self._read = self._read, None
        try:
            self._pool.file.wait(read)
        except BaseException:
            taken, self._taken = self._taken, np.empty(0, np.int64)
            self._pool.give_back(taken)
            raise
        taken, self._taken = self._taken, np.empty(0, np.int64)
        # Another fetch may have brought a page meanwhile.
        there = self._pool.slots(self._missing)
        is_new = there < 0
        self._pool.place(self._missing[is_new], taken[is_new])
        self._pool.give_back(taken[~is_new])
        slots = np.where(is_new, taken, there)
        self._slots[self._where] = slots
        self._pool.pin(slots)
        self._pinned = np.concatenate([self._pinned, slots])

    def runs(self, tokens: Sequence[NDArray[np.int64]] | None = None) -> Runs:
        """Runs of all tokens of the pages, or of chosen ones of each head, ascending.

        Those must be of pages that were fetched. A page that is not full has the tokens before the
        context's end.
        """
        assert self._read is None
        size, slots = self._pool.shape.tokens, np.split(self._slots, self._bounds)
        of_heads = []
        for head, blocks in enumerate(self._blocks):
            if tokens is None:
                firsts = blocks * size
                counts = np.minimum(firsts + size, self._end) - firsts
            else:
                firsts, counts = joined(tokens[head], size)
            places = slots[head][np.searchsorted(blocks, firsts // size)]
            of_heads.append(token_runs(self._pool.shape, places, firsts % size, counts))
        return together(of_heads)

    def release(self) -> None:
        """The pages may leave again. A read under way is waited for, and dropped."""
        if self._read is not None:
            assert self._pool.file is not None
            read, self._read = self._read, None
            self._pool.file.abandon(read)
        if len(self._taken):
            self._pool.give_back(self._taken)
            self._taken = np.empty(0, np.int64)
        self._pool.unpin(self._pinned)
        self._pinned = np.empty(0, np.int64)

    def _begin(self, missing: Pages, where: NDArray[np.bool_]) -> None:
        if not len(missing):
            return
        pool = self._pool
        assert pool.file is not None
        assert pool.is_on_flash(missing).all()
        self._taken = pool.take(len(missing))
        self._missing, self._where = missing, where
        self._read = pool.file.submit(missing, self._taken * pool.shape.page_bytes)
        self.bytes_read = len(missing) * pool.shape.page_bytes


def token_runs(
    shape: PageShape,
    places: NDArray[np.int64],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Runs [n, 3] of so many tokens of pages in `places`, from their `firsts` on."""
    keys = places * shape.page_bytes + firsts * shape.row_bytes
    return np.stack([keys, keys + shape.part_bytes, counts], axis=1)


def together(of_heads: Sequence[NDArray[np.int64]]) -> Runs:
    """The runs of all heads, from those of each."""
    ends = np.cumsum([len(runs) for runs in of_heads], dtype=np.int32)
    return np.concatenate(of_heads), ends


def joined(tokens: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First token and length of the runs of `tokens`, none of which leaves its page."""
    starts = np.flatnonzero(np.append(True, (np.diff(tokens) != 1) | (tokens[1:] % size == 0)))
    return tokens[starts], np.diff(np.append(starts, len(tokens)))
