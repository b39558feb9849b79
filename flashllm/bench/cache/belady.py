"""What policies are compared with: Belady's optimum, and a policy that knows the rates of use.

Source of the optimum: Belady, A study of replacement algorithms for a virtual-storage computer, IBM
Systems Journal 5 (1966): evict what is used again last. Here a token asks for many bundles at once,
which all have to be in slots together, so bundles of the current token are never evicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashllm.arrays import Ids, Index, Values
from flashllm.weight_cache.policies import Policy, Uses, Weights


class OptimalReplacement(Policy):
    """Belady's policy, for requests that are known in advance."""

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
        """Sets each bundle's value from its next request; uses add nothing."""
        if ids is not None:
            self._by_bundle[ids, 0] = -self._after.pop()
        return (0.0,), (1.0,)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Does nothing: the future decides, not the past."""

    def clear(self) -> None:
        """Nothing."""


class KnownRates(Policy):
    """Keeps what is used most often in the whole trace: optimal if uses are independent."""

    def __init__(self, rates: Values) -> None:
        super().__init__(len(rates), (0,), 0.0)
        self.terms[:] = rates

    def weights(self, token: int, ids: Ids | None = None) -> Weights:  # noqa: ARG002
        """Uses add nothing, since the rates are known."""
        return (0.0,), (1.0,)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Nothing."""

    def clear(self) -> None:
        """Nothing."""
