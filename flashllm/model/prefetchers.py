"""Guesses of a layer's active set before its input is known, so that reads begin early.

A predictor is asked about a residual stream of an earlier place: before the layer's attention, or
before that and the feed-forward layer in front of it. What it names there is read while those are
computed. The real input then decides what is computed, so no answer changes. Deja Vu (arXiv
2310.17157) predicts from the layer before, and computes what it predicted; LLM in a
flash (arXiv 2312.11514) leaves its reads exposed.
"""

from __future__ import annotations

from flashllm.arrays import Ids
from flashllm.model.active_set_selectors import SelectPredicted, Vector
from flashllm.weight_cache.slot_pool import Fetch

WORTH = 0.5
"""Share of guesses that must turn out right for as many to be made again: a wrong one costs a read,
a right one hides one."""
GROW, SHRINK = 1.15, 0.8
LEAST_SHARE = 0.02
FEW = 8
"""Guesses that are too few to judge by, and bundles that are too few to be guessed."""


class Guesser:
    """Guesses for the layers of one model; how many is learnt from how many were right.

    Of what the predictor names the likeliest are read, a share of each layer's own.
    """

    def __init__(self, selector: SelectPredicted, n_layers: int) -> None:
        self.selector = selector
        self._shares = [1.0] * n_layers
        self._loaded = [FEW] * n_layers
        # Of the guesses that have not been judged yet.
        self._made = [0] * n_layers
        self._used = [0] * n_layers

    def pays(self, layer: int) -> bool:
        """Whether the layer loads enough a token for a guess to be worth what it costs."""
        return self._loaded[layer] >= FEW

    def likely(self, layer: int, x: Vector) -> Ids:
        """What is likely to be needed, the likeliest first, for what the predictor would read."""
        ids = self.selector.ranked(layer, x)
        return ids[: round(self._shares[layer] * len(ids))]

    def learn(self, layer: int, fetch: Fetch) -> None:
        """From the layer's claim: guess more of it next time, or less, or nothing."""
        self._loaded[layer] = fetch.claim.n_missing + fetch.guesses_used
        self._made[layer] += fetch.guesses_made
        self._used[layer] += fetch.guesses_used
        if self._made[layer] >= FEW:
            right = self._used[layer] >= WORTH * self._made[layer]
            share = self._shares[layer] * (GROW if right else SHRINK)
            self._shares[layer] = min(max(share, LEAST_SHARE), 1.0)
            self._made[layer] = self._used[layer] = 0
