"""Behind keys and values of the last layer, a prompt is computed for the tokens asked for alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flashllm.engine.loading import load_decoder
from flashllm.model.decoder import Decoder
from flashllm.model.ffn_prefill import FeedForwardPrefill
from flashllm.model.layer_inputs import LayerInputs

LAYERS = 3
PROMPTS = [list(range(95)), [12, 9, 77, 50] * 5, [44, 7, 3], list(range(90, 20, -1))]
SEEDS = 64


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Layers, and how many tokens each was computed for, in order."""
    seen: list[tuple[int, int]] = []
    for name in ("dense", "needed"):
        original = getattr(FeedForwardPrefill, name)

        def counted(
            self: FeedForwardPrefill,
            layer: int,
            inputs: LayerInputs,
            *rest: Any,
            _original: Any = original,
            **named: Any,
        ) -> Any:
            seen.append((layer, len(inputs.ffn)))
            return _original(self, layer, inputs, *rest, **named)

        monkeypatch.setattr(FeedForwardPrefill, name, counted)
    return seen


def after(decoder: Decoder, ids: list[int]) -> NDArray[np.float32]:
    """Logits after each token of a text whose last layer was computed whole."""
    return decoder.logits(ids)


@pytest.mark.parametrize("prompt_neurons", ["exact", "selected"])
@pytest.mark.parametrize("tokens", [95, 40, 1])
def test_a_prompt_s_last_layer_is_of_its_last_tokens(
    sparse_model: Path,
    computed: list[tuple[int, int]],
    prompt_neurons: Any,
    tokens: int,
) -> None:
    ids = PROMPTS[0][:tokens]
    decoder, _, store = load_decoder(sparse_model, prompt_neurons=prompt_neurons, chunk_tokens=64)
    with store:
        found = decoder.prefill(ids)
        chunks = [64, tokens - 64] if tokens > 64 else [tokens]
        # The last 64 tokens say what stays in the pool.
        seeds = [max(SEEDS - (tokens - 64), 1), tokens - 64] if tokens > 64 else [tokens]
        assert computed == [
            (layer, part if layer < LAYERS - 1 else seed)
            for part, seed in zip(chunks, seeds, strict=True)
            for layer in range(LAYERS)
        ]
        decoded = decoder.decode(5)
        seen: list[int] = []
        decoder.observe_layers(lambda _layer, _came, _behind, left: seen.append(len(left)))
        assert np.array_equal(decoder.prefill(ids), found)
        assert seen == [part for part in chunks for _ in range(LAYERS)]
        assert np.array_equal(decoder.decode(5), decoded)


def test_a_middle_chunk_is_of_one_token_in_the_last_layer(
    sparse_model: Path, computed: list[tuple[int, int]]
) -> None:
    decoder, _, store = load_decoder(sparse_model, chunk_tokens=16)
    with store:
        decoder.prefill(PROMPTS[0])
    assert [tokens for layer, tokens in computed if layer == LAYERS - 1] == [1, 1, 16, 16, 16, 15]


def test_of_prompts_together_the_last_token_of_each(
    sparse_model: Path, computed: list[tuple[int, int]]
) -> None:
    expected = []
    decoder, _, store = load_decoder(sparse_model)
    with store:
        for ids in PROMPTS:
            expected.append([decoder.prefill(ids), decoder.decode(7)])
    del computed[:]
    decoder, plan, store = load_decoder(sparse_model, contexts=4, chunk_tokens=128)
    with store:
        contexts = [decoder.context, *(decoder.new_context() for _ in range(3))]
        found = list(decoder.prefill_each(PROMPTS, contexts, [0] * 4))
        lasts = [tokens for layer, tokens in computed if layer == LAYERS - 1]
        whole = [tokens for layer, tokens in computed if layer == 0]
        assert whole == [128, sum(map(len, PROMPTS)) - 128]
        # Of the last pass those that seed slots too, where steps do not read layers whole.
        assert lasts == [4, min(plan.seed_tokens, 60) or 1]
        for own, (wanted, _) in zip(found, expected, strict=True):
            assert np.array_equal(own, wanted)
        steps = decoder.decode_each([7] * 4, contexts)
        for own, (_, wanted) in zip(steps, expected, strict=True):
            assert np.array_equal(own, wanted)


@pytest.mark.parametrize("prompt_neurons", ["exact", "selected"])
def test_answers_beside_prompts_are_asked_for_too(
    sparse_model: Path, computed: list[tuple[int, int]], prompt_neurons: Any
) -> None:
    options = {"prompt_neurons": prompt_neurons}
    expected = []
    decoder, _, store = load_decoder(sparse_model, **options)
    with store:
        for ids in PROMPTS:
            expected.append([decoder.prefill(ids), decoder.decode(7)])
    decoder, _, store = load_decoder(sparse_model, contexts=4, chunk_tokens=64, **options)
    with store:
        contexts = [decoder.context, *(decoder.new_context() for _ in range(3))]
        list(decoder.prefill_each(PROMPTS[1:3], contexts[1:3], [0, 0]))
        going = [(context, 7) for context in contexts[1:3]]
        del computed[:]
        passes = decoder.prefill_beside(
            [PROMPTS[0], PROMPTS[3]],
            [contexts[0], contexts[3]],
            [0, 0],
            lambda: going if not computed else [],
        )
        ended, logits = next(passes)
        beside = list(logits)
        assert ended == ()
        for own, (_, wanted) in zip(beside, expected[1:3], strict=True):
            assert np.array_equal(own, wanted)
        lasts = {}
        for ended, logits in passes:
            lasts |= dict(zip(ended, logits, strict=True))
        assert np.array_equal(lasts[0], expected[0][0])
        assert np.array_equal(lasts[1], expected[3][0])


def test_logits_of_all_tokens_are_of_all_tokens(
    sparse_model: Path, computed: list[tuple[int, int]]
) -> None:
    decoder, _, store = load_decoder(sparse_model, select="all")
    with store:
        every = after(decoder, PROMPTS[0])
        assert {tokens for _, tokens in computed} == {len(PROMPTS[0])}
        assert np.array_equal(every[-1], decoder.prefill(PROMPTS[0]))
        seen: list[int] = []
        decoder.prefill(PROMPTS[0], tap=lambda _layer, x, _margin: seen.append(len(x)))
        assert seen == [len(PROMPTS[0])] * LAYERS
