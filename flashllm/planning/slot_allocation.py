"""How what a ceiling leaves over is divided: slots of each layer, and the ring of a prompt. Pure.

A prompt's weights pass through a ring of blocks, which tokens have no use for, and while a prompt
is read few slots are needed. So where slots are short, blocks of the ring lie in slots: what these
hold is given up when a prompt comes, and the tokens after it fill them again.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

from flashllm.planning.activation_stats import Activity
from flashllm.spec import ModelSpec
from flashllm.weight_cache.blocks import smallest_slots

Point = tuple[float, float]
"""Slots, and bundles that a token loads with them."""
_STEP = 1.15
"""From one length of a window to the next: pieces so short that layers alike get alike."""


def load_curve(activity: Activity, layer: int, least: int, n_bundles: int) -> list[Point]:
    """Loads of a layer from `least` slots to all, as of a window as long as the slots allow."""
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


def divide(curves: Sequence[Sequence[Point]], slots: int, least: int) -> list[int]:
    """Slots of each layer, `least` at least and at most `slots` in sum; alike where curves are."""
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
"""The paper's window for its first model; used where no recording says what fits."""
SLACK = 1.1
"""Slots beyond what the calibration text needed, since other texts may need a little more."""
LEAST_BLOCKS = 2
"""Of a ring: one that is computed with, and one that is read meanwhile."""
_MOST_BLOCKS = 24
"""With as many the disk has work while attention is computed."""
_RING_SHARE = 12
"""One part in so many of what is left for slots may go to further blocks of the prefill's ring."""
_LENDING = ("predicted", "gate")
"""Selectors whose tokens read no layer whole, and so need no ring."""


@dataclass(frozen=True, slots=True)
class Division:
    """Slots, and blocks of a prefill's ring."""

    window: int
    wanted: list[int]
    """Slots of each layer that the window would need."""
    slots: list[int]
    """Slots of each layer; where all are needed, bundles to pin."""
    own_blocks: int
    """Blocks of the ring that lie in memory of their own."""
    lent_blocks: list[int]
    """Blocks of the ring that lie in slots of each layer."""


@dataclass(frozen=True, slots=True)
class Divider:
    """Divides what is left over for a model and its settings."""

    spec: ModelSpec
    stride: int
    activity: Activity | None
    select: str
    policy: str
    window: int | None
    block_bundles: int
    """Bundles of a block of the prefill's ring."""

    def divide(self, spare_bytes: int) -> Division:
        """All of `spare_bytes`, beside which there is a ring of the least blocks already."""
        least_bytes = self.spec.n_layers * least_slots(self.spec, self.select) * self.stride
        # What the least slots take is not left over: at the smallest ceiling nothing is.
        blocks = _ring_blocks(spare_bytes - least_bytes, self.block_bundles * self.stride)
        slots = spare_bytes // self.stride
        if self.select not in _LENDING or not self._short(self._beside(slots, blocks)):
            return self._division(slots, blocks, blocks)
        division = self._division(slots, LEAST_BLOCKS, blocks)
        if division.own_blocks + sum(division.lent_blocks) < blocks:
            # Layers of few slots lend few blocks.
            own_blocks = blocks - sum(division.lent_blocks)
            division = self._division(slots, own_blocks, blocks)
        return division

    def _beside(self, slots: int, own_blocks: int) -> int:
        """Of so many slots those that a ring with blocks of its own leaves."""
        return slots - (own_blocks - LEAST_BLOCKS) * self.block_bundles

    def _short(self, slots: int) -> bool:
        """Whether a token could make use of more slots."""
        return slots < sum(self._limits(self._choose_window(slots)[1]))

    def _division(self, slots: int, own_blocks: int, blocks: int) -> Division:
        affordable = self._beside(slots, own_blocks)
        window, wanted = self._choose_window(affordable)
        given = self._slots(wanted, affordable)
        least = least_slots(self.spec, self.select)
        lent = lend(given, self.block_bundles, least, blocks - own_blocks)
        return Division(window, wanted, given, own_blocks, lent)

    def _choose_window(self, affordable: int) -> tuple[int, list[int]]:
        """The window, and the slots that each layer wants for it."""
        everything = [self.spec.bundles_per_layer] * self.spec.n_layers
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
        return [n_bundles] * self.spec.n_layers

    def _limits(self, wanted: list[int]) -> list[int]:
        """Slots of each layer beyond which more are of no use."""
        if self.policy == "window":
            least = least_slots(self.spec, self.select)
            return [max(slots, least) for slots in wanted]
        return [self.spec.bundles_per_layer] * self.spec.n_layers

    def _slots(self, wanted: list[int], affordable: int) -> list[int]:
        """Slots a layer, of as many as there is room for; where all are needed, bundles to pin."""
        if self.select == "all":
            return self._pin(affordable)
        limits, least = self._limits(wanted), least_slots(self.spec, self.select)
        if sum(limits) <= affordable:
            return limits
        if self.policy == "window":
            return _fit(limits, affordable, least)
        n_bundles, n_layers = self.spec.bundles_per_layer, self.spec.n_layers
        if self.activity is None:
            return [affordable // n_layers] * n_layers
        curves = [load_curve(self.activity, at, least, n_bundles) for at in range(n_layers)]
        return divide(curves, affordable, least)

    def _pin(self, affordable: int) -> list[int]:
        """Bundles a layer that stay where all are needed: whole blocks, spread over the layers."""
        spec = self.spec
        pinned = [0] * spec.n_layers
        for first in range(0, spec.bundles_per_layer, self.block_bundles):
            size = min(self.block_bundles, spec.bundles_per_layer - first)
            more = min(affordable // size, spec.n_layers)
            for layer in range(more):
                # Only behind the blocks before it: what is pinned is the beginning of a layer.
                if pinned[layer] == first:
                    pinned[layer] += size
                    affordable -= size
        return pinned


def least_slots(spec: ModelSpec, select: str) -> int:
    """Slots that a layer needs at least."""
    # Where every neuron is needed they pass through the prefill's buffers; none need stay.
    return 0 if select == "all" else smallest_slots(spec.bundles_per_layer)


def lend(slots: Sequence[int], block: int, least: int, count: int) -> list[int]:
    """How many blocks of so many slots each layer lends, `count` at most; `least` slots stay.

    Always the layer that has most left lends, the first one among equals.
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


def _ring_blocks(spare_bytes: int, block_bytes: int) -> int:
    """Blocks of the prefill's ring, where so much is left over a ring of the least."""
    return min(LEAST_BLOCKS + spare_bytes // _RING_SHARE // block_bytes, _MOST_BLOCKS)


def _fit(wanted: list[int], affordable: int, least: int) -> list[int]:
    """Fewer slots than wanted, in the same proportions above the least."""
    spare = affordable - least * len(wanted)
    excess = sum(wanted) - least * len(wanted)
    return [least + (slots - least) * spare // excess for slots in wanted]
