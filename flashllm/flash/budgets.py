"""How slots are divided over layers: each where it saves the most reads. Pure.

What a layer loads with more and more slots is taken from the recorded growth of what tokens use
together (`Activity`); of the curve only its lower convex hull counts, and the steepest pieces of
all layers' hulls get their slots first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter

from flashllm.flash.activity import Activity

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
