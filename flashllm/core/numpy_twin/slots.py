"""The twin of the native core's table of slots, in numpy; and the arithmetic of terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import Ids, Index, States, Values
from flashllm.core.numpy_twin.arguments import require_array

MAX_TERMS = 2
HERE, MISSING, IN_FLIGHT = 0, 1, 2
"""Where a claim found a bundle: in its slot; nowhere, so it has to be read; on its way already."""


def use(terms: Values, ids: Index, carried: Sequence[int], added: Sequence[float]) -> None:
    """What using distinct `ids` makes of `terms` [n_bundles, n_terms]."""
    old = terms[ids]
    for term, (source, more) in enumerate(zip(carried, added, strict=True)):
        terms[ids, term] = more if source < 0 else old[:, source] + more


def values_of(terms: Values, ids: Index, scales: Sequence[float]) -> Values:
    """What `ids` are worth: a sum of `terms` [n_bundles, n_terms]."""
    values = terms[ids, 0] * scales[0]
    for term, scale in enumerate(scales[1:], 1):
        values += terms[ids, term] * scale
    # What is no number has no place in an order.
    return np.where(values < np.inf, values, np.inf)


def least(values: Values, count: int) -> Index:
    """Where the `count` least values are; the first ones among equals, so that it is reproducible.

    Faster than `argpartition`, which moves indexes about as well.
    """
    last = np.partition(values, count - 1)[count - 1]
    below = np.flatnonzero(values < last)
    equal = np.flatnonzero(values == last)[: count - len(below)]
    return np.concatenate([below, equal])


class SlotTable:
    """Which bundle is in which slot, and which give way; as the native one, on whole arrays."""

    def __init__(
        self,
        n_bundles: int,
        n_slots: int,
        carried: Sequence[int],
        terms: Values,
        first_slot: int = 0,
    ) -> None:
        """`terms` [n_bundles * len(carried)] stay the caller's, who may change them between calls.

        Slots are numbered from `first_slot` on, but in `bundle_in` and `slot_of`.
        """
        if not 0 < n_slots <= n_bundles < 1 << 31:
            raise ValueError(f"n_slots is {n_slots} for {n_bundles} bundles")
        if not 1 <= len(carried) <= MAX_TERMS:
            raise ValueError(f"{len(carried)} terms; expected 1 to {MAX_TERMS}")
        if not all(-1 <= source < len(carried) for source in carried):
            raise ValueError(f"carried is {tuple(carried)}")
        if not 0 <= first_slot < (1 << 31) - n_slots:
            raise ValueError(f"first_slot is {first_slot}")
        require_array("terms", terms, np.float64, writable=True)
        _check_size("terms", terms, n_bundles * len(carried))
        self._carried = tuple(carried)
        self._terms = terms.reshape(n_bundles, len(carried))
        self._first_slot = first_slot
        self._n_usable = n_slots
        self._slot_of = np.full(n_bundles, -1, np.int32)
        self._bundle_in = np.full(n_slots, -1, np.int32)
        self.slot_of, self.bundle_in = self._slot_of.view(), self._bundle_in.view()
        self._prefetched_ids, self._prefetched_slots = np.zeros((2, n_slots), np.int32)
        self.prefetched_ids, self.prefetched_slots = (
            self._prefetched_ids.view(),
            self._prefetched_slots.view(),
        )
        for shown in (self.slot_of, self.bundle_in, self.prefetched_ids, self.prefetched_slots):
            shown.flags.writeable = False

    @property
    def free_slots(self) -> int:
        """How many hold nothing."""
        return int(np.count_nonzero(self._bundle_in[: self._n_usable] < 0))

    def clear(self) -> None:
        """All slots are free."""
        self._slot_of.fill(-1)
        self._bundle_in.fill(-1)

    def limit(self, count: int) -> None:
        """From now on only the first `count` slots get bundles; what is in the others goes."""
        if not 1 <= count <= len(self._bundle_in):
            raise ValueError(f"limit is {count} of {len(self._bundle_in)} slots")
        self._n_usable = count
        beyond = np.arange(count, len(self._bundle_in))
        self._evict(beyond[self._bundle_in[beyond] >= 0])

    def acquire(
        self,
        ids: Ids,
        in_flight: Ids,
        scales: Sequence[float],
        added: Sequence[float],
        expired: float,
        slots: Ids,
        states: States,
    ) -> tuple[int, int, int]:
        """Use distinct `ids`, and give slots to those that are in none."""
        _check_size("scales", scales, len(self._carried))
        _check_size("added", added, len(self._carried))
        for name, out, dtype in (("slots", slots, np.int32), ("states", states, np.uint8)):
            require_array(name, out, dtype, writable=True)
            _check_size(name, out, len(ids))
        index = self._checked("id", ids, len(self._slot_of))
        flying = self._slot_of[self._checked("id in flight", in_flight, len(self._slot_of))]
        if (flying < 0).any():
            raise ValueError(f"id in flight {in_flight[flying < 0][0]} is in no slot")
        _check_distinct(ids)
        here = self._slot_of[index]
        kept = np.zeros(len(self._bundle_in), np.bool_)
        kept[flying] = kept[here[here >= 0]] = True
        needed = int(np.count_nonzero(here < 0))
        if (together := needed + int(np.count_nonzero(kept))) > self._n_usable:
            raise ValueError(f"{together} bundles are needed at once in {self._n_usable} slots")
        use(self._terms, index, self._carried, added)
        if expired > -np.inf:
            candidates = np.flatnonzero((self._bundle_in >= 0) & ~kept)
            values = self._values(candidates, scales)
            self._evict(candidates[values <= expired])
        found, spilled = self._take(needed, kept, scales)
        self._put(index[here < 0], found)
        slots[:] = self._slot_of[index] + self._first_slot
        among_in_flight = np.isin(here, flying) & (here >= 0)
        states[:] = np.where(here < 0, MISSING, np.where(among_in_flight, IN_FLIGHT, HERE))
        return needed, int(np.count_nonzero(among_in_flight)), spilled

    def prefetch(self, ids: Ids, scales: Sequence[float]) -> tuple[int, int]:
        """Slots for distinct `ids` in none, the first ones, as many as fit beside the others.

        Which they are the first of `prefetched_ids` and `prefetched_slots` tell.
        """
        _check_size("scales", scales, len(self._carried))
        index = self._checked("id", ids, len(self._slot_of))
        _check_distinct(ids)
        here = self._slot_of[index]
        kept = np.zeros(len(self._bundle_in), np.bool_)
        kept[here[here >= 0]] = True
        absent = index[here < 0][: self._n_usable - int(np.count_nonzero(kept))]
        into, taken = self._take(len(absent), kept, scales)
        self._put(absent, into)
        self._prefetched_ids[: len(absent)] = absent
        self._prefetched_slots[: len(absent)] = into + self._first_slot
        return len(absent), taken

    def put(self, ids: Ids, slots: Ids) -> None:
        """Bundles that are in no slot into free slots."""
        _check_size("slots", slots, len(ids))
        index = self._checked("id", ids, len(self._slot_of))
        into = self._indexes(slots)
        for bundle, slot in zip(index.tolist(), into.tolist(), strict=True):
            taken = self._bundle_in[slot] >= 0 or slot >= self._n_usable
            if self._slot_of[bundle] >= 0 or taken:
                raise ValueError(f"id {bundle} is in a slot, or slot {slot} is taken")
            self._slot_of[bundle], self._bundle_in[slot] = slot, bundle

    def evict(self, slots: Ids) -> None:
        """What is in these slots is there no more; free ones stay so."""
        index = np.unique(self._indexes(slots))
        self._evict(index[self._bundle_in[index] >= 0])

    def _take(
        self, count: int, kept: NDArray[np.bool_], scales: Sequence[float]
    ) -> tuple[Index, int]:
        """Free slots, then those of the worst that are not kept; how many of the latter."""
        found = np.flatnonzero(self._bundle_in[: self._n_usable] < 0)[:count]
        taken = count - len(found)
        if not taken:
            return found, 0
        candidates = np.flatnonzero((self._bundle_in >= 0) & ~kept)
        worst = candidates[least(self._values(candidates, scales), taken)]
        self._evict(worst)
        return np.concatenate([found, worst]), taken

    def _put(self, ids: Index, slots: Index) -> None:
        self._bundle_in[slots] = ids
        self._slot_of[ids] = slots

    def _evict(self, slots: Index) -> None:
        self._slot_of[self._bundle_in[slots]] = -1
        self._bundle_in[slots] = -1

    def _values(self, candidates: Index, scales: Sequence[float]) -> Values:
        return values_of(self._terms, self._bundle_in[candidates].astype(np.intp), scales)

    def _checked(self, name: str, ids: Ids, limit: int, first: int = 0) -> Index:
        require_array(name, ids, np.int32)
        where = f" from {first} on" if first else ""
        for bad in ids[(ids < first) | (ids >= first + limit)]:
            raise IndexError(f"{name} {bad} is not one of {limit}{where}")
        return ids.astype(np.intp)

    def _indexes(self, slots: Ids) -> Index:
        first = self._first_slot
        return self._checked("slot", slots, len(self._bundle_in), first) - first


def _check_size(name: str, values: Sequence[Any] | NDArray[Any], expected: int) -> None:
    if len(values) != expected:
        raise ValueError(f"{name} has {len(values)} values; {expected} were expected")


def _check_distinct(ids: Ids) -> None:
    if len(np.unique(ids)) < len(ids):
        raise ValueError("an id comes twice")
