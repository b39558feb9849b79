"""What policies are held against: the optimum, which knows the future, and what knows the rates.

Source of the optimum: Belady, A study of replacement algorithms for a virtual-storage computer, IBM
Systems Journal 5 (1966): what is used again last goes first. Here a token asks for many bundles at
once, all of which have to be there together, so those of the running token are never given up, and
none can be used without a slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashllm.arrays import Ids, Index, Values
from flashllm.weight_cache.policies import Policy, Uses, Weights


class OptimalReplacement(Policy):
    """Belady's policy, for the requests that it is told of."""

    def __init__(self, n_bundles: int, requests: Sequence[Ids]) -> None:
        never = float(len(requests))
        super().__init__(n_bundles, (0,), -never)
        following = np.full(n_bundles, never)
        self._after = []
        """For each request, when each of its bundles is asked for again."""
        for number in range(len(requests) - 1, -1, -1):
            self._after.append(following[requests[number]])
            following[requests[number]] = number

    def weights(self, token: int, ids: Ids | None = None) -> Weights:  # noqa: ARG002
        """Uses add nothing: the next request, which differs from bundle to bundle, is set here."""
        if ids is not None:
            self._by_bundle[ids, 0] = -self._after.pop()
        return (0.0,), (1.0,)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Nothing: what has been says nothing that the future does not."""

    def clear(self) -> None:
        """Nothing."""


class KnownRates(Policy):
    """Keeps what is used most often on the whole: the best there is for uses by chance alone."""

    def __init__(self, rates: Values) -> None:
        super().__init__(len(rates), (0,), 0.0)
        self.terms[:] = rates

    def weights(self, token: int, ids: Ids | None = None) -> Weights:  # noqa: ARG002
        """Uses add nothing: the rates are known."""
        return (0.0,), (1.0,)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Nothing."""

    def clear(self) -> None:
        """Nothing."""
