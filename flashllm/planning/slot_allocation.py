"""Allocates what a ceiling leaves over: slots for each layer, and blocks for a prompt's ring. Pure.

A prompt's weights pass through a ring of blocks. Decoding does not use the ring, and reading a
prompt needs few slots. So where slots are short, blocks of the ring lie in slots: the bundles there
are evicted when a prompt comes, and the tokens after it fill the slots again.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

from flashllm.planning.activation_stats import Activity
from flashllm.spec import ModelSpec
from flashllm.weight_cache.blocks import BLOCK_IDS, smallest_slots

Point = tuple[float, float]
"""(slots, bundles that a token loads with these slots)."""
_STEP = 1.15
"""Factor from one window length to the next; so small that equal layers get equal slots."""


def miss_curve(activity: Activity, layer: int, least: int, n_bundles: int) -> list[Point]:
    """Bundles that a token loads of a layer, from `least` slots to all.

    The window is taken as long as the slots allow.
    """
    longest = max(activity.windows[-1] - 1.0, 1.0)
    points = [(float(least), max(activity.used(layer), activity.increment(layer, 1.0)))]
    window = 1.0
    while True:
        slots = activity.aggregate(layer, window)
        if least < slots < n_bundles:
            points.append((slots, activity.increment(layer, window)))
        if window >= longest:
            break
        window = min(window * _STEP, longest)
    return [*points, (float(n_bundles), 0.0)]


def allocate(curves: Sequence[Sequence[Point]], slots: int, least: int) -> list[int]:
    """Slots for each layer: `least` or more each, `slots` at most in sum; equal curves get equal.

    The next slots go where they save the most loads (greedy on the convex hulls of the curves).
    """
    given = [float(least)] * len(curves)
    left = float(slots - least * len(curves))
    assert left >= 0
    pieces = []
    for layer, curve in enumerate(curves):
        for (few, many_loads), (many, few_loads) in pairwise(convex_hull(curve)):
            pieces.append(((few_loads - many_loads) / (many - few), layer, many - few))
    for _, alike in groupby(sorted(pieces), key=itemgetter(0)):
        group = list(alike)
        width = sum(piece[2] for piece in group)
        part = min(left / width, 1.0)
        for _, layer, piece_width in group:
            given[layer] += part * piece_width
        left -= part * width
    # Sums of pieces may end just short of a whole number.
    return [int(n + 1e-6) for n in given]


def convex_hull(points: Sequence[Point]) -> list[Point]:
    """The lower convex hull of a curve that falls, its points ascending by slots."""
    hull: list[Point] = []
    for x, y in sorted(points):
        if hull and (x <= hull[-1][0] or y > hull[-1][1]):
            continue
        while len(hull) > 1 and _above(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    return hull


def _above(first: Point, middle: Point, last: Point) -> bool:
    """Whether `middle` lies on or above the line from `first` to `last`."""
    (x0, y0), (x1, y1), (x2, y2) = first, middle, last
    return (y1 - y0) * (x2 - x0) >= (y2 - y0) * (x1 - x0)


DEFAULT_WINDOW = 5
"""The paper's window for its first model; used where no activity was recorded."""
SLACK = 1.1
"""Slots beyond what the calibration text needed, since other texts may need a little more."""
LEAST_BLOCKS = 2
"""The smallest ring: one block is computed while the other is read."""
LENDING = ("predicted", "gate", "router")
"""Selectors with which decoding reads no layer whole, and so needs no ring."""


@dataclass(frozen=True, slots=True)
class RingLimits:
    """How far ahead layers are read that are read whole."""

    most_blocks: int
    share: int
    """At most 1/`share` of the slot bytes may become extra blocks of the ring."""

    def blocks(self, spare_bytes: int, block_bytes: int) -> int:
        """Blocks of the ring; `spare_bytes` is what remains beyond the smallest one."""
        return min(LEAST_BLOCKS + spare_bytes // self.share // block_bytes, self.most_blocks)

    def in_larger_blocks(self, times: int) -> RingLimits:
        """The same memory, in blocks that are so many times as large."""
        return RingLimits(self.most_blocks // times, self.share)


PROMPT_RING = RingLimits(24, 12)
"""So many blocks keep the disk busy while a prompt's attention is computed."""
STEP_RING = RingLimits(48, 1)
"""The same of steps of many rows, of which each reads the layers: what is read while attention is
computed need not be waited for, and is more than slots would save, all of them (docs/log/)."""


@dataclass(frozen=True, slots=True)
class SlotAllocation:
    """The slots of each layer, and the blocks of a prompt's ring."""

    window: int
    wanted: list[int]
    """Slots that the window needs in each layer."""
    slots: list[int]
    """Slots of each layer; where all are needed, bundles to pin."""
    own_blocks: int
    """Blocks of the ring that have memory of their own."""
    lent_blocks: list[int]
    """How many blocks of the ring lie in the slots of each layer."""


@dataclass(frozen=True, slots=True)
class SlotAllocator:
    """Allocates spare bytes for one model and its settings."""

    spec: ModelSpec
    stride: int
    activity: Activity | None
    select: str
    policy: str
    window: int | None
    block_bundles: int
    """Bundles in one block of the prompt's ring."""
    slots_most: int | None = None
    """Slots of all layers together, but for the least; None: as many as there is room for."""
    ring: RingLimits = PROMPT_RING

    def allocate(self, spare_bytes: int) -> SlotAllocation:
        """Allocates `spare_bytes` up to `slots_most`; a ring of `LEAST_BLOCKS` is paid for."""
        least_bytes = self.spec.bundled_layers * least_slots(self.spec, self.select) * self.stride
        # What the least slots take is not left over: at the smallest ceiling nothing is.
        blocks = self._ring_blocks(spare_bytes, least_bytes)
        slots = spare_bytes // self.stride
        left = self._slots_left(slots, blocks)
        is_limited = left < self._room(slots, blocks)
        if self.select not in LENDING or is_limited or not self._are_short(left):
            return self._allocation(slots, blocks, blocks)
        allocation = self._allocation(slots, LEAST_BLOCKS, blocks)
        if allocation.own_blocks + sum(allocation.lent_blocks) < blocks:
            # Layers of few slots lend few blocks.
            own_blocks = blocks - sum(allocation.lent_blocks)
            allocation = self._allocation(slots, own_blocks, blocks)
        return allocation

    def widened(self, allocation: SlotAllocation, more_bytes: int) -> SlotAllocation:
        """The same with slots for `more_bytes` more while there is no prompt; the ring stays."""
        affordable = sum(allocation.slots) + more_bytes // self.stride
        window, wanted = self._choose_window(affordable)
        pairs = zip(self._slots(wanted, affordable), allocation.slots, strict=True)
        slots = [max(pair) for pair in pairs]
        if sum(slots) > affordable:
            return allocation
        return dataclasses.replace(allocation, window=window, wanted=wanted, slots=slots)

    def _ring_blocks(self, spare_bytes: int, least_bytes: int) -> int:
        block_bytes = self.block_bundles * self.stride
        blocks = self.ring.blocks(spare_bytes - least_bytes, block_bytes)
        if self.slots_most is None:
            return blocks
        # Slots that were asked for come first, but for the part that a prompt's ring may take.
        least = PROMPT_RING.blocks(spare_bytes - least_bytes, block_bytes)
        left_bytes = spare_bytes - max(self.slots_most * self.stride, least_bytes)
        return min(blocks, max(least, LEAST_BLOCKS + left_bytes // block_bytes))

    def _slots_left(self, slots: int, own_blocks: int) -> int:
        """Slots that remain of `slots` when the ring has `own_blocks` blocks of its own."""
        room = self._room(slots, own_blocks)
        if self.slots_most is None:
            return room
        least = self.spec.bundled_layers * least_slots(self.spec, self.select)
        return min(room, max(self.slots_most, least))

    def _room(self, slots: int, own_blocks: int) -> int:
        return slots - (own_blocks - LEAST_BLOCKS) * self.block_bundles

    def _are_short(self, slots: int) -> bool:
        """Whether a token could make use of more slots."""
        return slots < sum(self._limits(self._choose_window(slots)[1]))

    def _allocation(self, slots: int, own_blocks: int, blocks: int) -> SlotAllocation:
        affordable = self._slots_left(slots, own_blocks)
        window, wanted = self._choose_window(affordable)
        given = self._slots(wanted, affordable)
        least = least_slots(self.spec, self.select)
        lent = lend(given, self.block_bundles, least, blocks - own_blocks)
        return SlotAllocation(window, wanted, given, own_blocks, lent)

    def _choose_window(self, affordable: int) -> tuple[int, list[int]]:
        """The window, and the slots that each layer wants for it."""
        everything = [self.spec.bundles_per_layer] * self.spec.bundled_layers
        if self.select == "all" or self.activity is None:
            return self.window or DEFAULT_WINDOW, everything
        if self.window is not None:
            return self.window, self._wanted(self.activity, self.window)
        chosen = self.activity.windows[0]
        for candidate in self.activity.windows:
            if sum(self._wanted(self.activity, candidate)) <= affordable:
                chosen = candidate
        return chosen, self._wanted(self.activity, chosen)

    def _wanted(self, activity: Activity, window: int) -> list[int]:
        n_bundles = self.spec.bundles_per_layer
        for recorded, needed in zip(activity.windows, activity.slots_needed, strict=True):
            if recorded >= window:
                return [min(int(slots * SLACK) + 1, n_bundles) for slots in needed]
        return [n_bundles] * self.spec.bundled_layers

    def _limits(self, wanted: list[int]) -> list[int]:
        """Slots of each layer beyond which more are of no use."""
        if self.policy == "window":
            least = least_slots(self.spec, self.select)
            return [max(slots, least) for slots in wanted]
        return [self.spec.bundles_per_layer] * self.spec.bundled_layers

    def _slots(self, wanted: list[int], affordable: int) -> list[int]:
        """Slots of each layer, `affordable` in sum; where all are needed, bundles to pin."""
        if self.select == "all":
            return self._pin(affordable)
        limits, least = self._limits(wanted), least_slots(self.spec, self.select)
        if sum(limits) <= affordable:
            return limits
        if self.policy == "window":
            return _fit(limits, affordable, least)
        n_bundles, n_layers = self.spec.bundles_per_layer, self.spec.bundled_layers
        if self.activity is None or self.spec.experts is not None:
            # Experts' layers differ too, but slots that are alike hit most (measured).
            each, rest = divmod(affordable, n_layers)
            return [each + (layer < rest) for layer in range(n_layers)]
        curves = [miss_curve(self.activity, at, least, n_bundles) for at in range(n_layers)]
        return allocate(curves, affordable, least)

    def _pin(self, affordable: int) -> list[int]:
        """Bundles to pin in each layer: whole blocks, spread evenly over the layers."""
        spec = self.spec
        pinned = [0] * spec.bundled_layers
        for first in range(0, spec.bundles_per_layer, self.block_bundles):
            size = min(self.block_bundles, spec.bundles_per_layer - first)
            more = min(affordable // size, spec.bundled_layers)
            for layer in range(more):
                # Only after the blocks before it: the pinned part is the beginning of a layer.
                if pinned[layer] == first:
                    pinned[layer] += size
                    affordable -= size
        return pinned


def least_slots(spec: ModelSpec, select: str) -> int:
    """The fewest slots that a layer can work with."""
    # Where every neuron is needed, bundles pass through the prompt's buffers; none need stay.
    if select == "all":
        return 0
    # All experts of a token are there together: a layer of fewer slots would read each anew.
    block_ids = BLOCK_IDS if spec.experts is None else spec.experts.per_token
    return smallest_slots(spec.bundles_per_layer, block_ids)


def lend(slots: Sequence[int], block: int, least: int, count: int) -> list[int]:
    """How many blocks of `block` slots each layer lends: `count` at most, keeping `least` slots.

    The layer with the most slots left lends next, the first one among equals.
    """
    lent = [0] * len(slots)
    left = [(-n, layer) for layer, n in enumerate(slots)]
    heapq.heapify(left)
    for _ in range(count):
        n, layer = left[0]
        if -n - block < least:
            break
        heapq.heapreplace(left, (n + block, layer))
        lent[layer] += 1
    return lent


def _fit(wanted: list[int], affordable: int, least: int) -> list[int]:
    """Fewer slots than wanted, in the same proportions above the least."""
    spare = affordable - least * len(wanted)
    excess = sum(wanted) - least * len(wanted)
    return [least + (slots - least) * spare // excess for slots in wanted]
