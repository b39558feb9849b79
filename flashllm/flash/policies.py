"""Cache policies: what each bundle of a layer is worth keeping. Pure: no slots, no bytes.

A policy hears of uses and says what bundles are worth; `LayerWindow` takes the slots of those that
are worth least. Uses are remembered of all bundles of the layer, in memory or not.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import UsageError

Index = NDArray[np.intp]
"""Ids of bundles as numpy indexes fastest: of other integers it makes these first, slowly."""
Values = NDArray[np.float64]
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


class Policy(Protocol):
    """What the bundles of one layer are worth."""

    @property
    def window(self) -> int | None:
        """Tokens after whose last use a bundle is given up, though nothing needs its slot.

        None where slots are only ever taken.
        """
        ...

    def use(self, ids: Index, token: int) -> None:
        """Token number `token` uses the distinct `ids`."""
        ...

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """The tokens of a prompt up to number `last_token` used `ids`: `used` [tokens, n]."""
        ...

    def values(self, ids: Index, token: int) -> Values:
        """What `ids` [n] are worth at `token`, the last that used any: more is kept longer."""
        ...

    def clear(self) -> None:
        """Forget all uses."""
        ...


class Recency:
    """Least recently used. With a `window` it is the paper's: what has left it is given up."""

    def __init__(self, n_bundles: int, window: int | None = None) -> None:
        assert window is None or window > 0
        self.window = window
        self._last = np.full(n_bundles, _NEVER)

    def use(self, ids: Index, token: int) -> None:
        """Remember the token."""
        self._last[ids] = token

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Remember the last token of each."""
        if len(ids):
            self._last[ids] = last_token - used[::-1].argmax(axis=0)

    def values(self, ids: Index, token: int) -> Values:  # noqa: ARG002
        """Tokens of the last uses."""
        return self._last[ids]

    def clear(self) -> None:
        """Forget all uses."""
        self._last.fill(_NEVER)


class SecondLast:
    """LRU-2: the token of the use before the last one, the last one among equals.

    Source: O'Neil, O'Neil and Weikum, The LRU-K page replacement algorithm, SIGMOD 1993.
    """

    window = None

    def __init__(self, n_bundles: int) -> None:
        self._last = np.full(n_bundles, _NEVER)
        self._before = np.full(n_bundles, _NEVER)

    def use(self, ids: Index, token: int) -> None:
        """Remember the token, and the one before."""
        self._before[ids] = self._last[ids]
        self._last[ids] = token

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Remember the tokens one after another."""
        first = last_token + 1 - len(used)
        for number, row in enumerate(used, first):
            self.use(ids[row], number)

    def values(self, ids: Index, token: int) -> Values:  # noqa: ARG002
        """Tokens of the last uses but one."""
        return self._before[ids] + self._last[ids] * _TIE

    def clear(self) -> None:
        """Forget all uses."""
        self._last.fill(_NEVER)
        self._before.fill(_NEVER)


class _Fading:
    """Uses of each bundle, counted so that what is left of one after a token is `decay`.

    All counts fade alike, so each use adds more than the ones before instead. A bundle that every
    token uses counts `weight`, whatever the decay.
    """

    def __init__(self, n_bundles: int, decay: float, weight: float) -> None:
        assert 0 < decay < 1
        self.decay = decay
        self.one = weight * (1 - decay)
        """What a use counts at its own token."""
        self._counts = np.zeros(n_bundles)
        self._base = 0  # a use at this token adds one

    def add(self, ids: Index, token: int) -> None:
        growth = self._growth(token)  # may change the counts, so it comes first
        self._counts[ids] += growth

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        ages = np.arange(len(used))[::-1]
        growth = self._growth(last_token)
        self._counts[ids] += growth * (self.decay**ages @ used)

    def at(self, ids: Index, token: int) -> Values:
        scale = self.one / self._growth(token)
        return self._counts[ids] * scale

    def clear(self) -> None:
        self._counts.fill(0)
        self._base = 0

    def _growth(self, token: int) -> float:
        # The power that only vanishes: after a long prompt its reciprocal is no number any more.
        left = float(self.decay ** float(token - self._base))
        if left < _FADED:
            self._counts *= left
            self._counts[self._counts < _NEGLIGIBLE] = 0  # sums with denormals are slow
            self._base, left = token, 1.0
        return 1 / left


class Frequency:
    """Uses counted with ageing: the sum of `counts`, each (what is left after a token, weight).

    With two of them the first is nearly recency and knows the text at hand; the second tells the
    neurons that are often active from those that were so by chance.
    """

    window = None

    def __init__(self, n_bundles: int, *counts: tuple[float, float]) -> None:
        self._counts = [_Fading(n_bundles, decay, weight) for decay, weight in counts]

    def use(self, ids: Index, token: int) -> None:
        """Count a use."""
        for counts in self._counts:
            counts.add(ids, token)

    def seed(self, ids: Index, used: Uses, last_token: int) -> None:
        """Count the uses of a prompt."""
        for counts in self._counts:
            counts.seed(ids, used, last_token)

    def values(self, ids: Index, token: int) -> Values:
        """The sum of the counts."""
        values = self._counts[0].at(ids, token)
        for counts in self._counts[1:]:
            values += counts.at(ids, token)
        return values

    def clear(self) -> None:
        """Forget all uses."""
        for counts in self._counts:
            counts.clear()


class Pinned(Recency):
    """Bundles that stay for good, and least recently used for the others.

    Not one of POLICIES: a recording has to say which are `hot` [n_bundles].
    """

    def __init__(self, hot: Uses) -> None:
        super().__init__(len(hot))
        self._bonus = np.where(hot, -_NEVER, 0.0)

    def values(self, ids: Index, token: int) -> Values:
        """Tokens of the last uses, and more than any for those that stay."""
        return super().values(ids, token) + self._bonus[ids]


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
