"""What Python code sees of an open model: sizes, defaults, short descriptions, names."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flashllm
from flashllm.cli.main import parse
from flashllm.engine.answer import Request
from flashllm.engine.local import Model
from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.options import DEFAULT_MAX_TOKENS, ModelOptions
from flashllm.ui.commands.setting_values import ChatValues


@pytest.mark.parametrize("memory", ["2GiB", " 2 gib", "2048MiB", "2147483648", 2 << 30])
def test_a_ceiling_is_bytes_or_text(sparse_model: Path, memory: int | str) -> None:
    with flashllm.open_model(sparse_model, memory=memory) as model:
        assert model.plan.ceiling_bytes == 2 << 30
    options = ModelOptions(memory=memory)  # type: ignore[arg-type]
    with flashllm.open_model(sparse_model, options) as model:
        assert model.plan.ceiling_bytes == 2 << 30


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ("8 apples", "memory: '8 apples' is not a size; write it like 4GiB"),
        ("", "is not a size"),
        (8, 'memory is 8 bytes; did you mean memory="8GiB"'),
        (8.5, "memory is 8.5; expected bytes"),
        (True, "memory is True; expected bytes"),
        (-1, "memory is -1; expected bytes"),
        ([1], "memory is"),
    ],
)
def test_a_ceiling_that_is_none(sparse_model: Path, memory: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flashllm.open_model(sparse_model, memory=memory)


def test_a_small_ceiling_names_the_smallest(sparse_model: Path) -> None:
    with pytest.raises(MemoryCeilingTooSmall):
        flashllm.open_model(sparse_model, memory="10MiB")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": "4096"}, "context is '4096'; expected a whole number"),
        ({"contexts": 2.0}, "contexts is 2.0; expected a whole number"),
        ({"io_threads": True}, "io_threads is True"),
        ({"policy": "lruu"}, "expected one of blend, frequency"),
    ],
)
def test_options_that_are_none(sparse_model: Path, options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flashllm.open_model(sparse_model, **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompt": 5}, "the prompt is 5; expected a text, or a list of token ids"),
        ({"prompt": [1.5]}, r"the prompt is \[1.5\]"),
        ({"prompt": ["a"]}, "expected a text, or a list of token ids"),
        ({"prompt": b"abc"}, "expected a text, or a list of token ids"),
        ({"prompt": [5], "max_tokens": "5"}, "max_tokens is '5'; expected a whole number"),
        ({"prompt": [5], "max_tokens": -1}, "max_tokens is -1"),
        ({"prompt": [5], "sampling": {"temperature": 1}}, r"expected flashllm.Sampling\("),
    ],
)
def test_arguments_that_are_none(model: Model, arguments: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        model.generate(**arguments)
    assert len(model.generate([5], 2).complete().ids) == 2, "nothing is held"


def test_ids_may_be_of_numpy(model: Model) -> None:
    expected = model.generate([5, 6, 7], 4).complete()
    drawn = model.generate(np.array([5, 6, 7]), 4).complete()  # type: ignore[arg-type]
    assert drawn.ids == expected.ids
    assert (model.logits(np.array([5, 6])) == model.logits([5, 6])).all()  # type: ignore[arg-type]


def test_the_longest_answer_is_one_number_everywhere() -> None:
    assert parse(["run"]).max_tokens == parse(["chat"]).max_tokens == DEFAULT_MAX_TOKENS
    assert Request([]).max_tokens == ChatValues().max_tokens == DEFAULT_MAX_TOKENS
    assert Request.of([{"role": "user", "content": "x"}]).max_tokens == DEFAULT_MAX_TOKENS
    parameter = inspect.signature(Model.generate).parameters["max_tokens"]
    assert parameter.default == DEFAULT_MAX_TOKENS


def test_descriptions_are_short_and_useful(model: Model) -> None:
    generation = model.generate([5, 6, 7], 2)
    assert repr(generation) == "<Generation: 0 tokens, not finished>"
    token = next(generation)
    assert repr(token) == f"Token(id={token.id}, text='')"
    generation.complete()
    assert repr(generation) == "<Generation: 2 tokens, length>"
    assert repr(model.decoder.context) == "<Context: 4 of 160 tokens>"
    assert repr(model).startswith("<Model 'source': 3 layers, f32, in ")
    model.close()
    assert repr(model) == "<Model 'source': 3 layers, f32, closed>"
    assert repr(ModelOptions()) == "ModelOptions()"
    assert repr(ModelOptions(memory=5, policy="lru")) == "ModelOptions(memory=5, policy='lru')"


def test_the_package_shows_what_it_offers() -> None:
    assert dir(flashllm) == sorted(flashllm.__all__)
    for name in flashllm.__all__:
        assert getattr(flashllm, name) is not None
    assert flashllm.errors.EngineBusy.exit_code == 75
    with pytest.raises(AttributeError, match="no attribute 'open_modle'"):
        flashllm.open_modle  # noqa: B018
