"""Pages that are read from flash and dropped after use, some key heads at a time.

Staging has two halves: what the present heads need is in one, while the next heads' pages are read
into the other. When an attention is at its last heads, pages of the one that follows it are read:
of the next context in the same layer, or of the first one in the next layer. These are two of the
six things that FlexGen's block has going on at once (arXiv 2303.06865, algorithm 1); writing pages
behind, reading weights ahead and computing are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.kv_cache.layout import PagePlan, PageShape
from flashllm.kv_cache.tiers import PageFile, PageRead, Pages

Slots = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StagedHeads:
    """Key heads first to end - 1, and the places of their pages, [heads, pages]."""

    first: int
    end: int
    places: Slots


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Pages of the first `heads` key heads that were asked for before their attention began."""

    pages: Pages
    places: Slots
    heads: int
    half: int
    read: PageRead


class PageStaging:
    """The staging of a pool. One caller at a time."""

    def __init__(
        self, plan: PagePlan, shape: PageShape, file: PageFile | None, overlaps: bool
    ) -> None:
        """Behind the slots, of pages of the `file`; None where all pages have slots.

        Unless it `overlaps`, nothing is read while something is computed.
        """
        self._first, self._file = plan.slots, file
        self._page_bytes, self._part_bytes = shape.page_bytes, shape.part_bytes
        self._overlaps = overlaps
        self._fitting = plan.staging // 2
        self._expected: Callable[[], tuple[Pages, Slots]] | None = None
        self._ahead: _Ahead | None = None

    def expect(self, pages: Callable[[], tuple[Pages, Slots]]) -> None:
        """The attention after the next one will need `pages()` [kv_heads, blocks], in these slots.

        They are of full blocks, which do not change any more. A slot is -1 where there is none.
        """
        if self._overlaps and self._fitting:
            self._expected = pages

    def drop(self) -> None:
        """Nothing is expected any more; a read under way is waited for."""
        self._expected = None
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._abandon([ahead.read])

    def parts(self, pages: Pages, slots: Slots, *, attends: bool = True) -> Iterator[StagedHeads]:
        """Key heads of `pages` [kv_heads, blocks] that are in DRAM, some at a time.

        `slots` are theirs, -1 for none, and learn where pages are staged. Where this is for an
        attention, which `attends`, what is expected is read with the last of the heads.
        `ReadFailed` where pages cannot be read back.
        """
        missing = slots < 0
        if not attends:
            self.drop()
        ahead = self._take_ahead(pages, slots, missing)
        rounds, half, reads = self._begin(pages, slots, missing, ahead)
        try:
            for number, (first, end) in enumerate(rounds):
                half = 1 - half
                following = rounds[number + 1] if number + 1 < len(rounds) else None
                wanted, reads = reads, []
                if self._overlaps and following is not None:
                    reads = self._stage(pages, slots, *following, half)
                elif attends:
                    self._stage_expected(half)
                self._wait(wanted, reads)
                yield StagedHeads(first, end, slots[first:end])
                if not self._overlaps and following is not None:
                    reads = self._stage(pages, slots, *following, half)
        finally:
            self._abandon(reads)

    def read_part(
        self, pages: Pages, slots: Slots, part: int, half: int, wanted: NDArray[np.bool_]
    ) -> PageRead | None:
        """Begin to read keys, part 0, or values, 1, of one head's `wanted` pages.

        `slots` are theirs; -1 learns of a place in a half. What was read ahead is dropped.
        """
        self.drop()
        unplaced = np.flatnonzero(slots < 0)
        slots[unplaced] = self._places(half, len(unplaced))
        if not wanted.any():
            return None
        assert self._file is not None
        begins = slots[wanted] * self._page_bytes + part * self._part_bytes
        return self._file.submit(pages[wanted], begins, part)

    def _begin(
        self, pages: Pages, slots: Slots, missing: NDArray[np.bool_], ahead: _Ahead | None
    ) -> tuple[list[tuple[int, int]], int, list[PageRead]]:
        """Heads of each round, the half that the first one's pages are in, and their reads."""
        heads = len(pages)
        if ahead is None:
            if not missing.any():
                return [(0, heads)], 0, []
            rounds = rounds_of(missing.sum(axis=1).tolist(), self._fitting)
            return rounds, 0, self._stage(pages, slots, *rounds[0], half=0)
        rounds = [(0, ahead.heads)]
        if ahead.heads < heads:
            rest = rounds_of(missing[ahead.heads :].sum(axis=1).tolist(), self._fitting)
            rounds += [(ahead.heads + first, ahead.heads + end) for first, end in rest]
        # What left its slot since then is read into the room that the half has left.
        late = self._read_into(pages, slots, 0, ahead.heads, ahead.half, len(ahead.pages))
        return rounds, ahead.half, [ahead.read, *late]

    def _take_ahead(self, pages: Pages, slots: Slots, missing: NDArray[np.bool_]) -> _Ahead | None:
        """What was read ahead, if it is of use here; `slots` learn where it is."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        own = missing[: ahead.heads]
        wanted = pages[: ahead.heads][own]
        order = np.argsort(ahead.pages)
        at = np.searchsorted(ahead.pages, wanted, sorter=order)
        at = order[np.minimum(at, len(order) - 1)]
        found = ahead.pages[at] == wanted
        if not found.any() or len(order) + np.count_nonzero(~found) > self._fitting:
            self._abandon([ahead.read])
            return None
        slots[: ahead.heads][own] = np.where(found, ahead.places[at], -1)
        return ahead

    def _stage_expected(self, half: int) -> None:
        """Begin to read what the next attention will need first."""
        expected, self._expected = self._expected, None
        if expected is None:
            return
        pages, slots = expected()
        if not pages.size:
            return
        missing = slots < 0
        _, heads = rounds_of(missing.sum(axis=1).tolist(), self._fitting)[0]
        wanted = pages[:heads][missing[:heads]]
        if not len(wanted):
            return
        places = self._places(half, len(wanted))
        self._ahead = _Ahead(wanted, places, heads, half, self._submit(wanted, places))

    def _stage(self, pages: Pages, slots: Slots, first: int, end: int, half: int) -> list[PageRead]:
        """Begin to read what is missing of these heads into a half; `slots` learn."""
        return self._read_into(pages, slots, first, end, half, 0)

    def _read_into(
        self, pages: Pages, slots: Slots, first: int, end: int, half: int, used: int
    ) -> list[PageRead]:
        """The same behind `used` places of the half."""
        missing = slots[first:end] < 0
        wanted = pages[first:end][missing]
        if not len(wanted):
            return []
        places = self._places(half, used + len(wanted))[used:]
        slots[first:end][missing] = places
        return [self._submit(wanted, places)]

    def _places(self, half: int, count: int) -> Slots:
        assert count <= self._fitting
        return self._first + half * self._fitting + np.arange(count)

    def _submit(self, pages: Pages, places: Slots) -> PageRead:
        assert self._file is not None
        return self._file.submit(pages, places * self._page_bytes)

    def _wait(self, wanted: Sequence[PageRead], others: list[PageRead]) -> None:
        """Until they are there; if one fails, the rest of them join those that are given up."""
        for number, read in enumerate(wanted):
            assert self._file is not None
            try:
                self._file.wait(read)
            except BaseException:
                others += wanted[number + 1 :]
                raise

    def _abandon(self, reads: Sequence[PageRead]) -> None:
        for read in reads:
            assert self._file is not None
            self._file.abandon(read)


def rounds_of(missing: Sequence[int], fitting: int) -> list[tuple[int, int]]:
    """Heads first to end - 1 of each round, of which at most `fitting` pages are missing."""
    rounds, first, count = [], 0, 0
    for head, more in enumerate(missing):
        if count + more > fitting and head > first:
            rounds.append((first, head))
            first, count = head, 0
        count += more
    return [*rounds, (first, len(missing))]
