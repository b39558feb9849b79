"""Counts the neurons that a window of tokens uses: slots needed, and the aggregate use s_agg.

The window of w tokens at token t is t and the w - 1 before it (paper, section 3.2, with the
current token's neurons among those kept). Texts follow each other as they do in a long chat.
Tokens are counted as they come: memory is that of a few of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50, 64)
CHUNK_FLAGS = 1 << 21
NEVER = -(1 << 40)
ONES_OF_BYTE = np.array([number.bit_count() for number in range(256)], np.uint8)


@dataclass(frozen=True, slots=True)
class WindowUse:
    """Distinct neurons that each of `WINDOWS` used: maximum and mean."""

    slots_needed: list[int]
    s_agg: list[float]

    def mean_loads(self, window: int) -> float:
        """Neurons per token that the `window` tokens before it did not use."""
        return max(0.0, self._s_agg(window + 1) - self._s_agg(window))

    def _s_agg(self, window: int) -> float:
        return self.s_agg[WINDOWS.index(window)]


class WindowCounter:
    """Counts one layer's windows from its packed active bits, token after token.

    A use at token t keeps its neuron in a window of w until the next use of it or until t + w,
    whichever is first; so the size of a union is a running sum of arrivals less departures.
    """

    def __init__(self, d_ffn: int) -> None:
        self._d_ffn = d_ffn
        self._last = np.full(d_ffn, NEVER)  # token at which each neuron was last used
        self._tokens = 0
        self._live = np.zeros(len(WINDOWS), np.int64)
        self._most = np.zeros(len(WINDOWS), np.int64)
        self._sums = np.zeros(len(WINDOWS), np.int64)

    def add(self, bits: NDArray[np.uint8]) -> None:
        """The next tokens, [tokens, bytes]."""
        step = max(1, CHUNK_FLAGS // self._d_ffn)
        for start in range(0, len(bits), step):
            chunk = bits[start : start + step]
            self._add(np.unpackbits(chunk, axis=1, count=self._d_ffn, bitorder="little"))

    def use(self) -> WindowUse:
        """What was counted."""
        return WindowUse(self._most.tolist(), (self._sums / max(1, self._tokens)).tolist())

    def _add(self, flags: NDArray[np.uint8]) -> None:
        first, tokens = self._tokens, len(flags)
        neuron, token = np.nonzero(np.ascontiguousarray(flags.T))
        token += first
        arrivals = np.bincount(token - first, minlength=tokens)
        # Neurons still in some window go before their uses here.
        carried = np.flatnonzero(self._last > first - 1 - WINDOWS[-1])
        neuron = np.concatenate([carried, neuron])
        token = np.concatenate([self._last[carried], token])
        order = np.argsort(neuron, kind="stable")
        neuron, token = neuron[order], token[order]
        same = neuron[1:] == neuron[:-1]
        following = np.full(len(token), first + tokens + WINDOWS[-1])
        following[:-1][same] = token[1:][same]
        for index, window in enumerate(WINDOWS):
            leaves = np.minimum(following, token + window) - first
            leaves = leaves[(leaves >= 0) & (leaves < tokens)]
            change = arrivals - np.bincount(leaves, minlength=tokens)
            counts = self._live[index] + np.cumsum(change)
            self._live[index] = counts[-1]
            self._most[index] = max(self._most[index], counts.max())
            self._sums[index] += counts.sum()
        last = np.append(~same, True) if len(token) else np.zeros(0, bool)
        self._last[neuron[last]] = token[last]
        self._tokens += tokens


def count_ones(bits: NDArray[np.uint8]) -> int:
    """Ones among packed bits."""
    return int(ONES_OF_BYTE[bits].sum(dtype=np.int64))
