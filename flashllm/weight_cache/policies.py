"""Cache policies: what each bundle of a layer is worth keeping. Pure: no slots, no bytes.

A policy is data: of each bundle one or two numbers, its terms, what a use makes of them, and what
they weigh in what the bundle is worth. The core's table of slots works on these, evicts what is
worth least, and knows no policy. Uses are remembered of all bundles of the layer, in memory or not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import Ids, Index, Values
from flashllm.core.numpy_twin.slots import use, values_of
from flashllm.errors import UsageError
from flashllm.options import DEFAULT_POLICY, POLICIES
from flashllm.options import Policy as PolicyName

Uses = NDArray[np.bool_]
Weights = tuple[tuple[float, ...], tuple[float, ...]]
"""Of each term: what a use adds to it, and what it weighs in what a bundle is worth."""

FAST, SLOW = (0.75, 1.0), (0.995, 2.0)
"""What is left of a use after a token, and the weight, of the counts of the text at hand and of all
texts. Tuned on calibration traces (docs/log/); nearby values do as well within half a percent."""
AGEING = (0.9, 1.0)
_NEVER = -1e9
_TIE = 1e-6
_FADED = 1e-100
_NEGLIGIBLE = 1e-100


class Policy(ABC):
    """What the bundles of one layer are worth."""

    window: int | None = None
    """Tokens after whose last use a bundle is evicted, though nothing needs its slot.

    None where slots are only ever taken.
    """

    def __init__(self, n_bundles: int, carried: Sequence[int], start: float) -> None:
        """`carried` says of each term whose value a use gives it, to add to; -1 for none."""
        self.carried = tuple(carried)
        self.terms: Values = np.full(n_bundles * len(self.carried), start)
        """Of one bundle after the other; the same memory for good: the core keeps it."""
        self._by_bundle = self.terms.reshape(n_bundles, len(self.carried))
        self._start = start

    @abstractmethod
    def weights(self, token: int, ids: Ids | None = None) -> Weights:
        """What counts at token number `token`; `ids` are about to be used, if any are."""

    @abstractmethod
    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """The tokens of a prompt up to number `last_token` used `ids`: `used` [tokens, n]."""

    def use(self, ids: Index, token: int) -> None:
        """Token number `token` uses the distinct `ids`."""
        added, _ = self.weights(token, ids.astype(np.int32))
        use(self._by_bundle, ids, self.carried, added)

    def values(self, ids: Index, token: int) -> Values:
        """What `ids` [n] are worth at `token`: more is kept longer."""
        return values_of(self._by_bundle, ids, self.weights(token)[1])

    def clear(self) -> None:
        """Forget all uses."""
        self.terms.fill(self._start)


class Recency(Policy):
    """Least recently used. With a `window` it is the paper's: what has left it is evicted."""

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
    """LRU-2: the token of the use before the last one, the last one among equals.

    Source: O'Neil, O'Neil and Weikum, The LRU-K page replacement algorithm, SIGMOD 1993.
    """

    def __init__(self, n_bundles: int) -> None:
        # The use before the last is what was the last; the last is the token.
        super().__init__(n_bundles, (1, -1), _NEVER)

    def weights(self, token: int, ids: Ids | None = None) -> Weights:  # noqa: ARG002
        """The token, to the last use, which decides among equals only."""
        return (0.0, float(token)), (1.0, _TIE)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Remember the tokens one after another."""
        first = last_token + 1 - len(used)
        for number, row in enumerate(used, first):
            self.use(ids[row], number)


class FadingCounts:
    """Counts of uses that fade. Of each: what is left after a token, and the weight.

    All uses fade alike, so each use adds more than the ones before instead. A bundle that every
    token uses counts the weight, whatever is left. All layers can have the same: what a use adds is
    then reckoned once a token, not for each decision with cold caches.
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
        """Also these counts [n_bundles, of each kind], all zero, belong to this."""
        self._layers.append(counts)

    def at(self, token: int) -> Weights:
        """What a use adds to each count, and what they weigh; for tokens one after another."""
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
        # The power that only vanishes: after a long prompt its reciprocal is no number any more.
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

    With two of them the first is nearly recency and knows the text at hand; the second tells the
    neurons that are often active from those that were so by chance.
    """

    def __init__(self, n_bundles: int, counts: FadingCounts) -> None:
        super().__init__(n_bundles, range(len(counts.decays)), 0.0)
        self._counts = counts
        counts.follow(self._by_bundle)

    def weights(self, token: int, ids: Ids | None = None) -> Weights:  # noqa: ARG002
        """A use, to all counts."""
        return self._counts.at(token)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Count the uses of a prompt."""
        ages = np.arange(len(used))[::-1]
        added, _ = self._counts.at(last_token)
        for kind, (decay, growth) in enumerate(zip(self._counts.decays, added, strict=True)):
            self._by_bundle[ids, kind] += growth * (decay**ages @ used)

    def clear(self) -> None:
        """Forget all uses, also those of the layers that share the counts: none knows its base."""
        self._counts.clear()


class Pinned(Recency):
    """Bundles that stay for good, and least recently used for the others.

    Not one of POLICIES: a recording has to say which are `hot` [n_bundles].
    """

    def __init__(self, hot: Uses) -> None:
        # A second term, which uses leave as it is: worth more than any token for those that stay.
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
    """One of POLICIES for each layer, cleared together; `window` in tokens is for the paper's."""
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
    """One of POLICIES for a single layer; `window` in tokens is for the paper's."""
    return make_policies(name, 1, n_bundles, window)[0]


def choose_policy(policy: PolicyName | None, window: int | None) -> PolicyName:
    """The policy asked for, the paper's where only a window is; `UsageError` for what is none."""
    if policy is None:
        return DEFAULT_POLICY if window is None else "window"
    if policy not in POLICIES:
        raise UsageError(f"--policy {policy}: expected one of {', '.join(POLICIES)}")
    if window is not None and policy != "window":
        raise UsageError(
            f"--window {window} is for the policy window; {policy} keeps what is worth most in all"
            " slots there are. Give --policy window, or no --window"
        )
    return policy
