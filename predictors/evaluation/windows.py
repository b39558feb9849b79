"""What a window of tokens holds and loads, counted from what each token used.

A use of a neuron whose last use was g tokens ago is a load for every window shorter than g. Before
token t a window of k tokens holds what tokens t - k to t - 1 used (paper, section 3.2); passages
follow each other as in a long chat, and the first one starts with nothing held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW_MAX = 64


class WindowMeter:
    """Uses of one layer's neurons, for all windows of 1 to `WINDOW_MAX` tokens at once.

    s_agg(k) is the mean number of distinct neurons that the last k tokens used, the current one
    included; loads(k) the mean number that a token adds to what a window of k held before it. As
    the paper says, s_agg(k + 1) - s_agg(k) = loads(k), but for what the first tokens find empty,
    which is s_agg(k) once.
    """

    def __init__(self, n_neurons: int) -> None:
        self._last_used = np.full(n_neurons, -WINDOW_MAX - 1, np.int64)
        # Neurons by tokens since their last use; entry 0 is for the running token.
        self._held = np.zeros(WINDOW_MAX, np.int64)
        self._time = 0
        self.tokens = 0
        """Tokens counted."""
        self.gaps: NDArray[np.int64] = np.zeros(WINDOW_MAX + 2, np.int64)
        """Uses by tokens since the last use; the last entry is for longer ones, and for never."""
        self._sizes = np.zeros(WINDOW_MAX, np.int64)
        self._most = np.zeros(WINDOW_MAX, np.int64)

    def add(self, ids: NDArray[np.int32], counted: bool) -> None:
        """The next token used `ids`, which are distinct."""
        gaps = np.minimum(self._time - self._last_used[ids], WINDOW_MAX + 1)
        by_gap = np.bincount(gaps, minlength=WINDOW_MAX + 2)
        held = self._held
        held[1:] = held[:-1] - by_gap[1:WINDOW_MAX]
        held[0] = len(ids)
        self._last_used[ids] = self._time
        self._time += 1
        if counted:
            sizes = np.cumsum(held)
            self.tokens += 1
            self.gaps += by_gap
            self._sizes += sizes
            np.maximum(self._most, sizes, out=self._most)

    def add_all(self, used: Sequence[NDArray[np.int32]], counted: NDArray[np.bool_]) -> None:
        """The next tokens used these ids, a token each."""
        for ids, counts in zip(used, counted.tolist(), strict=True):
            self.add(ids, counts)

    @property
    def s_agg(self) -> NDArray[np.float64]:
        """Mean neurons that the last k tokens used, [WINDOW_MAX], k from 1."""
        return np.asarray(self._sizes / max(1, self.tokens))

    @property
    def slots_needed(self) -> NDArray[np.int64]:
        """The most neurons that k tokens used, [WINDOW_MAX]."""
        return self._most

    @property
    def loads(self) -> NDArray[np.float64]:
        """Mean neurons that a token loads into a window of k, [WINDOW_MAX]."""
        hits = np.cumsum(self.gaps)[1 : WINDOW_MAX + 1]
        return np.asarray((self.gaps.sum() - hits) / max(1, self.tokens))


def windows_json(
    layers: Sequence[WindowMeter], n_neurons: int, stride_bytes: int
) -> dict[str, Any]:
    """All layers' windows as plain values; entry i of every list is for a window of i + 1."""
    s_agg = np.stack([layer.s_agg for layer in layers])
    loads = np.stack([layer.loads for layer in layers])
    return {
        "s_agg": s_agg.round(4).tolist(),
        "loads": loads.round(4).tolist(),
        "slots_needed": [layer.slots_needed.tolist() for layer in layers],
        "gaps": [layer.gaps[1:].tolist() for layer in layers],
        "mean_share_held": (s_agg.mean(0) / n_neurons).tolist(),
        "mean_share_loaded": (loads.mean(0) / n_neurons).tolist(),
        "bytes_held": (s_agg.sum(0) * stride_bytes).round().tolist(),
        "bytes_per_token": (loads.sum(0) * stride_bytes).tolist(),
    }
