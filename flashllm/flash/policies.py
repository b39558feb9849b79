"""Cache policies: what each bundle of a layer is worth keeping. Pure: no slots, no bytes.

A policy is data: of each bundle one or two numbers, its terms, what a use makes of them, and what
they weigh in what the bundle is worth. The core's table of slots works on these, gives up what is
worth least, and knows no policy. Uses are remembered of all bundles of the layer, in memory or not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import UsageError
from flashllm.flash.numpy_slots import Ids, Index, Values, use, values_of

Uses = NDArray[np.bool_]

DEFAULT_POLICY = "blend"
POLICIES = ("blend", "frequency", "lru2", "lru", "window")
"""Those that a model can be run with; `window` is the paper's."""
FAST, SLOW = (0.75, 1.0), (0.995, 2.0)
"""What is left of a use after a token, and the weight, of the counts of the text at hand and of all
texts. Tuned on calibration traces (docs/log.md); nearby values do as well within half a percent."""
AGEING = (0.9, 1.0)
_NEVER = -1e9
_TIE = 1e-6
_FADED = 1e-100
_NEGLIGIBLE = 1e-100


class Policy(ABC):
    """What the bundles of one layer are worth."""

    window: int | None = None
    """Tokens after whose last use a bundle is given up, though nothing needs its slot.

    None where slots are only ever taken.
    """

    def __init__(self, n_bundles: int, carried: Sequence[int], start: float) -> None:
        """`carried` says of each term whose value it has after a use, -1 for none; see `added`."""
        self.carried = tuple(carried)
        self.terms: Values = np.full(n_bundles * len(self.carried), start)
        """Of one bundle after the other; the same memory for good."""
        self._by_bundle = self.terms.reshape(n_bundles, len(self.carried))
        self._start = start

    @abstractmethod
    def added(self, ids: Ids, token: int) -> tuple[float, ...]:
        """What a use by token number `token` adds to each term; `ids` are about to be used."""

    def scales(self, token: int) -> tuple[float, ...]:  # noqa: ARG002
        """What the terms weigh at `token`, the last that used any bundle."""
        return (1.0,) * len(self.carried)

    @abstractmethod
    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """The tokens of a prompt up to number `last_token` used `ids`: `used` [tokens, n]."""

    def use(self, ids: Index, token: int) -> None:
        """Token number `token` uses the distinct `ids`."""
        use(self._by_bundle, ids, self.carried, self.added(ids.astype(np.int32), token))

    def values(self, ids: Index, token: int) -> Values:
        """What `ids` [n] are worth at `token`: more is kept longer."""
        return values_of(self._by_bundle, ids, self.scales(token))

    def clear(self) -> None:
        """Forget all uses."""
        self.terms.fill(self._start)


class Recency(Policy):
    """Least recently used. With a `window` it is the paper's: what has left it is given up."""

    def __init__(self, n_bundles: int, window: int | None = None) -> None:
        assert window is None or window > 0
        super().__init__(n_bundles, (-1,), _NEVER)
        self.window = window

    def added(self, ids: Ids, token: int) -> tuple[float, ...]:  # noqa: ARG002
        """The token, instead of the one before."""
        return (float(token),)

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

    def added(self, ids: Ids, token: int) -> tuple[float, ...]:  # noqa: ARG002
        """The token, to the last use."""
        return (0.0, float(token))

    def scales(self, token: int) -> tuple[float, ...]:  # noqa: ARG002
        """The last use decides among equals only."""
        return (1.0, _TIE)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Remember the tokens one after another."""
        first = last_token + 1 - len(used)
        for number, row in enumerate(used, first):
            self.use(ids[row], number)


class _Fading:
    """Uses of each bundle, counted so that what is left of one after a token is `decay`.

    All counts fade alike, so each use adds more than the ones before instead. A bundle that every
    token uses counts `weight`, whatever the decay.
    """

    def __init__(self, counts: Values, decay: float, weight: float) -> None:
        """`counts` [n_bundles] are a policy's term."""
        assert 0 < decay < 1
        self._decay = decay
        self.one = weight * (1 - decay)
        """What a use counts at its own token."""
        self._counts = counts
        self._base = 0  # a use at this token adds one

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        ages = np.arange(len(used))[::-1]
        growth = self.growth(last_token)
        self._counts[ids] += growth * (self._decay**ages @ used)

    def clear(self) -> None:
        self._base = 0

    def growth(self, token: int) -> float:
        """What a use at this token adds."""
        # The power that only vanishes: after a long prompt its reciprocal is no number any more.
        left = float(self._decay ** float(token - self._base))
        if left < _FADED:
            self._counts *= left
            self._counts[self._counts < _NEGLIGIBLE] = 0  # sums with denormals are slow
            self._base, left = token, 1.0
        return 1 / left


class Frequency(Policy):
    """Uses counted with ageing: the sum of `counts`, each (what is left after a token, weight).

    With two of them the first is nearly recency and knows the text at hand; the second tells the
    neurons that are often active from those that were so by chance.
    """

    def __init__(self, n_bundles: int, *counts: tuple[float, float]) -> None:
        super().__init__(n_bundles, range(len(counts)), 0.0)
        self._counts = [
            _Fading(self._by_bundle[:, term], decay, weight)
            for term, (decay, weight) in enumerate(counts)
        ]

        self._growth: tuple[float, ...] = ()
        self._scales: tuple[float, ...] = ()
        self._weighed_at: int | None = None

    def added(self, ids: Ids, token: int) -> tuple[float, ...]:  # noqa: ARG002
        """A use, to all counts."""
        self._weigh(token)
        return self._growth

    def scales(self, token: int) -> tuple[float, ...]:
        """What a use counts now."""
        self._weigh(token)
        return self._scales

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Count the uses of a prompt."""
        self._weigh(last_token)
        for counts in self._counts:
            counts.seed(ids, used, last_token)

    def clear(self) -> None:
        """Forget all uses."""
        super().clear()
        self._weighed_at = None
        for counts in self._counts:
            counts.clear()

    def _weigh(self, token: int) -> None:
        """Once for all decisions of a token; what is remembered is of the last call of `growth`."""
        if token != self._weighed_at:
            self._growth = tuple([counts.growth(token) for counts in self._counts])
            uses = zip(self._counts, self._growth, strict=True)
            self._scales = tuple([counts.one / growth for counts, growth in uses])
            self._weighed_at = token


class Pinned(Recency):
    """Bundles that stay for good, and least recently used for the others.

    Not one of POLICIES: a recording has to say which are `hot` [n_bundles].
    """

    def __init__(self, hot: Uses) -> None:
        # A second term, which uses leave as it is: worth more than any token for those that stay.
        Policy.__init__(self, len(hot), (-1, 1), _NEVER)
        self._bonus = np.where(hot, -_NEVER, 0.0)
        self._by_bundle[:, 1] = self._bonus

    def added(self, ids: Ids, token: int) -> tuple[float, ...]:
        """The token, instead of the one before, and nothing."""
        return (*super().added(ids, token), 0.0)

    def clear(self) -> None:
        """Forget all uses."""
        super().clear()
        self._by_bundle[:, 1] = self._bonus


def make_policy(name: str, n_bundles: int, window: int) -> Policy:
    """One of POLICIES for a layer; `window` in tokens is for the paper's."""
    if name == "window":
        return Recency(n_bundles, window)
    if name == "lru":
        return Recency(n_bundles)
    if name == "lru2":
        return SecondLast(n_bundles)
    if name == "frequency":
        return Frequency(n_bundles, AGEING)
    assert name == "blend", "checked where it was given"
    return Frequency(n_bundles, FAST, SLOW)


def choose_policy(policy: str | None, window: int | None) -> str:
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
