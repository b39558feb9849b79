"""Which token gives way: sequences of victims computed by hand, and a plain reference."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from flashllm.errors import UsageError
from flashllm.kv_cache.pool import COUNT_MAX, Counter, LimitedPool, make_pool_policy

SLOTS = 6


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.intp)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Slots 0 to 5 are filled in order, so 3 to 5 are protected but from FIFO. Then 0, 1 and 1
        # are fetched, and each victim's slot takes a new token, which becomes the newest.
        ("fifo", [0, 1, 2, 3, 4, 5, 0]),
        # Never fetched: 2 to 5, by when they came; then 0 before 1, and the first of the new ones.
        ("lru", [2, 3, 4, 5, 0, 1, 2]),
        # Counts 1, 2, 0: 2 goes; 3, which is not protected any more, then 4 and 5, have 0.
        ("counter", [2, 3, 4, 5, 2, 3, 4]),
    ],
)
def test_victims_in_their_order(name: str, expected: list[int]) -> None:
    policy = make_pool_policy(name, SLOTS)
    for slot in range(SLOTS):
        policy.insert(slots(slot), slot)
    policy.use(slots(0), 6)
    policy.use(slots(1), 7)
    policy.use(slots(1), 8)
    found = []
    for time in range(9, 9 + len(expected)):
        found += policy.victims(slots(*range(SLOTS)), 1).tolist()
        policy.insert(slots(found[-1]), time)
    assert found == expected


def test_counts_are_halved_before_one_overflows() -> None:
    policy = Counter(3)
    for slot in range(3):
        policy.insert(slots(slot), slot)
    for time in range(COUNT_MAX):
        policy.use(slots(0), time)
    policy.use(slots(1), 300)
    assert policy.counts.tolist() == [255, 1, 0]
    policy.use(slots(0, 2), 301)
    assert policy.counts.tolist() == [128, 0, 1]


def test_a_pool_of_one_slot_keeps_the_newest() -> None:
    for name in ("fifo", "lru", "counter"):
        policy = make_pool_policy(name, 1)
        policy.insert(slots(0), 0)
        assert policy.victims(slots(0), 1).tolist() == [0]


@pytest.mark.parametrize(
    ("name", "expected"), [("fifo", [1, 2, 5, 7]), ("lru", [2, 1, 5, 7]), ("counter", [2, 1, 5, 7])]
)
def test_several_of_some_slots_give_way(name: str, expected: list[int]) -> None:
    """1 is used, 5 and 7 are the newer half of those that may go, 0 and 3 stay."""
    policy = make_pool_policy(name, 8)
    policy.insert(slots(0, 1, 2), 1)
    policy.use(slots(0, 1), 2)
    policy.insert(slots(3, 5, 7), 3)
    assert policy.victims(slots(1, 2, 5, 7), 4).tolist() == expected
    assert policy.victims(slots(7, 5, 2, 1), 1).tolist() == expected[:1]


def test_a_policy_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="--victims mru: expected one of fifo, lru, counter"):
        make_pool_policy("mru", 1)


@pytest.mark.parametrize("name", ["fifo", "lru", "counter"])
def test_a_limited_pool_is_that_of_a_plain_list(name: str) -> None:
    """Against tokens in a list, of which one is taken by the definition of each policy."""
    generator = np.random.default_rng(5)
    limit, context = 8, 60
    pool = LimitedPool((2,), 2, limit, context, name)
    tokens: list[list[int]] = [[], []]
    used = [dict.fromkeys(range(context), 0) for _ in range(2)]
    pool.append(2, 0, 5)
    for head in range(2):
        tokens[head] = list(range(5))
        used[head] = {token: token if name == "lru" else 0 for token in range(context)}
    for time in range(5, context):
        picked = np.stack([generator.permutation(tokens[head])[:3] for head in range(2)])
        pool.use(2, np.sort(picked).astype(np.int32), time)
        for head in range(2):
            for token in picked[head].tolist():
                used[head][token] = time if name == "lru" else used[head][token] + 1
            if len(tokens[head]) == limit:
                old = tokens[head] if name == "fifo" else tokens[head][: limit // 2]
                worth = [0 if name == "fifo" else used[head][token] for token in old]
                tokens[head].pop(int(np.argmin(worth)))
            tokens[head].append(time)
        pool.append(2, time, time + 1)
        for head in range(2):
            assert np.flatnonzero(pool.held(2, context)[head]).tolist() == tokens[head]


@pytest.mark.parametrize("name", ["fifo", "lru", "counter"])
@pytest.mark.parametrize("count", [1, 40, 9_000, 20_000, 30_000])
def test_victims_of_many_slots_are_those_of_all_in_order(name: str, count: int) -> None:
    """Slots are looked at in pieces; what gives way is what a sort of all of them says."""
    generator = np.random.default_rng(7)
    policy = make_pool_policy(name, 30_000)
    came = generator.permutation(30_000)
    policy.insert(came, 1)
    for time in range(2, 5):
        policy.use(generator.permutation(30_000)[:8_000], time)
    some = np.sort(generator.permutation(30_000)[:20_000])
    inserted = np.empty(30_000, int)
    inserted[came] = np.arange(30_000)
    worth = {slot: int(value) for slot, value in zip(some, policy._values(some), strict=True)}
    newer = set(sorted(some, key=lambda slot: inserted[slot])[10_000:]) if name != "fifo" else set()
    expected = sorted(some, key=lambda slot: (slot in newer, worth[slot], inserted[slot]))
    assert policy.victims(some, count).tolist() == [int(slot) for slot in expected[:count]]


@pytest.mark.parametrize("name", ["fifo", "lru", "counter"])
def test_choosing_victims_takes_little_memory(name: str) -> None:
    """As the plan of pages says: of each slot a number at most, besides a piece that is sorted."""
    policy = make_pool_policy(name, 200_000)
    every = np.arange(200_000)
    policy.insert(every, 1)
    tracemalloc.start()
    try:
        policy.victims(every, 500)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(every) + 700_000
