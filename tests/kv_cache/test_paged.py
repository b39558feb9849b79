"""Pages in DRAM and on flash against keys and values in one piece: the same bits, always."""

from __future__ import annotations

import dataclasses
import gc
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashllm import core
from flashllm.errors import ModelError, UsageError
from flashllm.kv_cache.dram import KvCache
from flashllm.kv_cache.layout import PagePlan, PageShape, least_slots, plan_pages
from flashllm.kv_cache.page_pool import PagePool
from flashllm.kv_cache.paged import PagedKvCache
from flashllm.large_arrays import Floats
from flashllm.options import KV_DTYPES, KvDType
from flashllm.units import MIB
from tests.support.specs import SPEC

CONTEXT = 200
SHAPE = dataclasses.replace(
    SPEC, n_layers=2, n_heads=6, n_kv_heads=2, head_dim=40, d_model=240, embed_dim=240
)
"""Heads that share, and rows that fill no page of the device."""
SINKS = np.linspace(-2, 3, 6, dtype=np.float32)


def plan_of(dtype: KvDType, slots: int | None, contexts: int = 1) -> PagePlan:
    """All pages in DRAM, or that many."""
    shape = PageShape.of(SHAPE, dtype)
    blocks = contexts * shape.blocks(CONTEXT)
    pages = blocks * shape.block_pages
    if slots is None:
        return PagePlan(blocks, pages, 0, 0, 0)
    return PagePlan(blocks, slots, 2 * shape.blocks(CONTEXT), 0, pages * shape.page_bytes)


LEAST = least_slots(PageShape.of(SHAPE, "f16"))


class Pools:
    """Makes pools, and closes them at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.made = directory, []  # type: Path, list[PagePool]

    def pool(
        self, dtype: KvDType, slots: int | None, contexts: int = 1, **options: Any
    ) -> PagePool:
        plan = plan_of(dtype, slots, contexts)
        self.made.append(PagePool(PageShape.of(SHAPE, dtype), plan, [self.directory], **options))
        return self.made[-1]

    def cache(self, dtype: KvDType, slots: int | None, pool: PagePool | None = None) -> Any:
        pool = pool or self.pool(dtype, slots)
        return PagedKvCache(SHAPE, CONTEXT, dtype, core.Kernels(2), pool)


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Pools]:
    made = Pools(tmp_path)
    yield made
    for pool in made.made:
        pool.close()


class Sequence:
    """Tokens with rows of their own, which any cache may be given."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.rows = generator.standard_normal((2, 2, 2, CONTEXT, 40), np.float32)
        self.query = generator.standard_normal((CONTEXT, 6, 40), np.float32)

    def step(
        self, cache: Any, tokens: int, window: int = 0, sinks: Floats | None = None
    ) -> list[Floats]:
        """Appends tokens; their attention in each layer."""
        own, found = slice(cache.length, cache.length + tokens), []
        for layer in range(2):
            assert cache.append(layer, *self.rows[layer, :, :, own]) == own.stop
            found.append(cache.attend(layer, self.query[own], window, 0.2, sinks))
        cache.length += tokens
        return found


def same(some: list[Floats], others: list[Floats]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


def whole(dtype: KvDType) -> KvCache:
    return KvCache(SHAPE, CONTEXT, dtype, core.Kernels(2))


@pytest.mark.parametrize("slots", [None, LEAST, LEAST + 7])
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_bits_are_those_of_one_piece(pools: Pools, dtype: KvDType, slots: int | None) -> None:
    """Prompts in chunks, tokens of an answer, windows, sinks, cuts at any place."""
    sequence, steps = Sequence(1), [37, 1, 1, 64, 5, 1, 16, 1, 1, 30]
    for window, sinks in ((0, None), (50, SINKS), (3, None)):
        expected, found = whole(dtype), pools.cache(dtype, slots)
        for step in steps:
            ones = sequence.step(expected, step, window, sinks)
            assert same(sequence.step(found, step, window, sinks), ones)
        for layer in range(2):
            for rows in ((0, found.length), (37, 99), (48, 49)):
                assert np.array_equal(found.encoded(layer, *rows), expected.encoded(layer, *rows))
        for length in (150, 96, 33, 7):
            other = Sequence(length)
            for cache in (expected, found):
                cache.truncate(length)
            for step in (1, 20, 1):
                assert same(other.step(found, step, window), other.step(expected, step, window))
    if slots:
        assert pools.made[-1].file is not None
        assert pools.made[-1].file.bytes_written > 0, "nothing left DRAM"
        assert pools.made[-1].file.bytes_read > 0


@pytest.mark.parametrize("slots", [None, LEAST + 3])
def test_contexts_by_turns_share_a_pool(pools: Pools, slots: int | None) -> None:
    pool = pools.pool("f16", slots, contexts=3)
    caches = [(whole("f16"), pools.cache("f16", None, pool), Sequence(seed)) for seed in range(3)]
    for turn in range(9):
        for number, (expected, found, sequence) in enumerate(caches):
            step = (1, 23, 7)[(turn + number) % 3]
            assert same(sequence.step(found, step), sequence.step(expected, step))
            if (turn, number) in ((4, 1), (6, 2)):
                for cache in (expected, found):
                    cache.truncate(40)


@pytest.mark.parametrize("length", [64, 50])
@pytest.mark.parametrize("slots", [None, LEAST + 3])
def test_a_prefix_is_shared_until_one_goes_on(pools: Pools, slots: int | None, length: int) -> None:
    pool = pools.pool("f16", slots, contexts=2)
    first, second = pools.cache("f16", None, pool), pools.cache("f16", None, pool)
    sequence, expected, other = Sequence(1), whole("f16"), whole("f16")
    for cache in (first, expected, other):
        sequence.step(cache, 70)
        cache.truncate(68)
    blocks_free = len(pool._free_blocks)
    second.copy(first, length)
    other.truncate(length)
    assert len(pool._free_blocks) == blocks_free
    branch = Sequence(2)
    for step in (1, 25, 1, 1):
        assert same(branch.step(second, step), branch.step(other, step))
        assert same(sequence.step(first, step), sequence.step(expected, step))
    second.close()
    first.truncate(0)
    assert len(pool._free_blocks) == pool.plan.blocks
    # Both begin anew in the same blocks.
    expected.truncate(0)
    assert same(branch.step(first, 90), branch.step(expected, 90))


class Events:
    """Counts reads into staging, and those between whose begin and end something was computed."""

    def __init__(self, pool: PagePool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = self.hidden = self.pages = 0
        self._computed = 0
        self._begun: dict[int, int] = {}
        file, attend = pool.file, PagedKvCache._attend
        assert file is not None
        submit, wait = file.submit, file.wait

        def note_submit(pages: Any, destinations: Any, *rest: Any) -> Any:
            read = submit(pages, destinations, *rest)
            if destinations[0] >= pool.plan.slots * pool.shape.page_bytes:
                self._begun[read.ticket] = self._computed
                self.pages += len(pages)
            return read

        def note_wait(read: Any) -> None:
            if read.ticket in self._begun:
                self.reads += 1
                self.hidden += self._begun.pop(read.ticket) < self._computed
            wait(read)

        def note_computed(cache: PagedKvCache, *rest: Any) -> Floats:
            self._computed += 1
            return attend(cache, *rest)

        monkeypatch.setattr(file, "submit", note_submit)
        monkeypatch.setattr(file, "wait", note_wait)
        monkeypatch.setattr(PagedKvCache, "_attend", note_computed)


@pytest.mark.parametrize("overlaps", [True, False])
def test_what_the_next_context_needs_is_read_while_the_one_before_is_computed(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, overlaps: bool
) -> None:
    pool = pools.pool("f16", LEAST, contexts=3, overlaps=overlaps)
    caches = [pools.cache("f16", LEAST, pool) for _ in range(3)]
    texts = [Sequence(seed) for seed in range(3)]
    alone = [whole("f16") for _ in texts]
    for cache, own, text in zip(caches, alone, texts, strict=True):
        text.step(cache, 150)
        text.step(own, 150)
    events, needed = Events(pool, monkeypatch), 0
    for _ in range(12):
        expected = [text.step(own, 1) for text, own in zip(texts, alone, strict=True)]
        found: list[list[Floats]] = [[], [], []]
        for layer, at in itertools.product(range(2), range(3)):
            if (layer, at) != (1, 2):
                caches[(at + 1) % 3].expect(layer + (at == 2), 0)
            cache, own = caches[at], slice(caches[at].length, caches[at].length + 1)
            cache.append(layer, *texts[at].rows[layer, :, :, own])
            blocks = np.array(cache.blocks)
            needed += np.count_nonzero(pool.slots(pool.pages(layer, blocks)) < 0)
            found[at].append(cache.attend(layer, texts[at].query[own], 0, 0.2, None))
        for cache in caches:
            cache.length += 1
        assert all(map(same, found, expected))
    assert events.reads > 100
    # Of a token's first context nobody knows before that it comes first.
    assert events.reads - events.hidden == (12 if overlaps else events.reads)
    assert events.pages == needed
    pool.staging.drop()


@pytest.mark.parametrize(("slots", "overlaps"), [(None, True), (LEAST, True), (LEAST, False)])
@pytest.mark.parametrize("dtype", ["f16", "int4"])
def test_values_of_chosen_tokens_alone_are_read(
    pools: Pools,
    monkeypatch: pytest.MonkeyPatch,
    dtype: KvDType,
    slots: int | None,
    overlaps: bool,
) -> None:
    """The bits of one piece; from flash all keys, and values of the pages that were chosen."""
    pool = pools.pool(dtype, slots, overlaps=overlaps)
    cache, alone, text = pools.cache(dtype, slots, pool), whole(dtype), Sequence(5)
    for one in (cache, alone):
        text.step(one, 180)
    read: dict[int | None, int] = {0: 0, 1: 0}
    if pool.file is not None:
        submit = pool.file.submit

        def note(pages: Any, destinations: Any, part: int | None = None) -> Any:
            read[part] = read.get(part, 0) + len(pages)
            return submit(pages, destinations, part)

        monkeypatch.setattr(pool.file, "submit", note)
    for layer in range(2):
        rows, query = text.rows[layer, :, :, 180:181], text.query[180:181]
        chosen: list[np.ndarray] = []

        def choose(head: int, scores: np.ndarray, chosen: list[np.ndarray] = chosen) -> np.ndarray:
            assert scores.shape == (3, 181)
            best = np.sort(np.argsort(-scores[:, :180].max(0), kind="stable")[:9])
            chosen.append(best)
            return best.astype(np.int32)

        found = []
        for one in (alone, cache):
            one.append(layer, *rows)
            missing = np.zeros((2, 12), bool)
            if one is cache:
                missing = pool.slots(pool.pages(layer, np.array(cache.blocks))) < 0
                read.update({0: 0, 1: 0})
                chosen.clear()
            found.append(one.attend_by_scores(layer, query, choose, 0.2, SINKS))
        assert np.array_equal(*found)
        assert read[0] == missing.sum()
        assert read[1] == sum(
            int(of_head[np.unique(own // 16)].sum())
            for of_head, own in zip(missing, chosen, strict=True)
        )
        assert (read[0] > 6) == (slots is not None)


@pytest.mark.parametrize("fits", [False, True])
def test_pages_that_leave_after_others_were_read_ahead(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    """They are read behind those if half of the staging has room, else all are read anew."""
    pool, tokens = pools.pool("f16", LEAST, contexts=2), 150
    caches = [pools.cache("f16", LEAST, pool) for _ in range(2)]
    texts, alone = [Sequence(1), Sequence(2)], whole("f16")
    for cache, text in zip(caches, texts, strict=True):
        text.step(cache, tokens)
    texts[1].step(alone, tokens)
    events, own = Events(pool, monkeypatch), slice(tokens, tokens + 1)
    caches[1].expect(1, 0)
    caches[0].append(1, *texts[0].rows[1, :, :, own])
    caches[0].attend(1, texts[0].query[own], 0, 0.2)
    ahead = pool.staging._ahead
    assert ahead is not None
    before = events.pages - len(ahead.pages)
    full = caches[1].full_pages(1, 0)
    for count in range(1 if fits else LEAST - 2, LEAST):
        pool.give_back(pool.take(count))
        if (pool.slots(full) < 0).sum() > len(ahead.pages):
            break
    found = []
    for cache in (caches[1], alone):
        cache.append(1, *texts[1].rows[1, :, :, own])
        if cache is caches[1]:
            missing = pool.slots(pool.pages(1, np.array(cache.blocks))) < 0
        found.append(cache.attend(1, texts[1].query[own], 0, 0.2))
    assert np.array_equal(*found)
    assert missing[: ahead.heads].sum() > len(ahead.pages)
    again = 0 if fits else len(ahead.pages)
    assert events.pages - before == missing.sum() + again


@pytest.mark.parametrize(
    ("victims", "leaving"), [("fifo", (0, 0)), ("lru", (1, 0)), ("counter", (0, 1))]
)
def test_pages_leave_by_the_policy(pools: Pools, victims: str, leaving: tuple[int, int]) -> None:
    """Layer 1 is fresh. Of layer 0 one head is used twice, then the other: first head 1, then 0."""
    for first, expected in zip((1, 0), leaving, strict=True):
        pool = pools.pool("f16", 32, overlaps=False, victims=victims)
        cache = pools.cache("f16", 32, pool)
        Sequence(1).step(cache, 64)
        layers = [pool.slots(pool.pages(layer, np.array(cache.blocks))) for layer in range(2)]
        for head in (first, first, 1 - first):
            pool.used(layers[0][head])
        pool.give_back(pool.take(20))  # there are 16 free ones
        layers = [pool.slots(pool.pages(layer, np.array(cache.blocks))) for layer in range(2)]
        assert (layers[1] >= 0).all()
        assert (layers[0] < 0).all(axis=1).tolist() == [expected == 0, expected == 1]
        assert (layers[0] < 0).sum() == 4


def test_a_context_that_is_dropped_gives_its_blocks_back(pools: Pools) -> None:
    pool = pools.pool("f16", None)
    for seed in range(3):
        cache = pools.cache("f16", None, pool)
        Sequence(seed).step(cache, CONTEXT)
        del cache
        gc.collect()


def test_a_token_given_up_half_way_leaves_nothing(pools: Pools) -> None:
    sequence, other = Sequence(1), Sequence(2)
    expected, found = whole("f16"), pools.cache("f16", LEAST)
    for cache in (expected, found):
        sequence.step(cache, 47)
    # One layer has the rows of tokens that fill pages, which leave DRAM as others come.
    found.append(0, *other.rows[0, :, :, :120])
    for step in (1, 1, 60):
        assert same(sequence.step(found, step), sequence.step(expected, step))


def test_what_cannot_be_encoded_is_an_error(pools: Pools) -> None:
    cache, rows = pools.cache("f16", None), np.zeros((2, 3, 40), np.float32)
    rows[1, 2, 5] = 70000.0
    with pytest.raises(ModelError, match=r"layer 1: a key .* f16.*--kv-dtype f32"):
        cache.append(1, rows, np.zeros((2, 3, 40), np.float32))
    rows[1, 2, 5] = float("nan")
    with pytest.raises(ModelError, match=r"layer 0: a value .* overflows f32"):
        cache.append(0, np.zeros((2, 3, 40), np.float32), rows)


@pytest.mark.parametrize("slots", [None, LEAST + 12])
def test_chosen_pages_are_fetched_and_attended_to(pools: Pools, slots: int | None) -> None:
    """The masked reference exactly: attention to the chosen tokens alone, copied together."""
    cache, sequence = pools.cache("f16", slots), Sequence(1)
    pool = pools.made[-1]
    sequence.step(cache, 199)
    query = sequence.query[:1]
    blocks = [np.array([0, 3, 12]), np.array([2, 3, 4, 11, 12])]
    before = 0 if pool.file is None else pool.file.bytes_read
    fetched = cache.fetch(1, blocks)
    fetched.wait()
    of_pages = [np.concatenate([np.arange(b * 16, b * 16 + 16) for b in own]) for own in blocks]
    of_pages = [tokens[tokens < 199] for tokens in of_pages]
    some = [np.array([1, 5, 6, 7, 48, 63, 192, 198]), np.array([32, 47, 48, 64, 197])]
    for tokens, runs in ((of_pages, fetched.runs()), (some, fetched.runs(some))):
        found = cache.attend_runs(query, runs, 0.2, SINKS)
        assert np.array_equal(found, _alone(cache, query, tokens))
    if pool.file is not None:
        assert fetched.bytes_read == fetched.pages_read * pool.shape.page_bytes > 0
        assert pool.file.bytes_read - before >= fetched.bytes_read
        again = cache.fetch(1, blocks)
        assert again.bytes_read == 0, "what was fetched stays"
        again.release()
    fetched.release()
    every = cache.fetch(1, [np.arange(13)] * 2)
    every.wait()
    every.release()  # nothing else is computed before they are used
    found = cache.attend_runs(query, every.runs(), 0.2, SINKS)
    assert np.array_equal(found, _alone(cache, query, [np.arange(199)] * 2))
    sequence.step(cache, 1)


def _alone(cache: PagedKvCache, query: Floats, tokens: list[np.ndarray]) -> Floats:
    """Attention by the core, to copies of the rows of these tokens of each head."""
    rows = cache.encoded(1, 0, cache.length)
    copies = [np.ascontiguousarray(rows[:, head, own]).reshape(2, -1) for head, own in
              enumerate(tokens)]  # fmt: skip
    keys, values = (np.concatenate([one[kind] for one in copies]) for kind in range(2))
    begins = np.cumsum([0, *(one.shape[1] for one in copies)])
    runs = np.array([(at, at, len(own)) for at, own in zip(begins, tokens, strict=False)])
    out = np.empty(query.shape, np.float32)
    core.Kernels(1).attend_runs(
        query.reshape(-1), keys, values, "f16", 40, runs,
        np.array([1, 2], np.int32), 0.2, out.reshape(-1), SINKS,
    )  # fmt: skip
    return out


def test_a_fetch_may_be_given_up(pools: Pools) -> None:
    expected, cache, sequence = whole("f16"), pools.cache("f16", LEAST + 12), Sequence(1)
    for one in (expected, cache):
        sequence.step(one, 180)
    pool = pools.made[-1]
    cache.fetch(0, [np.arange(8), np.arange(2)]).release()
    kept = cache.fetch(0, [np.arange(3), np.arange(3)])
    other = cache.fetch(0, [np.arange(3), np.arange(3)])  # the same, before they are there
    kept.wait()
    other.wait()
    for fetched in (other, kept):
        fetched.release()
    assert not pool._pins.any()
    assert same(sequence.step(cache, 20), sequence.step(expected, 20))


def test_memory_is_divided_into_slots_and_staging() -> None:
    shape = PageShape.of(SPEC, "f16")
    assert shape.page_bytes == 2 * 16 * 64 * 2
    assert PageShape.of(SHAPE, "int8").page_bytes == 2560  # 2 * 16 * (40 -> 64 + 2 * 2) filled up
    plan = plan_pages(SPEC, 512, 2, "f16", MIB)
    pages = 2 * 32 * 16
    assert plan.blocks == 64
    assert plan.flash_bytes == pages * shape.page_bytes
    assert plan.staging == 2 * 64  # two of four heads, twice: half of the memory at most
    taken = (plan.slots + plan.staging) * shape.page_bytes
    assert MIB - taken - 2 * shape.page_bytes < pages * 13 + plan.slots * 29 <= MIB - taken
    everything = plan_pages(SPEC, 512, 2, "f16", 1 << 30)
    assert (everything.slots, everything.staging, everything.flash_bytes) == (pages, 0, 0)
    assert everything.memory_bytes < 1 << 30
    with pytest.raises(UsageError, match=r"--kv-memory 0.1MiB is too little .* 512 tokens; .*1MiB"):
        plan_pages(SPEC, 512, 2, "f16", 100 << 10)


@pytest.mark.parametrize("slots", [None, LEAST + 3])
def test_encoded_rows_come_back_as_they_were(pools: Pools, slots: int | None) -> None:
    """Of one cache to another of the other kind, in pieces."""
    sequence, first, second = Sequence(1), pools.cache("int8", slots), whole("int8")
    sequence.step(first, 150)
    third = pools.cache("int8", slots)
    for found, source in ((second, first), (third, second)):
        for begin, end in ((0, 7), (7, 128), (128, 150)):
            for layer in range(2):
                found.append_encoded(
                    layer, end - begin, source.encoded(layer, begin, end).reshape(-1)
                )
            found.length = end
    expected = sequence.step(first, 5)
    assert same(sequence.step(second, 5), expected)
    assert same(sequence.step(third, 5), expected)


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_calls(pools: Pools, seed: int) -> None:
    """Contexts that grow, are cut, take over what others have, fetch and are dropped, at random."""
    rng = np.random.default_rng(seed)
    pool = pools.pool("f16", LEAST + int(rng.integers(8, 30)), contexts=3)
    pairs = [(whole("f16"), pools.cache("f16", None, pool)) for _ in range(3)]
    for step in range(40):
        number, other = rng.permutation(3)[:2].tolist()
        (expected, found), what = pairs[number], rng.random()
        room = CONTEXT - found.length
        if what < 0.65 and room:
            tokens = int(min(rng.choice([1, 1, 3, 16, 40]), room))
            sequence, window = Sequence(1000 * seed + step), int(rng.choice([0, 0, 30]))
            assert same(
                sequence.step(found, tokens, window), sequence.step(expected, tokens, window)
            )
        elif what < 0.75:
            length = int(rng.integers(0, found.length + 1))
            for cache in (expected, found):
                cache.truncate(length)
        elif what < 0.85:
            length = int(rng.integers(0, pairs[other][1].length + 1))
            for cache, source in zip((expected, found), pairs[other], strict=True):
                cache.copy(source, length)
        elif what < 0.95 and found.length:
            chosen = np.unique(rng.integers(0, -(-found.length // 16), 3))
            fetched = found.fetch(1, [chosen, chosen[:1]])
            if rng.random() < 0.7:
                fetched.wait()
                begin, _, count = fetched.runs()[0][0].tolist()
                row = pool.memory[begin : begin + count * 80].reshape(count, 80)
                first = int(chosen[0]) * 16
                assert np.array_equal(row, expected.encoded(1, first, first + count)[0, 0])
            fetched.release()
        else:
            pairs[number] = whole("f16"), pools.cache("f16", None, pool)
            del expected, found
            gc.collect()
    used = {block for _, cache in pairs for block in cache.blocks}
    cache = source = None  # which may be of contexts that were dropped
    gc.collect()
    while pool.abandoned:
        pool.drop_blocks(pool.abandoned.popleft())
    assert len(pool._free_blocks) == pool.plan.blocks - len(used)
    assert not pool._pins.any()


@pytest.mark.parametrize("slots", [None, LEAST, LEAST + 60])
@pytest.mark.parametrize("count", [1, 9, 150])
def test_attention_to_a_set_has_the_bits_of_one_piece(
    pools: Pools, slots: int | None, count: int
) -> None:
    """Fetched ahead or not, or given up; all of it in DRAM or nearly none."""
    cache, expected, rows = pools.cache("f16", slots), whole("f16"), Sequence(5)
    generator = np.random.default_rng(count)
    for each in (cache, expected):
        rows.step(each, 150)
    for token in range(150, 156):
        own, layer = slice(token, token + 1), token % 2
        positions = np.stack([np.sort(generator.permutation(150)[:count]) for _ in range(2)])
        chosen = positions.astype(np.int32)
        if token % 3:
            cache.prefetch(layer, None if token == 152 else chosen)
        if token == 154:
            cache.prefetch(layer, chosen[:, :1])
        for each in (cache, expected):
            for at in range(2):
                each.append(at, *rows.rows[at, :, :, own])
        caches, query = (cache, expected), rows.query[own]
        assert np.array_equal(*(one.attend_to(layer, query, chosen, 0.2, SINKS) for one in caches))
        asked, before = query[0, 3:], cache.scored_bytes
        assert np.array_equal(*(one.scores(layer, 1, asked, token + 1) for one in caches))
        # Keys of one head of one layer, and what is in DRAM is not read.
        pages = cache.pool.shape.blocks(token + 1)
        assert cache.scored_bytes - before <= pages * cache.pool.shape.part_bytes
        for each in (cache, expected):
            each.length += 1
    if slots in (None, LEAST):
        assert (cache.scored_bytes > 0) == (slots == LEAST)
    cache.prefetch(0, chosen)
    cache.truncate(20)
    cache.close()
