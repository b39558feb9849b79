"""What policies are held against: the optimum, which knows the future, and what knows the rates.

Source of the optimum: Belady, A study of replacement algorithms for a virtual-storage computer, IBM
Systems Journal 5 (1966): what is used again last goes first. Here a token asks for many bundles at
once, all of which have to be there together, so those of the running token are never given up, and
none can be used without a slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashllm.flash.policies import Index, Uses, Values
from flashllm.flash.window import Ids


class Foresight:
    """Belady's policy, for the requests that it is told of."""

    window = None

    def __init__(self, n_bundles: int, requests: Sequence[Ids]) -> None:
        self._never = float(len(requests))
        following = np.full(n_bundles, self._never)
        self._after = []
        """For each request, when each of its bundles is asked for again."""
        for number in range(len(requests) - 1, -1, -1):
            self._after.append(following[requests[number]])
            following[requests[number]] = number
        self._next = np.full(n_bundles, self._never)

    def use(self, ids: Index, token: int) -> None:  # noqa: ARG002
        """The next request."""
        self._next[ids] = self._after.pop()

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Nothing: what has been says nothing that the future does not."""

    def values(self, ids: Index, token: int) -> Values:  # noqa: ARG002
        """More, the sooner it is used again."""
        return -self._next[ids]

    def clear(self) -> None:
        """Nothing."""


class KnownRates:
    """Keeps what is used most often on the whole: the best there is for uses by chance alone."""

    window = None

    def __init__(self, rates: Values) -> None:
        self._rates = rates

    def use(self, ids: Index, token: int) -> None:
        """Nothing: the rates are known."""

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Nothing."""

    def values(self, ids: Index, token: int) -> Values:  # noqa: ARG002
        """The rates."""
        return self._rates[ids]

    def clear(self) -> None:
        """Nothing."""
