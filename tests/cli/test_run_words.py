"""Which of the words of `flashllm run` are the model, and which the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashllm.cli.main import main
from flashllm.cli.run import prompt
from flashllm.cli.run.words import split_words
from flashllm.cli.shared import open_model
from flashllm.errors import ModelNotFound
from flashllm.library.names import ModelNames
from tests.support.fake_engine import FakeModel


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelNames:
    """Models called big and ocean."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("big", "ocean"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "manifest.json").touch()
    return ModelNames((tmp_path / "models",))


@pytest.mark.parametrize(
    ("words", "model", "text"),
    [
        ([], None, None),
        (["big"], "big", None),
        (["demo"], "demo", None),
        (["demo-moe", "What is rain?"], "demo-moe", "What is rain?"),
        (["big", "What is rain?"], "big", "What is rain?"),
        (["big", "What", "is", "rain?"], "big", "What is rain?"),
        (["What is rain?"], None, "What is rain?"),
        (["What", "is", "rain?"], None, "What is rain?"),
        (["ocean", "is", "what?"], "ocean", "is what?"),  # a name goes before a word
        (["a\nb"], None, "a\nb"),
        (["2 + 2"], None, "2 + 2"),
        (["do", "fish", "sleep"], None, "do fish sleep"),
        (["models/big", "hi"], "models/big", "hi"),
    ],
)
def test_words(words: list[str], model: str | None, text: str | None, names: ModelNames) -> None:
    assert split_words(words, names) == (model, text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["hello"], "To ask that: flashllm run -p hello"),
        (["bgi", "what", "is", "rain"], "did you mean big?"),
        (["bgi", "what is rain"], 'To ask that: flashllm run -p "bgi what is rain"'),
        (["name-7b", "hello"], "no model of that name"),
        (["name:latest", "hello"], "names have no tags here"),
        (["org/name", "hello"], "`flashllm pull org/name`"),
        (["./absent", "hello"], "no such directory"),
        (["model.gguf", "hello"], "no model of that name"),
    ],
)
def test_what_looks_like_a_model_is_no_prompt(
    words: list[str], expected: str, names: ModelNames
) -> None:
    with pytest.raises(ModelNotFound) as raised:
        split_words(words, names)
    assert expected in str(raised.value)


def test_where_the_prompt_is_given_a_word_is_a_model(names: ModelNames) -> None:
    with pytest.raises(ModelNotFound) as raised:
        split_words(["hello"], names, is_asked=True)
    assert "To ask" not in str(raised.value)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, names: ModelNames) -> FakeModel:
    model = FakeModel(["fine"])
    monkeypatch.setattr(prompt, "_has_piped_stdin", lambda wait: False)
    monkeypatch.setattr("flashllm.cli.run.words.usual_names", lambda: names)
    monkeypatch.setattr(open_model, "model_directory", lambda name: Path(name or "demo"))
    monkeypatch.setattr(open_model, "open_engine", lambda directory, arguments: model)
    return model


def asked(model: FakeModel) -> list[Any]:
    assert model.tokenizer is not None
    return [messages[-1]["content"] for messages in model.tokenizer.conversations]


def test_options_may_stand_anywhere(model: FakeModel) -> None:
    assert main(["run", "big", "-n", "3", "What", "is", "--temp", "0.5", "rain?"]) == 0
    assert main(["run", "--temp", "0.5", "big", "And", "sea?"]) == 0
    assert main(["run", "-n", "3", "--", "What", "is", "-5?"]) == 0
    assert asked(model) == ["What is rain?", "And sea?", "What is -5?"]


def test_a_dash_is_standard_input(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt, "_read_stdin", lambda: "piped")
    assert main(["run", "big", "-"]) == 0
    assert asked(model) == ["piped"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-p", "what", "does", "rain", "mean"], 'in quotes: -p "what does rain mean"'),
        (["big", "-p", "what", "is", "rain"], 'in quotes: -p "what is rain"'),
        (["-p", "a", "-p", "b"], "given twice"),
        (["big", "hi", "--ids", "1"], "two prompts"),
        (["big", ""], "the prompt is empty"),
    ],
)
def test_two_prompts_are_refused(
    model: FakeModel,
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert asked(model) == []
