"""A prompt computes with what is in slots, reads the rest only, and leaves free slots filled."""

from __future__ import annotations

from pathlib import Path

import pytest
from flashllm.convert import convert

from flashllm.engine.local import Model, open_model
from flashllm.planning import plan, prefill_shape
from flashllm.planning.slot_allocation import RingLimits
from flashllm.planning.ways_to_read import GAP_BYTES
from tests.support.lent_slots import BLOCK, N_BUNDLES, short_of_slots, shorten_blocks, stride_of
from tests.support.tiny import save_exact_predictors, save_opt, sparse_opt

PROMPT = [5, 17, 40, 8, 61, 33, 12, 9, 77, 50]
SECOND = [44, 7, 3, 90, 21, 21, 60]
LAYERS = 3


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch, sparse_model: Path) -> None:
    shorten_blocks(monkeypatch, sparse_model)


def answered(model: Model, prompt: list[int]) -> tuple[list[int], int, int]:
    """Tokens of an answer, and the bytes that were read for the prompt and for the tokens."""
    generation = model.generate(prompt, max_tokens=20)
    tokens = list(generation)
    assert generation.prefill is not None
    return (
        [token.id for token in tokens],
        generation.prefill.bytes_read,
        sum(token.cost.bytes_read for token in tokens[1:]),
    )


@pytest.fixture(scope="module", params=["f16", "int8", "int4"])
def encoded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sparse model in an encoding, whose rows are decoded where they are."""
    root = tmp_path_factory.mktemp(request.param)
    model = sparse_opt()
    predictors = save_exact_predictors(model, root / "predictors.safetensors")
    source = save_opt(model, root / "source")
    convert(source, root / "converted", dtype=request.param, predictors=predictors)
    return root / "converted"


def whole_bytes(directory: Path) -> int:
    return LAYERS * N_BUNDLES * stride_of(directory)


def test_with_room_for_all_nothing_is_read_twice(sparse_model: Path) -> None:
    with open_model(sparse_model) as model:
        assert set(model.plan.slots_per_layer) == {N_BUNDLES}
        first, prompt_bytes, token_bytes = answered(model, PROMPT)
        assert (prompt_bytes, token_bytes) == (whole_bytes(sparse_model), 0)
        second, *read = answered(model, SECOND)
        assert read == [0, 0]
        assert answered(model, PROMPT) == (first, 0, 0)
    with open_model(sparse_model) as model:
        assert answered(model, SECOND)[0] == second


def test_the_first_prompt_is_read_to_where_it_stays(encoded: Path) -> None:
    with open_model(encoded) as model:
        model.logits(PROMPT)
        for layer in range(LAYERS):
            cache = model.decoder.pool.layer(layer)  # type: ignore[attr-defined]
            slots = cache.slots(0, N_BUNDLES)
            assert slots.tolist() == list(range(layer * N_BUNDLES, (layer + 1) * N_BUNDLES))


def test_where_nothing_is_copied_the_bits_are_those_of_the_first_prompt(encoded: Path) -> None:
    with open_model(encoded) as model:
        assert set(model.plan.slots_per_layer) == {N_BUNDLES}
        first = model.logits(PROMPT)
        before = model.decoder._store.reader.stats()["bytes_read"]
        again = model.logits(PROMPT)
        assert again.tobytes() == first.tobytes()
        # Bundles that tokens brought lie in another order.
        model.decoder.pool.clear()
        expected = answered(model, PROMPT)[0]
        assert answered(model, PROMPT)[0] == expected
        assert model.logits(PROMPT).tobytes() == first.tobytes()
        assert before == whole_bytes(encoded)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_what_is_in_slots_changes_no_bit(encoded: Path, share: float) -> None:
    """A share of the slots is given back, or all that are not needed."""
    with open_model(encoded, prompt_neurons="exact") as model:
        expected = [model.logits(prompt).tobytes() for prompt in (PROMPT, SECOND)]
        assert model.release_slots(int(whole_bytes(encoded) * share)) > 0
        for _ in range(2):
            for prompt, logits in zip((PROMPT, SECOND), expected, strict=True):
                _, read, _ = answered(model, SECOND)  # slots that tokens filled
                assert read > 0
                assert model.logits(prompt).tobytes() == logits


def test_with_less_room_only_what_is_in_no_slot_is_read(sparse_model: Path) -> None:
    assert 2 * stride_of(sparse_model) <= GAP_BYTES, "reads of tokens span bundles"
    with open_model(sparse_model) as model:
        expected = [answered(model, prompt)[0] for prompt in (PROMPT, SECOND, PROMPT)]
    with short_of_slots(sparse_model) as model:
        pool, found = model.decoder.pool, []
        n_slots = sum(model.plan.slots_per_layer)
        lent = BLOCK * sum(model.plan.lent_blocks)
        for prompt in (PROMPT, SECOND, PROMPT):
            absent = sum(N_BUNDLES - int(pool.marks(layer)[0].sum()) for layer in range(LAYERS))
            tokens, read, _ = answered(model, prompt)
            found.append(tokens)
            missing = (absent + lent) * stride_of(sparse_model)
            assert read <= min(missing, whole_bytes(sparse_model))
        assert found == expected
        assert read < whole_bytes(sparse_model), "something was in slots"
        assert n_slots < LAYERS * N_BUNDLES


def test_a_prompt_of_several_chunks_reads_once_where_all_fits(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_shape, "_ACTIVATION_BYTES", 1)  # chunks of 64 tokens
    # A ring that the whole model fits into would read the second chunk before the first is done.
    monkeypatch.setattr(plan, "PROMPT_RING", RingLimits(2, 2))
    with open_model(sparse_model) as model:
        tokens = [*PROMPT, *SECOND] * 9
        model.logits(tokens)
        assert model.decoder._store.reader.stats()["bytes_read"] == whole_bytes(sparse_model)


def test_free_slots_get_an_even_share_of_each_block(sparse_model: Path) -> None:
    with short_of_slots(sparse_model) as model:
        pool = model.decoder.pool
        model.logits(PROMPT)
        for layer, n_slots in enumerate(model.plan.slots_per_layer):
            resident = pool.marks(layer)[0]
            lent = BLOCK * model.plan.lent_blocks[layer]
            assert int(resident.sum()) == n_slots - lent, "what was lent is free"
            shares = [int(part.sum()) for part in resident.reshape(-1, BLOCK)]
            assert max(shares) - min(shares) <= BLOCK // 2
