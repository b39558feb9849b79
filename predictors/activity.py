"""How many neurons a window of tokens uses: slots to keep, and the aggregate use s_agg.

The window of w tokens at token t is t and the w - 1 before it (paper, section 3.2, with the
current token's neurons among those kept). Texts follow each other as they do in a long chat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64)
BLOCK_FLAGS = 1 << 25


@dataclass(frozen=True, slots=True)
class WindowUse:
    """Distinct neurons that each of `WINDOWS` used: at most, and on average."""

    slots_needed: list[int]
    s_agg: list[float]


def window_use(active: NDArray[np.uint8], d_ffn: int) -> WindowUse:
    """Use of one layer from its packed active bits [tokens, bytes]."""
    counts = np.zeros((len(WINDOWS), len(active)), np.int64)
    block_bytes = max(1, BLOCK_FLAGS // (8 * max(1, len(active))))
    for start in range(0, (d_ffn + 7) // 8, block_bytes):
        bits = np.asarray(active[:, start : start + block_bytes])
        flags = np.unpackbits(bits, axis=1, bitorder="little")[:, : d_ffn - 8 * start]
        _add_unions(counts, flags)
    return WindowUse(counts.max(axis=1).tolist(), counts.mean(axis=1).tolist())


def _add_unions(counts: NDArray[np.int64], flags: NDArray[np.uint8]) -> None:
    """Add to counts [windows, tokens] the neurons among flags [tokens, neurons] in each window.

    A use at token t keeps its neuron in a window of w until the next use of it or until t + w,
    whichever is first; so the size of a union is a running sum of arrivals less departures.
    """
    tokens = len(flags)
    neuron, token = np.nonzero(np.ascontiguousarray(flags.T))
    if not len(token):
        return
    following = np.full(len(token), 2 * tokens + WINDOWS[-1])
    same = neuron[1:] == neuron[:-1]
    following[:-1][same] = token[1:][same]
    arrivals = np.bincount(token, minlength=tokens)
    for row, window in zip(counts, WINDOWS, strict=True):
        leaves = np.minimum(following, token + window)
        departures = np.bincount(leaves[leaves < tokens], minlength=tokens)
        row += np.cumsum(arrivals - departures)
