"""Which bundles of a layer stay in DRAM, and in which slots. Pure: no bytes are moved here.

Swap-free: a new bundle lands in a slot given up, so nothing resident ever moves (LLM in a flash,
section 3.3, moves the last rows into the gaps). What is given up is a policy's choice
(`policies.py`). For the paper's own, section 3.1 (windowing), the reading of the window's edge is
that of the increments s_agg(k+1) - s_agg(k): before token t the layer holds what the last k tokens
used, and token t loads the rest of its active set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.flash.policies import Index, Policy, Recency, Uses, Values

Ids = NDArray[np.int32]

NO_IDS: Ids = np.zeros(0, dtype=np.int32)
_NONE: Index = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Claim:
    """Slots for an active set: `slots[i]` holds (or is about to hold) `ids[i]`."""

    ids: Ids
    slots: Ids
    missing: NDArray[np.bool_]
    """True where the bundle has to be read into its slot first."""
    spilled: int
    """Bundles given up although the policy would have kept them."""


class LayerWindow:
    """Slots of one layer, and what a policy makes of the tokens that used what is in them."""

    def __init__(self, n_bundles: int, n_slots: int, policy: Policy | int) -> None:
        """`policy` as an int is the paper's window of so many tokens."""
        assert 0 < n_slots <= n_bundles
        self.n_slots = n_slots
        self._policy = Recency(n_bundles, policy) if isinstance(policy, int) else policy
        self._slot_of = np.full(n_bundles, -1, dtype=np.intp)
        self._bundle_in = np.full(n_slots, -1, dtype=np.intp)
        self._n_free = n_slots

    def clear(self) -> None:
        """Forget everything that is resident, and all uses."""
        self._slot_of.fill(-1)
        self._bundle_in.fill(-1)
        self._n_free = self.n_slots
        self._policy.clear()

    def resident(self) -> Ids:
        """Ids of the bundles in DRAM, ascending."""
        return np.flatnonzero(self._slot_of >= 0).astype(np.int32)

    def claim(self, ids: Ids, token: int, in_flight: Ids = NO_IDS) -> Claim:
        """Slots for the distinct `ids` that token number `token` needs.

        The resident bundles `in_flight` keep their slots; together they are at most `n_slots`.
        """
        assert len(ids) <= self.n_slots
        index = ids.astype(np.intp)
        self._policy.use(index, token)
        slots = self._slot_of[index]
        missing = slots < 0
        needed = int(np.count_nonzero(missing))
        flying = self._slot_of[np.asarray(in_flight, dtype=np.intp)]
        if self._policy.window is not None:
            self._give_up_expired(token, self._policy.window, flying)
        spilled = 0
        if needed:
            spilled = max(needed - self._n_free, 0)
            found = self._free(needed)
            if spilled:
                keep = np.concatenate([slots[~missing], flying])
                found = np.concatenate([found, self._worst(spilled, keep, token)])
            self._put(index[missing], found)
            slots[missing] = found
        return Claim(ids, slots.astype(np.int32), missing, spilled)

    def prefetch(self, ids: Ids, token: int) -> Claim:
        """Slots for guesses at what token number `token` will need, the likeliest first.

        The claim is of those that were not resident and got one. Guesses, those that are resident
        among them, keep their slots; of the others the least valuable give way, as they will to the
        token's claim where the guesses are right. A guess counts as used when a claim uses it.
        """
        index = ids.astype(np.intp)
        slots = self._slot_of[index]
        keep = slots[slots >= 0]
        index = index[slots < 0][: self.n_slots - len(keep)]
        found, taken = self._free(len(index)), 0
        if len(found) < len(index):
            taken = len(index) - len(found)
            found = np.concatenate([found, self._worst(taken, keep, token)])
        self._put(index, found)
        missing = np.ones(len(index), dtype=np.bool_)
        return Claim(index.astype(np.int32), found.astype(np.int32), missing, taken)

    def disown(self, claim: Claim) -> None:
        """Take back what a claim put into its slots: the reads did not succeed."""
        ids, slots = claim.ids[claim.missing], claim.slots[claim.missing]
        self._slot_of[ids] = -1
        self._bundle_in[slots] = -1
        self._n_free += len(slots)

    def place(self, ids: Ids, used: Uses, last_token: int) -> tuple[NDArray[np.int64], Ids]:
        """Slots for bundles that the tokens of a prompt up to number `last_token` used.

        `used` [tokens, n] says which used which; where slots are short the most valuable stay.
        Returns (positions into `ids` that got a slot, their slots).
        """
        index = ids.astype(np.intp)
        self._policy.seed(index, used, last_token)
        fresh = np.flatnonzero(self._slot_of[index] < 0)
        values = self._policy.values(index[fresh], last_token)
        # Among equals by position, so that the outcome is reproducible.
        order = np.argsort(-values, kind="stable")
        fresh, values = fresh[order], values[order]
        found = self._free(min(len(fresh), self._n_free))
        if len(fresh) > len(found):
            worse = self._displaced(values[len(found) :], _NONE, last_token)
            found = np.concatenate([found, worse])
        fresh = fresh[: len(found)]
        self._put(index[fresh], found)
        return fresh, found.astype(np.int32)

    def _put(self, ids: Index, slots: Index) -> None:
        """Into slots that are free."""
        self._bundle_in[slots] = ids
        self._slot_of[ids] = slots
        self._n_free -= len(ids)

    def _free(self, count: int) -> Index:
        """At most so many free slots, the first ones."""
        if not self._n_free or not count:
            return _NONE
        return np.flatnonzero(self._bundle_in < 0)[:count]

    def _give_up(self, slots: Index) -> None:
        self._slot_of[self._bundle_in[slots]] = -1
        self._bundle_in[slots] = -1
        self._n_free += len(slots)

    def _give_up_expired(self, token: int, window: int, keep: Index) -> None:
        self._give_up(np.flatnonzero(self._held_values(token, keep) <= token - window))

    def _held_values(self, token: int, keep: Index) -> Values:
        """Of the bundle in each slot; without end for free slots and those to `keep`."""
        values = self._policy.values(self._bundle_in, token)
        values[keep] = np.inf
        if self._n_free:
            values[self._bundle_in < 0] = np.inf
        return values

    def _worst(self, count: int, keep: Index, token: int) -> Index:
        """Slots of the bundles that are worth least, given up; none of those to `keep`."""
        values = self._held_values(token, keep)
        worst = _least(values, count)
        assert values[worst].max() < np.inf, "more is claimed than there are slots"
        self._give_up(worst)
        return worst

    def _displaced(self, values: Values, keep: Index, token: int) -> Index:
        """Slots given up by bundles that are worth less than what takes their place.

        The worst one for the first of `values`, and so on, until one is worth no less.
        """
        held = self._held_values(token, keep)
        count = min(len(values), self.n_slots)
        worst = _least(held, count)
        worst = worst[np.argsort(held[worst], kind="stable")]
        less = held[worst] < values[:count]
        worst = worst[: count if less.all() else int(less.argmin())]
        self._give_up(worst)
        return worst


def _least(values: Values, count: int) -> Index:
    """Where the `count` least values are; the first ones among equals, so that it is reproducible.

    Faster than `argpartition`, which moves indexes about as well.
    """
    last = np.partition(values, count - 1)[count - 1]
    below = np.flatnonzero(values < last)
    equal = np.flatnonzero(values == last)[: count - len(below)]
    return np.concatenate([below, equal])
