"""Whole models that see some of their keys and values: the same answers, and how many they saw."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert
from flashllm.predictors.skewing import skew_model

from flashllm.engine.loading import load_decoder
from flashllm.engine.local import Model, open_model
from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.kv_cache.layout import plan_pages, selection_bytes, skewing_bytes
from flashllm.kv_cache.page_reads import flash_reads_a_token
from flashllm.kv_cache.selected import SelectedCache
from flashllm.model.decoder import Decoder
from flashllm.options import KvSelection
from tests.support.tiny import tiny

IDS = np.random.default_rng(3).integers(3, 97, 150).tolist()
PROMPT = 90
EVERYTHING = KvSelection("infinigen", share=1.0, alpha=100.0, recall=0.0, start_layer=1)
FEW = KvSelection("infinigen", share=0.3, start_layer=1)


def options_of(selection: KvSelection) -> dict[str, Any]:
    """As they are given."""
    return {
        "kv_policy": selection.policy,
        "kv_budget": selection.share,
        "kv_alpha": selection.alpha,
        "kv_recall": selection.recall,
        "spec_start_layer": selection.start_layer,
    }


def grouped_heads(root: Path, positions: int, width: int, neurons: int) -> Path:
    """A converted model of four layers with two key heads and rotary positions."""
    model = tiny(
        "qwen3", num_hidden_layers=4, max_position_embeddings=positions, num_key_value_heads=2,
        intermediate_size=neurons, hidden_size=width, head_dim=16,
    )  # fmt: skip
    model.save_pretrained(root / "source")
    convert(root / "source", root / "model")
    return root / "model"


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grouped heads, rotary positions, norms of queries and keys; calibrated."""
    model = grouped_heads(tmp_path_factory.mktemp("grouped"), 256, 48, 64)
    skew_model(model, [IDS], lambda _: None)
    return model


def steps(directory: Path, selection: KvSelection, **options: int) -> tuple[np.ndarray, Decoder]:
    """Logits after each token of an answer that is given."""
    decoder, _, store = load_decoder(directory, **options_of(selection), **options)
    with store:
        logits = [decoder.prefill(IDS[:PROMPT])]
        logits += [decoder.decode(token) for token in IDS[PROMPT:]]
    return np.stack(logits), decoder


def test_with_everything_fetched_it_is_full_attention_bit_for_bit(
    grouped: Path, sparse_model: Path
) -> None:
    for directory in (grouped, sparse_model):
        expected, _ = steps(directory, KvSelection())
        found, decoder = steps(directory, EVERYTHING)
        assert np.array_equal(found, expected)
        cache = decoder.context.keys_values
        assert isinstance(cache, SelectedCache)
        assert cache.counts.share == 1.0
        assert cache.counts.recall == pytest.approx(1.0)


@pytest.mark.parametrize("policy", ["infinigen", "window", "h2o", "values"])
def test_the_same_answer_at_every_ceiling_and_chunk(
    grouped: Path, sparse_model: Path, policy: str
) -> None:
    """Not the exact one, and bit for bit the same."""
    selection = KvSelection(policy, share=0.3, start_layer=1)
    expected, decoder = steps(sparse_model, selection)
    exact, _ = steps(sparse_model, KvSelection())
    assert not np.array_equal(expected, exact)
    cache = decoder.context.keys_values
    assert isinstance(cache, SelectedCache)
    assert 0 < cache.counts.share <= 0.3
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        load_decoder(sparse_model, **options_of(selection), memory=1 << 20)
    least = caught.value.smallest_bytes + (8 << 20)
    for options in ({"memory": least}, {"chunk_tokens": 16}):
        assert np.array_equal(steps(sparse_model, selection, **options)[0], expected)


@pytest.mark.parametrize("policy", ["infinigen", "h2o", "values"])
def test_the_same_answer_with_keys_and_values_on_flash(grouped: Path, policy: str) -> None:
    selection = KvSelection(policy, share=0.2, start_layer=1)
    expected, decoder = steps(grouped, selection, context=160)
    for nbytes in range(1 << 12, 1 << 24, 1 << 12):
        with contextlib.suppress(UsageError):
            plan_pages(decoder.spec, 160, 1, "f16", nbytes)
            break
    read = []
    for limit in (nbytes, nbytes * 4 // 3, 2 * nbytes):
        found, decoder = steps(grouped, selection, context=160, kv_memory=limit)
        assert decoder.kv_pool is not None
        assert np.array_equal(found, expected)
        read.append(decoder.kv_pool.report()["bytes_read"])
    assert read[0] > 0


@pytest.fixture
def opened(grouped: Path) -> Iterator[Model]:
    with open_model(grouped, **options_of(FEW), contexts=3) as model:
        yield model


def test_several_contexts_choose_for_themselves(opened: Model) -> None:
    """Together they get the bits that each has alone."""
    decoder = opened.decoder
    contexts = [decoder.context, decoder.new_context(), decoder.new_context()]
    alone = []
    for number, context in enumerate(contexts):
        decoder.prefill(IDS[number : PROMPT + number], context=context)
        alone.append(decoder.decode(5 + number, context))
    for number, context in enumerate(contexts):
        decoder.prefill(IDS[number : PROMPT + number], context=context)
    together = list(decoder.decode_each([5, 6, 7], contexts))
    assert np.array_equal(np.concatenate([np.atleast_2d(x) for x in together]), np.stack(alone))


def test_the_plan_has_room_for_what_chooses(grouped: Path) -> None:
    _, full, store = load_decoder(grouped, context=256)
    with store:
        spec = store.spec
    _, plan, store = load_decoder(grouped, context=256, **options_of(FEW))
    with store:
        more = plan.split["kv"] - full.split["kv"]
    assert more == selection_bytes(spec, 256, FEW) + skewing_bytes(spec) > 0
    assert plan.kv_selection.lossy
    assert not plan.prompt_is_decoded_alike


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "some"}, "--kv-policy some: expected one of full, infinigen, window, h2o"),
        ({"share": 0.0}, "kv-budget is 0.0"),
        ({"share": 1.5}, "kv-budget is 1.5"),
        ({"alpha": -1.0}, "kv-alpha is -1.0"),
        ({"recall": 1.0}, "kv-recall is 1.0"),
        ({"start_layer": 0}, "spec-start-layer is 0"),
    ],
)
def test_settings_out_of_range(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        KvSelection(**changes)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for contexts of many pages."""
    return grouped_heads(tmp_path_factory.mktemp("long"), 1100, 32, 32)


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_the_plan_says_what_is_read_from_flash(long: Path, share: float) -> None:
    """Against a run whose choice fills its budget: so few that they stay, and more than can."""
    selection = KvSelection("infinigen", share, alpha=100.0, recall=0.0, start_layer=1)
    ids = np.random.default_rng(5).integers(3, 97, 1050).tolist()
    given = options_of(selection)
    decoder, plan, store = load_decoder(long, context=1100, kv_memory=330_000, **given)
    with store:
        decoder.prefill(ids[:1000])
        pool, read = decoder.kv_pool, []
        assert pool is not None
        for token in ids[1000:]:
            decoder.decode(token)
            read.append(pool.report()["bytes_read"])
    assert plan.kv_pages is not None
    expected = [
        flash_reads_a_token(decoder.spec, plan.kv_dtype, plan.kv_pages, 1040, chosen).total
        for chosen in (selection, KvSelection())
    ]
    assert (read[-1] - read[29]) / 20 == pytest.approx(expected[0], rel=0.2)
    # More than stay are read anew for each token, and a head's keys to measure the choice.
    assert (expected[0] < 0.7 * expected[1]) == (share == 0.02)
