"""Steers how much is fetched of each layer towards a share of attention's mass.

The recall of a choice is the share of attention's weights that falls on the chosen tokens. It is
measured against the true scores of few heads; alpha of the layer grows while it is too small.

Steps in proportion to what a recall lacks would be too little: their sum is what all recalls lacked
together, so that the mean stays below the target by as much as alpha had to grow, and the more the
fewer tokens were measured. So what was lacking is owed, and repaid by a larger alpha later.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

DEFAULT_TARGET = 0.95
ALPHA_MIN, ALPHA_MAX = 0.5, 1000.0
"""Where attention looks at few tokens, a guess may be off by many times the alpha of the paper; the
budget limits what that may cost."""
GAIN = 1.0
"""A recall that is so much too small makes the logarithm of alpha so much larger. The step is not
limited: where most recalls are 1 and few are next to 0, limits would leave their mean too small."""
REPAYMENT = 0.05
"""The share of a layer's debt that makes the logarithm of alpha larger, at each measurement."""
DEBT_MIN, DEBT_MAX = -1.0, 4.0
"""In recalls. A debt that the budget does not let be repaid, or what was seen in excess of the
target where everything was easy, does not bind for long what comes later."""


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
        self._debts = [0.0] * n_layers
        """What the recalls of each layer lacked so far, all together."""
        self._learnt: list[tuple[int, int, float, float]] = []
        """(token, layer, alpha before, debt before) of each change, in their order."""

    def alpha(self, layer: int) -> float:
        """Scores less than this below the best are fetched."""
        return self._alphas[layer]

    def owes(self, layer: int) -> bool:
        """Whether the recalls of a layer lacked something that is not repaid yet."""
        return self._debts[layer] > 0

    def learn(self, layer: int, token: int, recall: float) -> None:
        """Token number `token` had this recall in a layer."""
        if self.target is None:
            return
        self.truncate(token)  # what a cancelled token taught
        before, owed, lack = self._alphas[layer], self._debts[layer], self.target - recall
        debt = min(max(owed + lack, DEBT_MIN), DEBT_MAX)
        step = GAIN * lack + REPAYMENT * debt
        self._alphas[layer] = min(max(before * math.exp(step), ALPHA_MIN), ALPHA_MAX)
        self._debts[layer] = debt
        self._learnt.append((token, layer, before, owed))

    def truncate(self, length: int) -> None:
        """Forget what was learnt of all tokens but the first `length`."""
        while self._learnt and self._learnt[-1][0] >= length:
            _, layer, alpha, debt = self._learnt.pop()
            self._alphas[layer], self._debts[layer] = alpha, debt
