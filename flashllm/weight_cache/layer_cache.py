"""Which bundles of a layer stay in DRAM, and in which slots. Pure: no bytes are moved here.

Swap-free: a new bundle lands in an evicted slot, so nothing resident ever moves (LLM in a flash,
section 3.3, moves the last rows into the gaps). What is evicted is a policy's choice
(`policies.py`); each decision of a token is one call of the core's `SlotTable`. The paper's policy
(section 3.1, windowing) is read as its increments s_agg(k+1) - s_agg(k) suggest: before token t the
layer holds what the last k tokens used, and token t loads the rest of its active set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import NO_IDS, Ids, Index, States, Values
from flashllm.core.numpy_twin.slots import IN_FLIGHT, MISSING, least
from flashllm.weight_cache.policies import Policy, Recency, Uses

__all__ = ["NO_IDS", "Acquired", "Ids", "LayerCache"]
_NO_END = -np.inf


@dataclass(slots=True)
class Acquired:
    """Slots for an active set: `slots[i]` holds (or is about to hold) `ids[i]`."""

    ids: Ids
    slots: Ids
    states: States
    """Each HERE, MISSING or IN_FLIGHT, as it was before."""
    n_missing: int
    n_in_flight: int
    evicted_early: int
    """Bundles evicted although the policy would have kept them."""

    @property
    def missing(self) -> NDArray[np.bool_]:
        """True where the bundle has to be read into its slot first."""
        missing: NDArray[np.bool_] = self.states == MISSING
        return missing

    @property
    def in_flight(self) -> NDArray[np.bool_]:
        """True where the bundle was already being read."""
        in_flight: NDArray[np.bool_] = self.states == IN_FLIGHT
        return in_flight


class LayerCache:
    """The slots of one layer, of which a policy chooses the bundles to evict."""

    def __init__(
        self, n_bundles: int, n_slots: int, policy: Policy | int, first_slot: int = 0
    ) -> None:
        """An int as `policy` is the paper's window, in tokens.

        The slots are numbered from `first_slot` on.
        """
        self.n_slots = n_slots
        """Slots in use, those that are lent included."""
        self._first_slot = first_slot
        self._n_lent = 0
        self._policy = Recency(n_bundles, policy) if isinstance(policy, int) else policy
        self._table = core.SlotTable(
            n_bundles, n_slots, self._policy.carried, self._policy.terms, first_slot
        )
        self._prefetched_ids, self._prefetched_slots = (
            self._table.prefetched_ids,
            self._table.prefetched_slots,
        )

    @property
    def table(self) -> core.SlotTable:
        """Which bundle is in which slot at this moment: to be looked at, not changed."""
        return self._table

    def clear(self) -> None:
        """Forget everything that is resident, and all uses."""
        self._table.clear()
        self._policy.clear()

    def lend(self, n_slots: int) -> int:
        """Evict the bundles in the last `n_slots` slots and use only the others; 0 takes all back.

        Returns the first lent slot.
        """
        self._n_lent = n_slots
        self._table.limit(self.n_slots - n_slots)
        return self._first_slot + self.n_slots - n_slots

    def resize(self, n_slots: int) -> None:
        """Use the first `n_slots` slots only; evicts the bundles in the others. None may be lent.

        At most as many as there are.
        """
        assert not self._n_lent
        self.n_slots = n_slots
        self._table.limit(n_slots)

    def resident(self) -> Ids:
        """Ids of the bundles in DRAM, ascending."""
        return np.flatnonzero(self.held()).astype(np.int32)

    def valuable(self, token: int) -> Ids:
        """The same, those first that the policy keeps longest at token number `token`."""
        ids = self.resident()
        values = self._policy.values(ids.astype(np.intp), token)
        ordered: Ids = ids[np.argsort(-values, kind="stable")]
        return ordered

    def held(self) -> NDArray[np.bool_]:
        """[n]: which bundles are in DRAM or being read."""
        held: NDArray[np.bool_] = self._table.slot_of >= 0
        return held

    def slots(self, first: int, count: int) -> Ids:
        """The slots of `count` bundles from `first` on; -1 for one that is not in DRAM."""
        indexes = self._table.slot_of[first : first + count]
        return np.where(indexes < 0, -1, indexes + self._first_slot).astype(np.int32)

    @property
    def has_room_for_all(self) -> bool:
        """Whether there is a slot for each bundle, so that none is ever evicted."""
        return self.n_slots - self._n_lent >= len(self._table.slot_of)

    @property
    def free_slots(self) -> int:
        """Slots that hold nothing."""
        return int(np.count_nonzero(self._usable() < 0))

    def in_order(self, first: int, count: int) -> int | None:
        """The slot of bundle `first`, where each bundle in DRAM is in the slot of its number.

        None for another layer, for one with too few slots, and if the `count` are not all free.
        """
        usable = self._usable()
        numbers = np.arange(len(usable))
        is_in_order = bool(((usable < 0) | (usable == numbers)).all())
        if (
            not self.has_room_for_all
            or not is_in_order
            or (usable[first : first + count] >= 0).any()
        ):
            return None
        return self._first_slot + first

    def put_in_order(self, first: int, count: int) -> None:
        """Bundles are in the slots of their numbers now."""
        indexes = np.arange(first, first + count)
        self._table.put(indexes.astype(np.int32), self._numbers(indexes))

    def _usable(self) -> Ids:
        """The bundles in the slots that are not lent, -1 where a slot is free."""
        usable: Ids = self._table.bundle_in[: self.n_slots - self._n_lent]
        return usable

    def fill(self, ids: Ids, uses: NDArray[np.int64], most: int) -> tuple[Ids, Ids]:
        """Puts bundles that are not in DRAM into free slots, those of the most `uses` [n] first.

        At most `most`; nothing is evicted. Returns positions into `ids`, and their slots.
        """
        fresh = np.flatnonzero(self._table.slot_of[ids.astype(np.intp)] < 0)
        # Among equals by position, so that the outcome is reproducible.
        fresh = fresh[np.argsort(-uses[fresh], kind="stable")]
        found = np.flatnonzero(self._usable() < 0)[: min(len(fresh), most)]
        which, slots = fresh[: len(found)].astype(np.int32), self._numbers(found)
        self._table.put(ids[which], slots)
        return which, slots

    def acquire(self, ids: Ids, token: int, in_flight: Ids = NO_IDS) -> Acquired:
        """Slots for the distinct `ids` that token number `token` needs.

        The resident bundles `in_flight` keep their slots; together they are at most `n_slots`.
        """
        policy, n = self._policy, len(ids)
        added, scales = policy.weights(token, ids)
        expired = _NO_END if policy.window is None else float(token - policy.window)
        slots, states = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.uint8)
        n_missing, n_flying, evicted_early = self._table.acquire(
            ids, in_flight, scales, added, expired, slots, states
        )
        return Acquired(ids, slots, states, n_missing, n_flying, evicted_early)

    def prefetch(self, ids: Ids, token: int) -> tuple[Ids, Ids]:
        """Slots for `ids` that token number `token` is likely to need, most likely first.

        Returns the ids that were not resident and got a slot, and these slots, in memory that the
        next call overwrites. Bundles in `ids` are not evicted for each other; of the others the
        least valuable are. A use is counted when the token acquires the bundle, not here.
        """
        _, scales = self._policy.weights(token)
        n, _ = self._table.prefetch(ids, scales)
        return self._prefetched_ids[:n], self._prefetched_slots[:n]

    def release(self, slots: Ids) -> None:
        """Free the slots of bundles whose reads failed."""
        self._table.evict(slots)

    def place(
        self, ids: Ids, used: Uses, last_token: int, until: int | None = None
    ) -> tuple[NDArray[np.int64], Ids]:
        """Slots for bundles that the tokens of a prompt up to number `last_token` used.

        `used` [tokens, n] says which token used which bundle. Where slots are short, the most
        valuable bundles get them; those from bundle `until` on are not evicted. Returns (positions
        into `ids` that got a slot, their slots).
        """
        index = ids.astype(np.intp)
        self._policy.seed(index, used, last_token)
        table = self._table
        fresh = np.flatnonzero(table.slot_of[index] < 0)
        if not len(fresh):
            return fresh, NO_IDS
        values = self._policy.values(index[fresh], last_token)
        # Among equals by position, so that the outcome is reproducible.
        order = np.argsort(-values, kind="stable")
        fresh, values = fresh[order], values[order]
        found = np.flatnonzero(self._usable() < 0)[: len(fresh)]
        if len(fresh) > len(found):
            worse = self._displaced(values[len(found) :], last_token, until)
            table.evict(self._numbers(worse))
            found = np.concatenate([found, worse])
        fresh, slots = fresh[: len(found)], self._numbers(found)
        table.put(ids[fresh], slots)
        return fresh, slots

    def _numbers(self, indexes: Index) -> Ids:
        return (indexes + self._first_slot).astype(np.int32)

    def _displaced(self, values: Values, token: int, until: int | None) -> Index:
        """Slots of bundles that are worth less than the bundles that shall replace them.

        The least valuable bundle before `until` is replaced by the first of `values`, and so on,
        until none is worth less.
        """
        taken = np.flatnonzero(self._table.bundle_in >= 0)
        if until is not None:
            taken = taken[self._table.bundle_in[taken] < until]
        held = self._policy.values(self._table.bundle_in[taken].astype(np.intp), token)
        count = min(len(values), len(taken))
        if not count:
            return taken
        worst = least(held, count)
        worst = worst[np.argsort(held[worst], kind="stable")]
        less = held[worst] < values[:count]
        return taken[worst[: count if less.all() else int(less.argmin())]]
