"""The sliding window: which bundles of a layer stay in DRAM. Pure: no bytes are moved here.

Source: LLM in a flash, section 3.1 (windowing) and 3.3 (memory management); the reading of
the window's edge is that of the increments s_agg(k+1) - s_agg(k): before token t the layer
holds what the last k tokens used, and token t loads the rest of its active set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]

_NEVER = np.iinfo(np.int64).min // 2
NO_IDS: Ids = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Claim:
    """Slots for an active set: `slots[i]` holds (or is about to hold) `ids[i]`."""

    ids: Ids
    slots: Ids
    missing: NDArray[np.bool_]
    """True where the bundle has to be read into its slot first."""
    spilled: int
    """Bundles given up although the window still wanted them."""


class LayerWindow:
    """Slots of one layer and the tokens that last used what is in them.

    Swap-free: a new bundle lands in a slot given up, so nothing resident ever moves.
    """

    def __init__(self, n_bundles: int, n_slots: int, window: int) -> None:
        assert 0 < n_slots <= n_bundles
        assert window > 0
        self.n_slots = n_slots
        self._window = window
        self._slot_of = np.full(n_bundles, -1, dtype=np.int32)
        self._bundle_in = np.full(n_slots, -1, dtype=np.int32)
        self._last_used = np.full(n_bundles, _NEVER, dtype=np.int64)

    def clear(self) -> None:
        """Forget everything that is resident."""
        self._slot_of.fill(-1)
        self._bundle_in.fill(-1)
        self._last_used.fill(_NEVER)

    def resident(self) -> Ids:
        """Ids of the bundles in DRAM, ascending."""
        return np.flatnonzero(self._slot_of >= 0).astype(np.int32)

    def claim(self, ids: Ids, token: int, in_flight: Ids = NO_IDS) -> Claim:
        """Slots for the distinct `ids` (at most `n_slots`) that token number `token` needs.

        Bundles `in_flight` keep their slots, since bytes are still to land there.
        """
        assert len(ids) <= self.n_slots
        self._last_used[ids] = token
        slots = self._slot_of[ids]
        missing = slots < 0
        needed = int(np.count_nonzero(missing))
        self._give_up_expired(token, in_flight)
        if not needed:
            return Claim(ids, slots, missing, 0)
        free = np.flatnonzero(self._bundle_in < 0)
        spilled = needed - len(free)
        if spilled > 0:
            free = np.concatenate([free, self._spill(spilled, np.concatenate([ids, in_flight]))])
        slots[missing] = free[:needed]
        self._bundle_in[slots[missing]] = ids[missing]
        self._slot_of[ids[missing]] = slots[missing]
        return Claim(ids, slots, missing, max(spilled, 0))

    def prefetch(self, ids: Ids) -> Claim:
        """Slots for those of the guessed `ids`, the likeliest first, that are not resident.

        Residents that were not guessed give way, those used longest ago first. A guess counts as
        used when a claim uses it.
        """
        absent = ids[self._slot_of[ids] < 0]
        free = np.flatnonzero(self._bundle_in < 0)
        short = len(absent) - len(free)
        if short > 0:
            free = np.concatenate([free, self._spill(short, ids)])
        absent = absent[: len(free)]
        slots = free[: len(absent)].astype(np.int32)
        self._bundle_in[slots] = absent
        self._slot_of[absent] = slots
        return Claim(absent, slots, np.ones(len(absent), dtype=np.bool_), max(short, 0))

    def disown(self, claim: Claim) -> None:
        """Take back what a claim put into its slots: the reads did not succeed."""
        ids, slots = claim.ids[claim.missing], claim.slots[claim.missing]
        self._slot_of[ids] = -1
        self._bundle_in[slots] = -1

    def place(self, ids: Ids, last_used: NDArray[np.int64]) -> tuple[NDArray[np.int64], Ids]:
        """Slots for bundles that a prompt used, the most recent first where slots are short.

        Returns (positions into `ids` that got a slot, their slots); older residents give way.
        """
        fresh = np.flatnonzero(self._slot_of[ids] < 0)
        # Newest first; among equals by position, so that the outcome is reproducible.
        fresh = fresh[np.argsort(-last_used[fresh], kind="stable")]
        free = np.flatnonzero(self._bundle_in < 0)[: len(fresh)]
        short = len(fresh) - len(free)
        if short > 0:
            held = np.flatnonzero(self._bundle_in >= 0)
            ages = self._last_used[self._bundle_in[held]]
            oldest = held[np.argsort(ages, kind="stable")][:short]
            late = last_used[fresh[len(free) : len(free) + len(oldest)]]
            oldest = oldest[self._last_used[self._bundle_in[oldest]] < late]
            self._slot_of[self._bundle_in[oldest]] = -1
            free = np.concatenate([free, oldest])
        fresh = fresh[: len(free)]
        self._last_used[ids] = np.maximum(self._last_used[ids], last_used)
        self._bundle_in[free] = ids[fresh]
        self._slot_of[ids[fresh]] = free
        return fresh, free.astype(np.int32)

    def _give_up_expired(self, token: int, kept: Ids) -> None:
        held = np.flatnonzero(self._bundle_in >= 0)
        bundles = self._bundle_in[held]
        last_used = self._last_used[kept]
        self._last_used[kept] = token
        expired = self._last_used[bundles] <= token - self._window
        self._last_used[kept] = last_used
        self._slot_of[bundles[expired]] = -1
        self._bundle_in[held[expired]] = -1

    def _spill(self, count: int, ids: Ids) -> NDArray[np.int64]:
        # At most `count` slots. `ids` are out of bounds; those used longest ago go first.
        wanted = np.zeros(len(self._slot_of), dtype=np.bool_)
        wanted[ids] = True
        held = np.flatnonzero(self._bundle_in >= 0)
        held = held[~wanted[self._bundle_in[held]]]
        ages = self._last_used[self._bundle_in[held]]
        oldest = held[np.argsort(ages, kind="stable")][:count]
        self._slot_of[self._bundle_in[oldest]] = -1
        self._bundle_in[oldest] = -1
        return oldest
