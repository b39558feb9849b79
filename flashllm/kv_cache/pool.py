"""Which keys and values give way where there is room for so many only. Pure: no bytes.

Source: InfiniGen (Lee et al., OSDI 2024, arXiv 2406.19707), section 4.4. A policy is data, as those
of `weight_cache.policies`: a number for each slot, which says how long what is in it stays; the
least gives way, and the older one of equals. What is fresh has not been used yet and would go at
once, so the newer half is protected, but from FIFO. `PagePool` moves pages to flash by it,
`LimitedPool` forgets tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import Index
from flashllm.errors import UsageError
from flashllm.options import KV_VICTIMS, KvVictims

COUNT_MAX = 255
_PIECE = 1 << 13
"""Slots that are put in order at once, or as many as are chosen: what that takes, a third of a
megabyte, is in no plan."""


class PoolPolicy(ABC):
    """How much the tokens, or pages, in slots are worth."""

    protects_new = True

    def __init__(self, slots: int) -> None:
        self._inserted = np.zeros(slots, np.int64)
        """The number of the insertion into each slot."""
        self._insertions = 0

    def insert(self, slots: Index, time: int) -> None:
        """Something new is in distinct `slots`, in place of what was there."""
        self._inserted[slots] = self._insertions + np.arange(len(slots))
        self._insertions += len(slots)
        self._start(slots, time)

    @abstractmethod
    def use(self, slots: Index, time: int) -> None:
        """What is in distinct `slots` is fetched; `time` never goes back."""

    def victims(self, slots: Index, count: int) -> Index:
        """Those `count` of distinct `slots` that give way, the first one first.

        Besides its result it takes 8 bytes a slot at most (`layout.plan_pages`), since there may be
        half a million: they are looked at in pieces.
        """
        new_from = self._new_from(slots)
        found = slots[:0]
        size = max(_PIECE, count)
        for begin in range(0, len(slots), size):
            piece = np.concatenate([found, slots[begin : begin + size]])
            found = self._first_to_go(piece, new_from, count)
        return found

    def _new_from(self, slots: Index) -> int:
        """The first insertion of those that are protected: the newer half of those into `slots`."""
        if not self.protects_new or len(slots) < 2:
            return self._insertions
        middle = (len(slots) + 1) // 2
        inserted = self._inserted[slots]
        inserted.partition(middle)
        return int(inserted[middle])

    def _first_to_go(self, slots: Index, new_from: int, count: int) -> Index:
        """At most `count` of `slots`, in the order in which they give way."""
        inserted, values = self._inserted[slots], self._values(slots)
        order = np.lexsort((inserted, values, inserted >= new_from))
        return slots[order[:count]]

    @abstractmethod
    def _start(self, slots: Index, time: int) -> None:
        """Something new begins."""

    @abstractmethod
    def _values(self, slots: Index) -> NDArray[np.int64]:
        """What is in each of the slots is worth so much."""


class FirstIn(PoolPolicy):
    """First in, first out: what was fetched does not matter."""

    protects_new = False

    def use(self, slots: Index, time: int) -> None:
        """Changes nothing."""

    def _start(self, slots: Index, time: int) -> None:
        pass

    def _values(self, slots: Index) -> NDArray[np.int64]:
        return self._inserted[slots]


class LeastRecent(PoolPolicy):
    """Least recently fetched."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._used = np.zeros(slots, np.int64)

    def use(self, slots: Index, time: int) -> None:
        """Remembers the time."""
        self._used[slots] = time

    def _start(self, slots: Index, time: int) -> None:
        self._used[slots] = time

    def _values(self, slots: Index) -> NDArray[np.int64]:
        return self._used[slots]


class Counter(PoolPolicy):
    """Least often fetched: counts of 8 bits, which are all halved before one would overflow."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.counts = np.zeros(slots, np.uint8)

    def use(self, slots: Index, time: int) -> None:  # noqa: ARG002
        """Counts."""
        if len(slots) and self.counts[slots].max() == COUNT_MAX:
            self.counts >>= 1
        self.counts[slots] += 1

    def _start(self, slots: Index, time: int) -> None:  # noqa: ARG002
        self.counts[slots] = 0

    def _values(self, slots: Index) -> NDArray[np.int64]:
        return self.counts[slots].astype(np.int64)


_POLICIES: dict[KvVictims, type[PoolPolicy]] = {
    "fifo": FirstIn,
    "lru": LeastRecent,
    "counter": Counter,
}


def make_pool_policy(name: str, slots: int, flag: str = "--victims") -> PoolPolicy:
    """The policy of that name; `UsageError` that names the `flag` if there is none."""
    for known in KV_VICTIMS:
        if name == known:
            return _POLICIES[known](slots)
    raise UsageError(f"{flag} {name}: expected one of {', '.join(KV_VICTIMS)}")


class LimitedPool:
    """The tokens of each layer and key head that a limit leaves; others are lost for good."""

    def __init__(
        self, layers: tuple[int, ...], kv_heads: int, limit: int, context: int, victims: str
    ) -> None:
        """At most `limit` tokens of a layer and key head, of a context of `context`."""
        assert limit > 0
        self.limit, self._victims = limit, victims
        self._all = np.arange(limit)
        self._held = {layer: np.zeros((kv_heads, context), np.bool_) for layer in layers}
        self._slot_of = {layer: np.zeros((kv_heads, context), np.intp) for layer in layers}
        self._token_in = {layer: np.zeros((kv_heads, limit), np.intp) for layer in layers}
        self._policies: dict[int, list[PoolPolicy]] = {}
        self.clear()

    def clear(self) -> None:
        """No token is there."""
        for layer, held in self._held.items():
            held.fill(False)
            policies = [make_pool_policy(self._victims, self.limit) for _ in held]
            self._policies[layer] = policies

    def held(self, layer: int, tokens: int) -> NDArray[np.bool_]:
        """[kv_heads, tokens]: which of the first tokens are there."""
        return self._held[layer][:, :tokens]

    def append(self, layer: int, first: int, end: int) -> None:
        """Tokens `first` to `end` - 1 are new, one after the other."""
        for head, policy in enumerate(self._policies[layer]):
            held, tokens = self._held[layer][head], self._token_in[layer][head]
            for token in range(first, end):
                slot = token
                if token >= self.limit:
                    slot = int(policy.victims(self._all, 1)[0])
                if token >= self.limit:
                    held[tokens[slot]] = False
                tokens[slot], self._slot_of[layer][head, token] = token, slot
                held[token] = True
                policy.insert(np.array([slot]), token)

    def use(self, layer: int, positions: NDArray[np.int32], time: int) -> None:
        """Token number `time` fetches `positions` [kv_heads, count], which are held."""
        for policy, slots, own in zip(
            self._policies[layer], self._slot_of[layer], positions, strict=True
        ):
            policy.use(slots[own], time)
