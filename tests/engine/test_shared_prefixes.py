"""Prompts that begin alike: what is computed once, and that no bit depends on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flashllm.engine.generation import Generation
from flashllm.engine.loading import load_decoder
from flashllm.engine.local import Model, open_model
from flashllm.engine.sampling import Sampling
from flashllm.engine.shared_prefixes import waves
from flashllm.errors import ModelError
from flashllm.model.decoder import Decoder

START = [5 + (n * n) % 80 for n in range(90)]
PROMPTS = [[*START, 7, 8], [9, 10], [*START, 11], [*START[:40], 12, 13, 14], [*START, 7, 8, 9]]


def test_the_second_wave_takes_over_from_the_first() -> None:
    assert waves([]) == [[]]
    assert waves([[1, 2, 3], [1, 2, 4]]) == [[0, 1]]
    long = list(range(200))
    assert waves([long, [7], [*long, 1]]) == [[0, 1, 2]]  # one reading of the weights more
    assert waves([long, [7], [*long, 1], [*long[:100], 0]]) == [[0, 1], [2, 3]]


@pytest.fixture
def alone(sparse_model: Path) -> list[list[int]]:
    found = []
    for number, prompt in enumerate(PROMPTS):
        with open_model(sparse_model) as model:
            found.append(model.generate(prompt, 6, drawn(number)).complete().ids)
    return found


def drawn(number: int) -> Sampling:
    return Sampling(temperature=1.0, seed=number)


def together(model: Model) -> list[Generation]:
    contexts = [None, *(model.new_context() for _ in PROMPTS[1:])]
    going = [
        model.generate(prompt, 6, drawn(number), context=context)
        for number, (prompt, context) in enumerate(zip(PROMPTS, contexts, strict=True))
    ]
    everyone = list(going)
    told = going[0].first_of_each(going[1:])
    assert [token.id for token in told if token] == [each.ids[0] for each in everyone]
    while going := [each for each in going if each.pending is not None]:
        going[0].next_of_each(going[1:])
    assert [each.finish_reason for each in everyone] == ["length"] * len(PROMPTS)
    assert all(each.prefill.wall_ns > 0 for each in everyone)
    return everyone


@pytest.mark.parametrize(("least", "shared"), [(0, [0, 0, 90, 40, 92]), (10_000, [0] * 5)])
def test_answers_are_those_of_each_alone(
    sparse_model: Path,
    alone: list[list[int]],
    least: int,
    shared: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flashllm.engine.shared_prefixes.SAVED_TOKENS_MIN", least)
    with open_model(sparse_model, contexts=len(PROMPTS)) as model:
        found = together(model)
        assert [each.ids for each in found] == alone
        assert [each.reused_tokens for each in found] == shared


def test_prompts_of_several_share_a_reading_of_the_layers(sparse_model: Path) -> None:
    """120 tokens in chunks of 30: four readings, where each prompt by itself has two."""
    prompts = [[20 + number, *range(30, 69)] for number in range(3)]
    decoder, _, store = load_decoder(
        sparse_model, least=True, contexts=3, chunk_tokens=30, verify="off"
    )
    with store:
        contexts = [decoder.context, decoder.new_context(), decoder.new_context()]

        def read(compute: Callable[[], object]) -> int:
            decoder.start_cold()
            before = store.reader.stats()["bytes_read"]
            compute()
            return int(store.reader.stats()["bytes_read"] - before)

        pairs = list(zip(prompts, contexts, strict=True))
        alone = read(lambda: [decoder.prefill(ids, context=context) for ids, context in pairs])
        together = read(lambda: list(decoder.prefill_each(prompts, contexts, [0, 0, 0])))
    assert together == pytest.approx(alone * 4 / 6, rel=0.1)


def test_no_token_of_an_answer_is_taken_over(sparse_model: Path, alone: list[list[int]]) -> None:
    """It has other bits than a prompt's, where its neurons alone are predicted."""
    with open_model(sparse_model, contexts=2, prompt_neurons="exact") as model:
        first = model.generate(PROMPTS[0], 6, drawn(0)).complete()
        other = model.generate([*PROMPTS[0], *first.ids], 6, context=model.new_context())
        next(other)
        assert other.reused_tokens == len(PROMPTS[0])


def test_an_error_ends_all_of_them(sparse_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ModelError("damaged")

    with open_model(sparse_model, contexts=2) as model:
        going = [
            model.generate(prompt, 4, context=context)
            for prompt, context in zip(PROMPTS, [None, model.new_context()], strict=False)
        ]
        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "prefill_each", broken)
            with pytest.raises(ModelError, match="damaged"):
                going[0].first_of_each(going[1:])
        assert all(each.is_over for each in going)
        assert model.generate(PROMPTS[1], 4).complete().finish_reason == "length"
