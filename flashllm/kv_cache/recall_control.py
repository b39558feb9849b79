"""Steers how much is fetched of each layer towards a share of attention's mass.

The recall of a choice is the share of attention's weights that falls on the chosen tokens. It is
measured against the true scores of few heads; alpha of the layer grows while it is too small.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

DEFAULT_TARGET = 0.95
ALPHA_MIN, ALPHA_MAX = 0.5, 1000.0
"""Where attention looks at few tokens, a guess may be off by many times the alpha of the paper; the
budget limits what that may cost."""
GAIN = 0.5
"""A recall that is so much too small makes the logarithm of alpha so much larger. The step is not
limited: where most recalls are 1 and few are next to 0, limits would leave their mean too small."""


def recall_of(scores: NDArray[np.float32], positions: NDArray[np.int32]) -> float:
    """Share of attention's mass on `positions` and the last token: scores [heads, tokens].

    The mean over the heads. Scores are scaled; the last token is the one that attends.
    """
    weights = np.exp(scores - scores.max(axis=1, keepdims=True), dtype=np.float64)
    seen = weights[:, positions].sum(axis=1) + weights[:, -1]
    return float((seen / weights.sum(axis=1)).mean())


class RecallControl:
    """Alpha of each layer. What was learnt of tokens is forgotten with them."""

    def __init__(self, n_layers: int, alpha: float, target: float | None) -> None:
        """Without a `target` alpha stays as it is."""
        self.target = target
        self._alphas = [alpha] * n_layers
        self._learnt: list[tuple[int, int, float]] = []
        """(token, layer, alpha before) of each change, in their order."""

    def alpha(self, layer: int) -> float:
        """Scores less than this below the best are fetched."""
        return self._alphas[layer]

    def learn(self, layer: int, token: int, recall: float) -> None:
        """Token number `token` had this recall in a layer."""
        if self.target is None:
            return
        self.truncate(token)  # what a cancelled token taught
        before = self._alphas[layer]
        step = GAIN * (self.target - recall)
        self._alphas[layer] = min(max(before * math.exp(step), ALPHA_MIN), ALPHA_MAX)
        self._learnt.append((token, layer, before))

    def truncate(self, length: int) -> None:
        """Forget what was learnt of all tokens but the first `length`."""
        while self._learnt and self._learnt[-1][0] >= length:
            _, layer, before = self._learnt.pop()
            self._alphas[layer] = before
