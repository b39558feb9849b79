"""An answer that reasons, generated: its text, its end, what is counted, how it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flashllm
from flashllm.engine import generation
from flashllm.engine.local import Model
from flashllm.errors import UsageError
from flashllm.tokenizer.tokenizer import load_tokenizer
from tests.support.chat_templates import CHANNELS, CHATML
from tests.support.tokenizer_files import make_channels

QUESTION: flashllm.Message = {"role": "user", "content": "What does ocean mean?"}
WRITTEN = [
    "<|channel|>", "analysis", "<|message|>", "Hm", ".", "<|end|>", "<|start|>", "assistant",
    "<|channel|>", "final", "<|message|>", "Water", ".",
]  # fmt: skip
TEXT = "<think>\nHm.\n</think>\n\nWater."


@pytest.fixture(scope="module")
def model(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The demo's weights under a vocabulary of channels; what is drawn is scripted."""
    directory = tmp_path_factory.mktemp("channels")
    make_channels(directory, CHANNELS)
    with flashllm.open_model(demo) as opened:
        tokenizer = load_tokenizer(directory)
        assert tokenizer is not None
        assert tokenizer.vocab_size <= opened.info.spec.vocab_size
        opened._tokenizer = tokenizer
        yield opened


def script(model: Model, monkeypatch: pytest.MonkeyPatch, *written: str) -> list[int]:
    """Has these pieces drawn; returns their ids."""
    tokenizer = model.tokenizer
    ids = [
        token
        for piece in written
        for token in ([tokenizer._controls[piece]] if "<|" in piece else tokenizer.encode(piece))
    ]

    class Scripted(generation.Sampler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._left = list(ids)

        def skip(self, tokens: Any) -> None:
            del self._left[: len(tokens)]

        def next(self, logits: Any) -> int:
            return self._left.pop(0)

    monkeypatch.setattr(generation, "Sampler", Scripted)
    return ids


@pytest.mark.parametrize("end", ["<|return|>", "<|call|>", "<|endoftext|>", "<|end|>"])
def test_an_answer_ends_where_it_is_complete(
    model: Model, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    ids = script(model, monkeypatch, *WRITTEN, end, "never")
    answer = model.chat([QUESTION]).complete()
    assert (answer.text, answer.finish_reason) == (TEXT, "stop")
    assert answer.ids[: len(ids) - 2] == ids[: len(answer.ids)]
    body = len(model.tokenizer.encode("Water.")) + (end == "<|end|>")
    assert answer.usage.reasoning_tokens == len(answer.ids) - body
    assert answer.report()["reasoning_tokens"] == answer.usage.reasoning_tokens


def test_what_was_held_for_a_stop_string_comes_with_the_last_message(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(model, monkeypatch, *WRITTEN, "<|end|>")
    answer = model.chat([QUESTION], stop=["." * 3])
    assert "".join([token.text for token in answer]) == answer.text == TEXT


def test_wherever_it_is_stopped_it_goes_on_the_same(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = script(model, monkeypatch, *WRITTEN, "<|return|>")
    for count in range(1, len(ids) - 1):
        first = model.chat([QUESTION], max_tokens=count).complete()
        assert first.finish_reason == "length"
        assert TEXT.startswith(first.text)
        if not first.text.strip():
            continue
        rest = model.chat([QUESTION, first.message]).complete()
        assert first.text + rest.text == TEXT, count
        assert [*first.ids, *rest.ids] == ids[:-1]
        assert rest.finish_reason == "stop"


def test_a_prompt_that_ends_in_the_mark_of_reasoning(
    demo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The mark is told with the first token: until the second one comes all is reasoning."""
    make_channels(tmp_path, f"{CHATML}{{{{ '<think>\\n' }}}}")
    with flashllm.open_model(demo) as model:
        tokenizer = model._tokenizer = load_tokenizer(tmp_path)
        assert tokenizer is not None
        assert tokenizer.decode(tokenizer.encode_chat([QUESTION])).endswith("assistant\n<think>\n")
        ids = script(model, monkeypatch, "Hm", ".", "\n</think>\n\n", "Water.", "<|return|>")
        for count in range(1, len(ids) - 1):
            first = model.chat([QUESTION], max_tokens=count).complete()
            assert first.text.startswith("<think>\nH")
            assert TEXT.startswith(first.text)
            begun: flashllm.Message = {"role": "assistant", "content": first.text}
            for message in (first.message, begun):
                rest = model.chat([QUESTION, message])
                assert rest.prompt_tokens == len(tokenizer.encode_chat([QUESTION])) + count
                if message is first.message:
                    assert first.text + rest.complete().text == TEXT, count
                rest.close()
        assert first.usage.reasoning_tokens == len(tokenizer.encode("Hm.\n</think>"))


def test_the_next_turn_keeps_what_the_template_keeps(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.forget()
    script(model, monkeypatch, *WRITTEN, "<|return|>")
    first = model.chat([QUESTION]).complete()
    next_question = [QUESTION, first.message, {"role": "user", "content": "And a river?"}]
    second = model.chat(next_question).complete()
    # All of the first prompt, and the marker with which any answer begins.
    assert second.reused_tokens == first.prompt_tokens + 1


def test_the_template_is_told_of_reasoning(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template of channels writes the effort into its prompt."""
    prompts: list[str] = []
    generate = model.generate

    def seen(ids: list[int], **options: Any) -> flashllm.Generation:
        prompts.append(model.tokenizer.decode(ids))
        return generate(ids, **options)

    monkeypatch.setattr(model, "generate", seen)
    for effort in ("auto", "medium", "high"):
        script(model, monkeypatch, *WRITTEN, "<|return|>")
        reasoning = flashllm.ReasoningOptions(effort=effort)  # type: ignore[arg-type]
        model.chat([QUESTION], reasoning=reasoning).complete()
    assert prompts[0] == prompts[1]
    assert prompts[2] == prompts[1].replace("medium", "high")
    with pytest.raises(UsageError, match="think is 'yes'; it may be auto, on, off"):
        flashllm.ReasoningOptions("yes")  # type: ignore[arg-type]
