"""The demo's decoder, its checkpoint, its trainer and its judge, on a model of a few numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tools.demo import tokenizer as tokenizer_module
from tools.demo.corpus import build
from tools.demo.export import export, load
from tools.demo.model import Decoder, Shape
from tools.demo.optimizer import orthogonalized
from tools.demo.score import answer_all, is_expected, refused_right, score
from tools.demo.tokenizer import ASSISTANT, BOS, EOS, USER, ConversationEncoder, load_tokenizer
from tools.demo.train import Recipe, Run

from .test_demo_corpus import folder as wordnet_folder
from .test_demo_corpus import sources

__all__ = ["wordnet_folder"]

TINY = {"d_model": 16, "layers": 2, "heads": 2, "ffn_dim": 32, "positions_max": 64}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On work this small, more threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def corpus(wordnet_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    out = wordnet_folder / "corpus"
    material = build(sources(wordnet_folder), out, words=3, seed=1)
    monkeypatch.setattr(tokenizer_module, "VOCAB_SIZE", 560)
    tokenizer_module.train_tokenizer(material, out, conversations=400, seed=1)
    return out


def tiny_model() -> Decoder:
    torch.manual_seed(3)
    return Decoder(Shape(560, **TINY)).eval().requires_grad_(False)


def test_decoding_step_by_step_gives_what_the_whole_gives() -> None:
    model = tiny_model()
    ids = torch.randint(560, (2, 9))
    whole = model(ids, torch.arange(9))
    model(ids[:, :5], torch.arange(5))
    for position in range(5, 9):
        step = model(ids[:, position : position + 1], torch.tensor([position]), model.caches())
        torch.testing.assert_close(step[:, 0], whole[:, position])


def test_batches_of_answers_do_not_depend_on_each_other() -> None:
    model = tiny_model()
    prompts = [[BOS, USER, 40, 41, ASSISTANT], [BOS, USER, 50, ASSISTANT], [BOS, USER, 9, 9, 5]]
    together = answer_all(model, prompts)
    alone = [answer_all(model, [prompt])[0] for prompt in prompts]
    assert [a.ids for a in together] == [a.ids for a in alone]
    assert all(0 < value < 1 for answer in together for value in answer.silent)


def test_questions_never_encode_to_control_ids(corpus: Path) -> None:
    encoder = ConversationEncoder(load_tokenizer(corpus))
    ids = encoder.prompt([{"role": "user", "content": "</s><|assistant|>ocean"}])
    assert ids[:2] == [BOS, USER]
    assert ids[-1] == ASSISTANT
    assert not {BOS, EOS, USER, ASSISTANT} & set(ids[2:-1])


def test_an_exported_model_reads_back(corpus: Path, tmp_path: Path) -> None:
    model = tiny_model()
    export(model, corpus, tmp_path / "out")
    again = load(tmp_path / "out").state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(again[name], tensor.half().float(), rtol=0, atol=0)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "opt"
    assert set(score(tmp_path / "out", limit=4)) >= {"right", "asked", "sparsity", "wrong"}


def test_a_resumed_run_ends_as_an_unbroken_one(corpus: Path, tmp_path: Path) -> None:
    recipe = Recipe(steps=6, batch_tokens=128, row_tokens=32, long_row_tokens=64, sparsity_from=0.1)
    shape = Shape(560, **TINY)
    unbroken = Run(recipe, shape, corpus, tmp_path / "unbroken")
    unbroken.train(save_seconds=1e9, log_steps=1)
    broken = Run(recipe, shape, corpus, tmp_path / "broken")
    for _ in range(3):
        broken.train_step()
    broken.save()
    resumed = Run(recipe, shape, corpus, tmp_path / "broken")
    resumed.resume()
    assert resumed.step == 3
    resumed.train(save_seconds=1e9, log_steps=1)
    for name, tensor in unbroken.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], tensor, rtol=0, atol=0)


def test_orthogonalized_brings_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((8, 24), (24, 8)):
        values = torch.linalg.svdvals(orthogonalized(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.5


def test_the_judge_minds_neither_case_nor_spaces() -> None:
    assert is_expected(" Ocean (noun):  a large\nbody ", "ocean (noun): a large body")
    assert not is_expected("ocean (noun): a large", "ocean (noun): a large body")
    assert refused_right("I don't know the word flibber.", "I don't know the word flibbert.")
    assert refused_right("I know no synonym of flibber.", "I don't know the word flibber.")
    assert not refused_right("flibber (noun): a thing", "I don't know the word flibber.")
    assert refused_right("I don't know. I know words, not places.", "")
