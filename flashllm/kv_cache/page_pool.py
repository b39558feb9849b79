"""Pages of keys and values: which are in DRAM, which on flash, and whose they are.

All memory is allocated once: slots, each with room for a page, and staging, whose pages are dropped
after use. A block is the pages of some tokens, of all layers and key heads; contexts that share a
prefix share its blocks. A page that leaves its slot is written to flash first, unless it is there
already; nothing is lost while flash has room. One caller at a time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.kv_cache.layout import PagePlan, PageShape, least_slots
from flashllm.kv_cache.page_staging import PageStaging, Slots
from flashllm.kv_cache.pool import make_pool_policy
from flashllm.kv_cache.tiers import PageFile, Pages, PageWrite
from flashllm.options import DEFAULT_KV_VICTIMS, KvVictims

_AHEAD_MOST = 1024


class PagePool:
    """Pages of all contexts of a model."""

    def __init__(
        self,
        shape: PageShape,
        plan: PagePlan,
        directories: Sequence[Path] = (),
        direct: bool = True,
        *,
        overlaps: bool = True,
        victims: KvVictims = DEFAULT_KV_VICTIMS,
    ) -> None:
        """The scratch file, where the plan has one, is in the first of `directories` that takes it.

        Without `overlaps` nothing is read or written while something is computed. `victims` says
        which pages leave DRAM first. Errors are those of `PageFile`, and `UsageError`.
        """
        self.shape, self.plan = shape, plan
        places = plan.slots + plan.staging
        self.buffer = core.Buffer(places * shape.page_bytes, huge_pages=False)
        self.memory: NDArray[np.uint8] = self.buffer.array()
        """Places of pages, the slots first."""
        layers, heads = shape.layers, shape.kv_heads
        self.file: PageFile | None = None
        if plan.flash_bytes:
            self.file = PageFile(directories, shape, plan.blocks, self.buffer, direct)
        self._policy = make_pool_policy(victims, plan.slots, "--kv-victims")
        self._time = 0
        self._slot_of = np.full(layers * heads * plan.blocks, -1, np.int32)
        self._on_flash = np.zeros(len(self._slot_of), bool)
        self._page_in = np.full(plan.slots, -1, np.int64)
        self._pins = np.zeros(plan.slots, np.int32)
        self._leaving = np.zeros(plan.slots, bool)
        self._free = np.arange(plan.slots, dtype=np.int64)[::-1].copy()
        self._free_count = plan.slots
        # As many more slots as a step asks for are emptied while it is computed.
        self._ahead = min(max(2 * shape.block_pages, plan.slots // 16), _AHEAD_MOST)
        self._ahead = min(self._ahead, plan.slots // 4)
        self.overlaps = overlaps
        self.staging = PageStaging(plan, shape, self.file, overlaps)
        self._references = np.zeros(plan.blocks, np.int32)
        self._free_blocks = list(range(plan.blocks))
        self.abandoned: deque[list[int]] = deque()
        """Blocks of contexts that nobody has any more; from any thread."""

    @property
    def rows(self) -> NDArray[np.uint8]:
        """The rows of all places, [places, keys or values, tokens, row]: a view."""
        shape = self.shape
        return np.lib.stride_tricks.as_strided(
            self.memory,
            (self.plan.slots + self.plan.staging, 2, shape.tokens, shape.row_bytes),
            (shape.page_bytes, shape.part_bytes, shape.row_bytes, 1),
        )

    # Blocks

    def take_block(self) -> int:
        """A block whose pages hold nothing yet."""
        while self.abandoned:
            self.drop_blocks(self.abandoned.popleft())
        block = heapq.heappop(self._free_blocks)  # neighbours, so that reads are long
        self._references[block] = 1
        return block

    def share_blocks(self, blocks: Sequence[int]) -> None:
        """They belong to one context more."""
        np.add.at(self._references, list(blocks), 1)

    def is_shared(self, block: int) -> bool:
        """Whether it belongs to several contexts."""
        return bool(self._references[block] > 1)

    def drop_blocks(self, blocks: Sequence[int]) -> None:
        """They belong to one context less; those of none are free."""
        for block in blocks:
            self._references[block] -= 1
            if self._references[block]:
                continue
            self.staging.drop()  # what it read ahead may be of this block
            pages = self._pages_of_block(block)
            slots = self._slot_of[pages].astype(np.int64)
            slots = slots[slots >= 0]
            self._page_in[slots] = -1
            self._slot_of[pages] = -1
            self._on_flash[pages] = False
            self.give_back(slots[~self._leaving[slots]])
            heapq.heappush(self._free_blocks, block)

    def copy_block(self, block: int, to: int) -> None:
        """`to` has the rows of `block`."""
        for layer in range(self.shape.layers):
            slots = self.writable(layer, np.array([to]))[:, 0]
            self.pin(slots)
            pages = self.pages(layer, np.array([block]))[:, 0]
            places = self.slots(pages)
            for place, slot, page in zip(places, slots, pages.tolist(), strict=True):
                if place >= 0:
                    self._bytes(int(slot))[:] = self._bytes(int(place))
                elif self._on_flash[page]:
                    self._read(np.array([page]), np.array([slot]))
            self.unpin(slots)

    # Pages

    def pages(self, layer: int, blocks: NDArray[np.int64]) -> Pages:
        """Numbers of a layer's pages, [kv_heads, blocks]."""
        heads = np.arange(self.shape.kv_heads) + layer * self.shape.kv_heads
        return heads[:, None] * self.plan.blocks + blocks

    def slots(self, pages: Pages) -> Slots:
        """Where pages are in DRAM, -1 for those that are not."""
        return self._slot_of[pages].astype(np.int64)

    def is_on_flash(self, pages: Pages) -> NDArray[np.bool_]:
        """Which pages can be read."""
        return self._on_flash[pages]

    def writable(self, layer: int, blocks: NDArray[np.int64]) -> Slots:
        """Slots [kv_heads, blocks] of pages that are about to change, with the rows that they have.

        `NotEnoughSpace` or `CannotCreate` where others would have to leave, and cannot.
        """
        pages = self.pages(layer, blocks)
        slots = self.slots(pages)
        if self._leaving[slots[slots >= 0]].any():
            self._settle()
            slots = self.slots(pages)
        here = slots[slots >= 0]
        self.pin(here)
        try:
            missing = pages[slots < 0]
            taken = self.bring(missing, only_stored=True)
        finally:
            self.unpin(here)
        slots[slots < 0] = taken
        self._on_flash[pages] = False
        self._written(slots.ravel())
        return slots

    def used(self, slots: Slots) -> None:
        """Attention fetched the pages in these slots."""
        self._time += 1
        self._policy.use(slots, self._time)

    def _written(self, slots: Slots) -> None:
        """Rows were written to the pages in these slots, or pages were read into them."""
        self._time += 1
        self._policy.insert(slots, self._time)

    def bring(self, pages: Pages, only_stored: bool = False) -> Slots:
        """Slots [n] for pages [n] that are in none, which are read from flash.

        `only_stored`: those that are not on flash, since they have no rows yet, stay as they are.
        """
        if not len(pages):
            return np.empty(0, np.int64)
        taken = self.take(len(pages))
        stored = self._on_flash[pages]
        assert only_stored or stored.all()
        try:
            if stored.any():
                self._read(pages[stored], taken[stored])
        except BaseException:
            self.give_back(taken)
            raise
        self.place(pages, taken)
        return taken

    def place(self, pages: Pages, slots: Slots) -> None:
        """Pages are in slots that were taken."""
        self._slot_of[pages] = slots
        self._page_in[slots] = pages
        self._written(slots)

    def has_room(self, count: int) -> bool:
        """Whether so many pages more may be pinned, beside all that others need."""
        held = int(np.count_nonzero(self._pins)) + least_slots(self.shape)
        return self.file is None or held + count <= self.plan.slots

    def pin(self, slots: Slots) -> None:
        """The pages in these slots stay until they are unpinned as often."""
        np.add.at(self._pins, slots, 1)

    def unpin(self, slots: Slots) -> None:
        """The opposite of `pin`."""
        np.add.at(self._pins, slots, -1)

    def take(self, count: int) -> Slots:
        """Empty slots, that are the caller's to `place` pages in or to give back."""
        self._collect(wait=False)
        while self._free_count < count:
            self._empty(count - self._free_count)
            if self._free_count < count:
                self._collect(wait=True)
        self._free_count -= count
        taken = self._free[self._free_count : self._free_count + count].copy()
        is_behind = self.overlaps and self.file is not None
        if is_behind and self._free_count < self._ahead // 2:
            self._empty(self._ahead - self._free_count, behind=True)
        return taken

    def give_back(self, slots: Slots) -> None:
        """Slots that have no page are free."""
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)

    def report(self) -> dict[str, Any]:
        """What there is room for, and what went to flash and came back so far; plain values."""
        file, size = self.file, self.shape.page_bytes
        return {
            "slot_bytes": self.plan.slots * size,
            "staging_bytes": self.plan.staging * size,
            "flash_bytes": self.plan.flash_bytes,
            "directory": str(file.directory) if file else None,
            "bytes_read": file.bytes_read if file else 0,
            "bytes_written": file.bytes_written if file else 0,
        }

    def close(self) -> None:
        """Drop the memory and the file."""
        self.staging.drop()
        if self.file is not None:
            self.file.close()
        self.__dict__.pop("buffer", None)
        self.__dict__.pop("memory", None)

    def _pages_of_block(self, block: int) -> Pages:
        return np.arange(self.shape.block_pages) * self.plan.blocks + block

    def _bytes(self, slot: int) -> NDArray[np.uint8]:
        size = self.shape.page_bytes
        return self.memory[slot * size : (slot + 1) * size]

    def _read(self, pages: Pages, slots: Slots) -> None:
        assert self.file is not None
        self.file.wait(self.file.submit(pages, slots * self.shape.page_bytes))

    def _empty(self, count: int, behind: bool = False) -> None:
        """Let the pages of `count` slots leave, those that are on their way counted."""
        assert self.file is not None, "there is a slot for every page"
        count -= int(self._leaving.sum())
        movable = np.flatnonzero((self._page_in >= 0) & (self._pins == 0) & ~self._leaving)
        count = min(max(count, 0), len(movable))
        assert behind or count or self._leaving.any(), "a step needs more slots than there are"
        if not count:
            return
        chosen = self._policy.victims(movable, count)
        pages = self._page_in[chosen]
        stored = self._on_flash[pages]
        self._slot_of[pages[stored]] = -1
        self._page_in[chosen[stored]] = -1
        self.give_back(chosen[stored])
        if not stored.all():
            self._leaving[chosen[~stored]] = True
            self.file.write(pages[~stored], chosen[~stored])

    def _collect(self, wait: bool) -> None:
        """Slots of pages that are on flash now are free; raises what went wrong if they `wait`."""
        if self.file is None:
            return
        failed: PageWrite | None = None
        for write in self.file.written(wait):
            slots = write.slots
            self._leaving[slots] = False
            is_same = self._page_in[slots] == write.pages
            if write.error is not None:
                failed = write
                self.give_back(slots[self._page_in[slots] < 0])
                continue
            self._on_flash[write.pages[is_same]] = True
            # Whoever pinned a page while it was on its way has it where it was.
            leaves = ~(is_same & (self._pins[slots] > 0))
            self._slot_of[write.pages[is_same & leaves]] = -1
            self._page_in[slots[leaves]] = -1
            self.give_back(slots[leaves])
        if failed is not None and wait:
            raise self.file.write_failed(failed)

    def _settle(self) -> None:
        """Wait until no page is on its way to flash."""
        while self._leaving.any():
            self._collect(wait=True)
