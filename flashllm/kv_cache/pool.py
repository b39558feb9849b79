"""Which tokens' keys and values give way where there is room for so many only. Pure: no bytes.

Source: InfiniGen (Lee et al., OSDI 2024, arXiv 2406.19707), section 4.4. A policy is data, as those
of `weight_cache.policies`: a number for each slot, which says how long its token stays; the least
gives way, and the older one of equals. A fresh token has not been used yet and would go at once, so
the newer half of the tokens is protected, but from FIFO.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from flashllm.arrays import Index
from flashllm.errors import UsageError
from flashllm.options import KV_VICTIMS, KvVictims

COUNT_MAX = 255


class PoolPolicy(ABC):
    """How much the tokens in the slots of one key head are worth."""

    protects_new = True

    def __init__(self, slots: int) -> None:
        self._inserted = np.zeros(slots, np.int64)
        """The number of the insertion into each slot."""
        self._insertions = 0

    def insert(self, slot: int, time: int) -> None:
        """A new token is in a slot, in place of what was there."""
        self._inserted[slot] = self._insertions
        self._insertions += 1
        self._start(slot, time)

    @abstractmethod
    def use(self, slots: Index, time: int) -> None:
        """The tokens in distinct `slots` are fetched; `time` never goes back."""

    def victim(self) -> int:
        """The slot whose token gives way, when all are full."""
        values = self._values()
        if self.protects_new and len(values) > 1:
            newer = np.argsort(self._inserted)[(len(values) + 1) // 2 :]
            values = values.copy()
            values[newer] = np.iinfo(np.int64).max
        least = np.flatnonzero(values == values.min())
        return int(least[self._inserted[least].argmin()])

    @abstractmethod
    def _start(self, slot: int, time: int) -> None:
        """A new token begins."""

    @abstractmethod
    def _values(self) -> NDArray[np.int64]:
        """What the token of each slot is worth."""


class FirstIn(PoolPolicy):
    """First in, first out: what was fetched does not matter."""

    protects_new = False

    def use(self, slots: Index, time: int) -> None:
        """Changes nothing."""

    def _start(self, slot: int, time: int) -> None:
        pass

    def _values(self) -> NDArray[np.int64]:
        return self._inserted


class LeastRecent(PoolPolicy):
    """Least recently fetched."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._used = np.zeros(slots, np.int64)

    def use(self, slots: Index, time: int) -> None:
        """Remembers the time."""
        self._used[slots] = time

    def _start(self, slot: int, time: int) -> None:
        self._used[slot] = time

    def _values(self) -> NDArray[np.int64]:
        return self._used


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

    def _start(self, slot: int, time: int) -> None:  # noqa: ARG002
        self.counts[slot] = 0

    def _values(self) -> NDArray[np.int64]:
        return self.counts.astype(np.int64)


_POLICIES: dict[KvVictims, type[PoolPolicy]] = {
    "fifo": FirstIn,
    "lru": LeastRecent,
    "counter": Counter,
}


def make_pool_policy(name: str, slots: int) -> PoolPolicy:
    """The policy of that name for the tokens of one key head; `UsageError` if there is none."""
    for known in KV_VICTIMS:
        if name == known:
            return _POLICIES[known](slots)
    raise UsageError(f"--victims {name}: expected one of {', '.join(KV_VICTIMS)}")


class LimitedPool:
    """The tokens of each layer and key head that a limit leaves; others are lost for good."""

    def __init__(
        self, layers: tuple[int, ...], kv_heads: int, limit: int, context: int, victims: str
    ) -> None:
        """At most `limit` tokens of a layer and key head, of a context of `context`."""
        assert limit > 0
        self.limit, self._victims = limit, victims
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
                slot = token if token < self.limit else policy.victim()
                if token >= self.limit:
                    held[tokens[slot]] = False
                tokens[slot], self._slot_of[layer][head, token] = token, slot
                held[token] = True
                policy.insert(slot, token)

    def use(self, layer: int, positions: NDArray[np.int32], time: int) -> None:
        """Token number `time` fetches `positions` [kv_heads, count], which are held."""
        for policy, slots, own in zip(
            self._policies[layer], self._slot_of[layer], positions, strict=True
        ):
            policy.use(slots[own], time)
