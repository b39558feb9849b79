"""Cache policies: how much keeping each bundle of a layer is worth. Pure: no slots, no bytes.

A policy is data: one or two numbers for each bundle (its terms), what a use adds to them, and their
weights in the bundle's value. The core's slot table works on these numbers, evicts the least
valuable bundle, and knows no policy. Uses are remembered for all bundles of the layer, in memory or
not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import Ids, Index, Values
from flashllm.core.numpy_twin.slots import use, values_of

Uses = NDArray[np.bool_]
Weights = tuple[tuple[float, ...], tuple[float, ...]]
"""For each term: what a use adds to it, and its weight in the bundle's value."""

FAST, SLOW = (0.75, 1.0), (0.995, 2.0)
"""(decay per token, weight) of the two use counts that `blend` adds: this text, all texts. Tuned on
calibration traces (docs/log/); nearby values differ by less than half a percent."""
AGEING = (0.9, 1.0)
_NEVER = -1e9
_TIE = 1e-6
_FADED = 1e-100
_NEGLIGIBLE = 1e-100


class Policy(ABC):
    """How much the bundles of one layer are worth."""

    window: int | None = None
    """A bundle is evicted this many tokens after its last use, even if nothing needs its slot.

    None: bundles are evicted only when a slot is needed.
    """

    def __init__(self, n_bundles: int, carried: Sequence[int], start: float) -> None:
        """`carried`: for each term, the term that a use copies into it first; -1 for none."""
        self.carried = tuple(carried)
        self.terms: Values = np.full(n_bundles * len(self.carried), start)
        """Of one bundle after the other; the same memory for good: the core keeps it."""
        self._by_bundle = self.terms.reshape(n_bundles, len(self.carried))
        self._start = start

    @abstractmethod
    def weights(self, token: int, ids: Ids | None = None) -> Weights:
        """The weights at token number `token`; `ids` are about to be used, if given."""

    @abstractmethod
    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """The tokens of a prompt up to number `last_token` used `ids`: `used` [tokens, n]."""

    def use(self, ids: Index, token: int) -> None:
        """Token number `token` uses the distinct `ids`."""
        added, _ = self.weights(token, ids.astype(np.int32))
        use(self._by_bundle, ids, self.carried, added)

    def values(self, ids: Index, token: int) -> Values:
        """The values of `ids` [n] at `token`; higher values stay longer."""
        return values_of(self._by_bundle, ids, self.weights(token)[1])

    def clear(self) -> None:
        """Forget all uses."""
        self.terms.fill(self._start)


class Recency(Policy):
    """Least recently used. With a `window`, the paper's policy: bundles outside are evicted."""

    def __init__(self, n_bundles: int, window: int | None = None) -> None:
        assert window is None or window > 0
        super().__init__(n_bundles, (-1,), _NEVER)
        self.window = window

    def weights(self, token: int, ids: Ids | None = None) -> Weights:  # noqa: ARG002
        """The token, instead of the one before."""
        return (float(token),), (1.0,)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Remember the last token of each."""
        if len(ids):
            self._by_bundle[ids, 0] = last_token - used[::-1].argmax(axis=0)


class SecondLast(Policy):
    """LRU-2: the value is the token of the last use but one; among equals, the last use decides.

    Source: O'Neil, O'Neil and Weikum, The LRU-K page replacement algorithm, SIGMOD 1993.
    """

    def __init__(self, n_bundles: int) -> None:
        # The use before the last is what was the last; the last is the token.
        super().__init__(n_bundles, (1, -1), _NEVER)

    def weights(self, token: int, ids: Ids | None = None) -> Weights:  # noqa: ARG002
        """A use sets the last-use term to the token; that term only decides among equals."""
        return (0.0, float(token)), (1.0, _TIE)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Remember the tokens one after another."""
        first = last_token + 1 - len(used)
        for number, row in enumerate(used, first):
            self.use(ids[row], number)


class FadingCounts:
    """Use counts that decay; each has a decay per token and a weight.

    All counts decay alike, so instead each use adds more than earlier ones did. A bundle that every
    token uses has the weight as its value, whatever the decay. All layers can share one object:
    what a use adds is then computed once per token, not for each decision with cold caches.
    """

    def __init__(self, *counts: tuple[float, float]) -> None:
        assert all(0 < decay < 1 for decay, _ in counts)
        self.decays = tuple(decay for decay, _ in counts)
        self._ones = [weight * (1 - decay) for decay, weight in counts]
        """What a use counts at its own token."""
        self._layers: list[Values] = []
        self._bases = [0] * len(counts)
        """The tokens at which a use adds one."""
        self._token: int | None = None
        self._weights: Weights = ((), ())

    def follow(self, counts: Values) -> None:
        """Lets another layer's counts [n_bundles, kinds], all zero, share this object."""
        self._layers.append(counts)

    def at(self, token: int) -> Weights:
        """What a use adds to each count, and the weights; called for tokens in ascending order."""
        if token != self._token:
            growth = [self._growth(kind, token) for kind in range(len(self.decays))]
            scales = [one / more for one, more in zip(self._ones, growth, strict=True)]
            self._token, self._weights = token, (tuple(growth), tuple(scales))
        return self._weights

    def clear(self) -> None:
        """Forget all uses, in all layers."""
        if self._token is None:
            return  # nothing was counted since: each of the layers asks for this
        for counts in self._layers:
            counts.fill(0)
        self._bases = [0] * len(self.decays)
        self._token = None

    def _growth(self, kind: int, token: int) -> float:
        # Decay as a power that underflows to 0: after a long prompt its reciprocal would be
        # infinite.
        left = float(self.decays[kind] ** float(token - self._bases[kind]))
        if left < _FADED:
            for layer in self._layers:
                counts = layer[:, kind]
                counts *= left
                counts[counts < _NEGLIGIBLE] = 0  # sums with denormals are slow
            self._bases[kind], left = token, 1.0
        return 1 / left


class Frequency(Policy):
    """Uses counted with ageing: the sum of all counts.

    With two counts, the first is nearly recency and follows the current text; the second tells
    neurons that are often active from those that were active by chance.
    """

    def __init__(self, n_bundles: int, counts: FadingCounts) -> None:
        super().__init__(n_bundles, range(len(counts.decays)), 0.0)
        self._counts = counts
        counts.follow(self._by_bundle)

    def weights(self, token: int, ids: Ids | None = None) -> Weights:  # noqa: ARG002
        """A use adds to all counts."""
        return self._counts.at(token)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Count the uses of a prompt."""
        ages = np.arange(len(used))[::-1]
        added, _ = self._counts.at(last_token)
        for kind, (decay, growth) in enumerate(zip(self._counts.decays, added, strict=True)):
            self._by_bundle[ids, kind] += growth * (decay**ages @ used)

    def clear(self) -> None:
        """Forget all uses, also of the layers that share the counts, since they share the scale."""
        self._counts.clear()


class Pinned(Recency):
    """`hot` [n_bundles] bundles always stay; least recently used for the others.

    Not one of POLICIES: which are hot comes from a recording.
    """

    def __init__(self, hot: Uses) -> None:
        # A second term that uses do not change: larger than any token number for pinned bundles.
        Policy.__init__(self, len(hot), (-1, 1), _NEVER)
        self._bonus = np.where(hot, -_NEVER, 0.0)
        self._by_bundle[:, 1] = self._bonus

    def weights(self, token: int, ids: Ids | None = None) -> Weights:  # noqa: ARG002
        """The token, instead of the one before, and nothing."""
        return (float(token), 0.0), (1.0, 1.0)

    def clear(self) -> None:
        """Forget all uses."""
        super().clear()
        self._by_bundle[:, 1] = self._bonus


def make_policies(name: str, n_layers: int, n_bundles: int, window: int) -> list[Policy]:
    """One policy for each layer, cleared together; `window`, in tokens, is for the paper's."""
    if name == "window":
        return [Recency(n_bundles, window) for _ in range(n_layers)]
    if name == "lru":
        return [Recency(n_bundles) for _ in range(n_layers)]
    if name == "lru2":
        return [SecondLast(n_bundles) for _ in range(n_layers)]
    assert name in ("blend", "frequency"), "checked where it was given"
    counts = FadingCounts(FAST, SLOW) if name == "blend" else FadingCounts(AGEING)
    return [Frequency(n_bundles, counts) for _ in range(n_layers)]


def make_policy(name: str, n_bundles: int, window: int) -> Policy:
    """The policy of a single layer; `window`, in tokens, is for the paper's policy."""
    return make_policies(name, 1, n_bundles, window)[0]
