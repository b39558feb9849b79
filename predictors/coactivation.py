"""Orders neurons so that those that are loaded together are neighbours. Pure arithmetic.

LLM in a flash (arXiv 2312.11514, section 3.2) bundled each neuron with the one it is active with
most often, and found hot neurons in every bundle. Here nothing is stored twice: the order is a
permutation. Hot neurons, which a window always holds, come first and take no part. What counts is
which neurons are *loaded* together, since one that is in DRAM already is not read.

The order is a path through the most similar neurons (cosine over tokens of what was loaded): edges
are taken from the most similar one on, if they join the ends of two paths. The paths are then
joined in the same way, as if each were one neuron, until one is left.

All counts are whole numbers that floats hold exactly, so the order does not depend on threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

HOT_RATE = 0.5
"""A neuron that this share of tokens uses is hot: hardly ever read once a window is warm."""
WINDOW = 5
"""Tokens of the assumed window; the paper's."""
NEIGHBOURS = 32
"""Most similar others considered for each neuron; ends of long paths need some choice."""
_BLOCK_ROWS = 512

Ids = NDArray[np.int32]
Bits = NDArray[np.uint8]
Counts = NDArray[np.float32] | NDArray[np.float64]


def loads(
    used: NDArray[np.bool_], starts: Sequence[int], window: int = WINDOW
) -> NDArray[np.bool_]:
    """The part of `used` [tokens, d_ffn] that a window of the previous tokens does not hold.

    A context begins at each of `starts`; its first `window` tokens belong to a prompt and load
    nothing.
    """
    found = np.zeros_like(used)
    for start, stop in zip(starts, [*starts[1:], len(used)], strict=True):
        for token in range(start + window, stop):
            found[token] = used[token] & ~used[token - window : token].any(axis=0)
    return found


def order_of(rates: NDArray[np.float32], loaded: NDArray[np.bool_]) -> Ids:
    """Neurons in their order on flash, [d_ffn]: hot ones, loaded ones by similarity, the others.

    `rates` [d_ffn] is the share of tokens that used each; `loaded` [tokens, d_ffn] as of `loads`.
    """
    hot = np.flatnonzero(rates >= HOT_RATE)
    hot = hot[np.argsort(-rates[hot], kind="stable")]
    cold = np.flatnonzero((rates < HOT_RATE) & loaded.any(axis=0))
    rest = np.flatnonzero((rates < HOT_RATE) & ~loaded.any(axis=0))
    rest = rest[np.argsort(-rates[rest], kind="stable")]
    path = cold[_one_path(loaded[:, cold])]
    return np.concatenate([hot, path, rest]).astype(np.int32)


def _one_path(loaded: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The columns of [tokens, n] as one path."""
    paths = [np.array([column]) for column in range(loaded.shape[1])]
    counts: Counts = np.ascontiguousarray(loaded.T, dtype=np.float32)
    while len(paths) > 1:
        joined = _paths(len(paths), *_edges(counts))
        if len(joined) == len(paths):  # nothing has anything in common
            break
        paths = [np.concatenate([paths[index] for index in path]) for path in joined]
        counts = np.stack([counts[path].sum(axis=0, dtype=np.float64) for path in joined])
    return np.concatenate(paths) if paths else np.zeros(0, dtype=np.int64)


def _edges(counts: Counts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of rows with anything in common, the most similar first."""
    n = len(counts)
    norms = np.sqrt(np.square(counts, dtype=np.float64).sum(axis=1))
    near = min(NEIGHBOURS, n - 1)
    firsts, seconds, values = [], [], []
    for start in range(0, n, _BLOCK_ROWS):
        rows = np.arange(start, min(start + _BLOCK_ROWS, n))
        likeness = (counts[rows] @ counts.T) / norms
        likeness /= norms[rows, None]
        likeness[np.arange(len(rows)), rows] = -1.0
        columns = np.argpartition(-likeness, near - 1, axis=1)[:, :near]
        firsts.append(np.repeat(rows, near))
        seconds.append(columns.ravel())
        values.append(np.take_along_axis(likeness, columns, axis=1).ravel())
    first, second, value = map(np.concatenate, (firsts, seconds, values))
    low, high = np.minimum(first, second), np.maximum(first, second)
    by_likeness = np.lexsort((high, low, -value))
    kept = by_likeness[value[by_likeness] > 0]
    return low[kept], high[kept]


def _paths(n: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> list[list[int]]:
    """Paths through `n` nodes along the edges, taken in their order where two paths' ends meet."""
    neighbours: list[list[int]] = [[] for _ in range(n)]
    root = list(range(n))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        if len(neighbours[a]) < 2 and len(neighbours[b]) < 2 and find(a) != find(b):
            root[find(a)] = find(b)
            neighbours[a].append(b)
            neighbours[b].append(a)
    return _walk(neighbours)


def _walk(neighbours: Sequence[Sequence[int]]) -> list[list[int]]:
    """The paths, each from its end of the smaller number, in the order of these."""
    seen = [False] * len(neighbours)
    paths = []
    for end, beside in enumerate(neighbours):
        if seen[end] or len(beside) > 1:
            continue
        path, following = [end], list(beside)
        seen[end] = True
        while following:
            node = following[0]
            seen[node] = True
            path.append(node)
            following = [other for other in neighbours[node] if not seen[other]]
        paths.append(path)
    return paths
