"""Caches of which an answer sees a part: held against attention that masks the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashllm import core
from flashllm.kv_cache.dram import KvCache
from flashllm.kv_cache.partial_index import PartialIndex
from flashllm.kv_cache.selected import SelectedCache
from flashllm.kv_cache.selection import make_keys_values
from flashllm.kv_cache.token_policies import HeavyHitters, InfiniGen
from flashllm.large_arrays import Floats
from flashllm.options import KV_DTYPES, KvDType, KvSelection
from tests.kv_cache.test_kv_cache import SHAPE, contents, filled, rows

HEADS, KV_HEADS, WIDTH, SCALE = 12, 6, 80, 0.11
LAYER = 1
SELECTIONS = [
    KvSelection("infinigen", start_layer=1),
    KvSelection("window", start_layer=1),
    KvSelection("h2o", start_layer=1),
    KvSelection("specache", start_layer=1),
    KvSelection("values", start_layer=1),
]


def queries(tokens: int, seed: int = 5) -> Floats:
    return np.random.default_rng(seed).standard_normal((tokens, HEADS, WIDTH), np.float32)


def masked(
    cache: KvCache, query: Floats, positions: np.ndarray, sinks: Floats | None = None
) -> torch.Tensor:
    """The reference: attention in f64, of which all other positions are taken out."""
    keys, values = contents(cache, 0, 0, cache.length + 1).double()
    found = []
    for head in range(HEADS):
        kv_head = head * KV_HEADS // HEADS
        scores = SCALE * keys[kv_head] @ torch.from_numpy(query[head]).double()
        hidden = torch.ones(len(scores), dtype=torch.bool)
        hidden[[*positions[kv_head].tolist(), cache.length]] = False
        scores[hidden] = -torch.inf
        if sinks is not None:
            scores = torch.cat((scores, torch.from_numpy(sinks[head, None]).double()))
        weights = torch.softmax(scores, 0)[: len(hidden)]
        found.append(weights @ values[kv_head])
    return torch.stack(found)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_attention_to_a_set_is_that_of_a_mask(dtype: KvDType) -> None:
    cache, query = filled(dtype, [30]), queries(1)
    cache.length = 29
    generator = np.random.default_rng(2)
    positions = np.stack([np.sort(generator.permutation(29)[:7]) for _ in range(KV_HEADS)])
    tolerance = 6e-4 if dtype in ("int8", "int4") else 3e-6
    for sinks in (None, np.linspace(-1, 1, HEADS, dtype=np.float32)):
        found = cache.attend_to(0, query, positions.astype(np.int32), SCALE, sinks)[0]
        expected = masked(cache, query[0], positions, sinks)
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_attention_to_everything_has_the_bits_of_full_attention(dtype: KvDType) -> None:
    cache, query = filled(dtype, [30]), queries(1)
    cache.length = 29
    everything = np.tile(np.arange(29, dtype=np.int32), (KV_HEADS, 1))
    found = cache.attend_to(0, query, everything, SCALE)
    assert np.array_equal(found, cache.attend(0, query, 0, SCALE))


def made(selection: KvSelection, context: int = 160) -> SelectedCache:
    kernels = core.Kernels(threads=2)
    rows = KvCache(SHAPE, context, "f16", kernels)
    cache = make_keys_values(SHAPE, rows, kernels, selection)
    assert isinstance(cache, SelectedCache)
    return cache


KEYS, VALUES, QUERIES = rows(140, 1), rows(140, 2), queries(140)


def prompt(cache: SelectedCache, *steps: int) -> None:
    """Tokens as a prompt, so many at a time."""
    for step in steps:
        own = slice(cache.length, cache.length + step)
        cache.append(LAYER, KEYS[:, own], VALUES[:, own])
        cache.attend(LAYER, QUERIES[own], 0, SCALE)
        cache.length += step


def answer(cache: SelectedCache, tokens: int) -> list[Floats]:
    """Tokens one by one."""
    found = []
    for _ in range(tokens):
        own = slice(cache.length, cache.length + 1)
        if LAYER in cache.speculated_layers:
            cache.speculate(LAYER, QUERIES[own.start] + 0.1, SCALE)
        cache.append(LAYER, KEYS[:, own], VALUES[:, own])
        found.append(cache.attend_decoded(LAYER, QUERIES[own], 0, SCALE))
        cache.length += 1
    return found


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda one: one.policy)
def test_chunks_cancelled_tokens_and_regenerated_answers_leave_no_trace(
    selection: KvSelection,
) -> None:
    """Bit for bit: an answer is that of a context that began with the same tokens."""
    plain = made(selection)
    prompt(plain, 100)
    expected = np.concatenate(answer(plain, 30))
    cut = made(selection)
    prompt(cut, 13, 1, 50)
    # A chunk, and a token, that are given up before they count.
    cut.append(LAYER, KEYS[:, :20] + 1, VALUES[:, :20])
    cut.attend(LAYER, QUERIES[:20] + 1, 0, SCALE)
    prompt(cut, 30, 6)
    found = answer(cut, 10)
    length = cut.length
    other = slice(length, length + 1)
    if LAYER in cut.speculated_layers:
        cut.speculate(LAYER, QUERIES[3], SCALE)
    cut.append(LAYER, KEYS[:, :1] * 3, VALUES[:, other])
    cut.attend_decoded(LAYER, 2 * QUERIES[other], 0, SCALE)
    found += answer(cut, 20)
    assert np.array_equal(np.concatenate(found), expected)
    # The answer once more, and all of it from as many tokens as may stay.
    for shared in (100, 70, 20):
        stays = cut.may_stay(shared)
        assert stays in (0, shared)
        cut.truncate(stays)
        prompt(cut, 100 - stays) if stays < 100 else None
        assert np.array_equal(np.concatenate(answer(cut, 30)), expected)


def test_a_short_context_sees_everything() -> None:
    for selection in SELECTIONS:
        cache, whole = made(selection), KvCache(SHAPE, 64, "f16", core.Kernels())
        prompt(cache, 30)
        found = answer(cache, 34)
        whole.append(LAYER, KEYS[:, :64], VALUES[:, :64])
        expected = whole.attend(LAYER, QUERIES[:64], 0, SCALE)[30:]
        assert np.array_equal(np.concatenate(found), expected)
        assert cache.counts.share == 1.0


def test_what_is_fetched_is_counted() -> None:
    cache = made(KvSelection("window", share=0.1, start_layer=1))
    prompt(cache, 100)
    answer(cache, 3)
    # A tenth of 100, 101 and 102, of each key head, in f16.
    counts = cache.counts
    assert (counts.tokens, counts.fetched) == (303 * KV_HEADS, 30 * KV_HEADS)
    assert counts.fetched_bytes == 30 * KV_HEADS * 2 * WIDTH * 2
    assert counts.recall_counts == {1: 3}
    assert counts.recall is not None
    assert 0 < counts.recall < 1


def test_values_of_the_best_scores_by_a_mask() -> None:
    """Against attention in f64 to the tokens whose scores are the best of any head of a group."""
    cache = made(KvSelection("values", share=0.1, start_layer=1))
    prompt(cache, 100)
    found = answer(cache, 3)
    keys, values = contents(cache._rows, LAYER, 0, 103).double()
    group = HEADS // KV_HEADS
    for token, mixed in zip(range(100, 103), found, strict=True):
        count = token // 10
        for kv_head in range(KV_HEADS):
            own = slice(kv_head * group, (kv_head + 1) * group)
            asked = torch.from_numpy(QUERIES[token, own]).double()
            scores = SCALE * asked @ keys[kv_head, : token + 1].T
            before = scores[:, :token]
            worth = (before - before.max(1, keepdim=True).values).max(0).values
            hidden = torch.ones(token + 1, dtype=torch.bool)
            hidden[worth.topk(count).indices], hidden[token] = False, False
            scores[:, hidden] = -torch.inf
            expected = torch.softmax(scores, 1) @ values[kv_head, : token + 1]
            np.testing.assert_allclose(mixed[0, own], expected, atol=3e-6, rtol=0)
    counts = cache.counts
    assert counts.fetched_bytes == 30 * KV_HEADS * WIDTH * 2  # values alone
    assert counts.index_bytes == 303 * KV_HEADS * WIDTH * 2  # all keys
    assert counts.recall_counts == {1: 3}


@pytest.mark.parametrize("dtype", ["f16", "int8", "int4"])
def test_the_index_scores_as_its_columns_do(dtype: str) -> None:
    """Skewed by the definition, in f64, and rounded by the encoding alone.

    One column of the keys is far from zero in all tokens: it changes all scores of a query by the
    same, and costs nothing of the few bits.
    """
    generator = np.random.default_rng(4)
    skewing = [
        np.stack(
            [np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))[0] for _ in range(KV_HEADS)]
        ).astype(np.float32)
        for _ in range(2)
    ]
    index = PartialIndex(SHAPE, 128, core.Kernels(), 0.3, dtype, skewing)
    keys, asked = KEYS.copy(), QUERIES
    keys[:, :, 7] += 30
    index.append(LAYER, 0, asked[:70], keys[:, :70])
    index.append(LAYER, 70, asked[70:90], keys[:, 70:90])
    found = index.scores(LAYER, asked[91], 90, SCALE)
    tolerance = {"f16": 0.01, "int8": 0.05, "int4": 0.8}[dtype]
    for head in range(HEADS):
        kv_head = head // 2
        matrix = skewing[LAYER][kv_head].astype(np.float64)
        group = np.abs(asked[:64, 2 * kv_head : 2 * kv_head + 2] @ matrix).mean(axis=1)
        sums = (group + np.abs(keys[kv_head, :64] @ matrix)).sum(axis=0)
        columns = np.sort(np.argsort(-sums)[: int(0.3 * WIDTH)])
        assert np.array_equal(index.chosen_columns(LAYER)[kv_head], columns)
        skewed = keys[kv_head, :90] @ matrix[:, columns]
        expected = SCALE * skewed @ (asked[91, head] @ matrix[:, columns])
        shifted = found[head] - found[head].mean()
        np.testing.assert_allclose(shifted, expected - expected.mean(), atol=tolerance)


def test_heavy_hitters_by_hand() -> None:
    """One head; attention is set by the queries: keys are unit vectors."""
    shape = SHAPE
    tokens = 100

    class Scores:
        """Every token attends to token 3 and, less, to token 5; the others have next to nothing."""

        def scores(self, layer: int, kv_head: int, asked: np.ndarray, end: int) -> np.ndarray:
            found = np.zeros((len(asked), end), np.float32)
            found[:, 3:4], found[:, 5:6] = 50, 48
            return found

    policy = HeavyHitters((LAYER,), (HEADS, KV_HEADS), 128, 0.04, Scores())
    policy.attended(LAYER, 0, np.zeros((tokens, HEADS, shape.head_dim), np.float32), 1.0)
    query = np.zeros((HEADS, shape.head_dim), np.float32)
    # 4 of 100: the last two, and the two that had the most attention.
    assert policy.choose(LAYER, query, 100, 1.0).tolist() == [[3, 5, 98, 99]] * KV_HEADS
    # 98 goes and 99 stays with 100; the others cannot come back.
    assert policy.choose(LAYER, query, 101, 1.0).tolist() == [[3, 5, 99, 100]] * KV_HEADS


def test_infinigen_adapts_to_the_recall_wanted() -> None:
    """Alpha grows where keys are alike, until the share that is allowed."""
    cache = made(KvSelection("infinigen", share=1.0, alpha=0.6, recall=0.9, start_layer=1), 1000)
    policy = cache.policy
    assert isinstance(policy, InfiniGen)
    generator = np.random.default_rng(9)
    keys = generator.standard_normal((KV_HEADS, 500, WIDTH), np.float32)
    asked = generator.standard_normal((500, HEADS, WIDTH), np.float32)
    cache.append(LAYER, keys[:, :150], keys[:, :150])
    cache.attend(LAYER, asked[:150], 0, SCALE)
    cache.length = 150
    recalls = []
    for token in range(150, 500):
        cache.speculate(LAYER, asked[token], SCALE)
        cache.append(LAYER, keys[:, token, None], keys[:, token, None])
        before = dict(cache.counts.recall_sums)
        cache.attend_decoded(LAYER, asked[token, None], 0, SCALE)
        recalls.append(cache.counts.recall_sums[LAYER] - before.get(LAYER, 0.0))
        cache.length += 1
    assert np.mean(recalls[:3]) < 0.8
    assert np.mean(recalls[150:]) == pytest.approx(0.9, abs=0.02)
