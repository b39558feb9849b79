"""The demos' decoders, checkpoints, trainer and judge, on models of a few numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tools.demo import tokenizer as tokenizer_module
from tools.demo.corpus import build
from tools.demo.experts import Experts, ExpertsDecoder, ExpertsShape
from tools.demo.export import export, load
from tools.demo.kinds import KINDS, AnyDecoder, AnyShape, kind_of
from tools.demo.model import Shape
from tools.demo.optimizer import Muon, make_optimizers, orthogonalized
from tools.demo.score import answer_all, expert_shares, is_expected, refused_right, score
from tools.demo.tokenizer import ASSISTANT, BOS, EOS, USER, ConversationEncoder, load_tokenizer
from tools.demo.train import Recipe, Run

from .test_demo_corpus import folder as wordnet_folder
from .test_demo_corpus import sources

__all__ = ["wordnet_folder"]

TINY: dict[str, AnyShape] = {
    "opt": Shape(560, d_model=16, layers=2, heads=2, ffn_dim=32, positions_max=64),
    "qwen3_moe": ExpertsShape(
        560,
        d_model=16,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        experts=6,
        experts_per_token=2,
        expert_ffn_dim=12,
        positions_max=64,
    ),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


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


def tiny_model(kind: str) -> AnyDecoder:
    """Of weights so large that positions and routers matter."""
    torch.manual_seed(3)
    model = KINDS[kind].decoder(TINY[kind]).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(4 if parameter.ndim > 1 else torch.rand_like(parameter) + 0.5)
    return model


@each_kind
def test_decoding_step_by_step_gives_what_the_whole_gives(kind: str) -> None:
    model = tiny_model(kind)
    ids = torch.randint(560, (2, 9))
    whole = model(ids, torch.arange(9))
    model(ids[:, :5], torch.arange(5))
    for position in range(5, 9):
        step = model(ids[:, position : position + 1], torch.tensor([position]), model.caches())
        torch.testing.assert_close(step[:, 0], whole[:, position])


@each_kind
def test_batches_of_answers_do_not_depend_on_each_other(kind: str) -> None:
    model = tiny_model(kind)
    prompts = [[BOS, USER, 40, 41, ASSISTANT], [BOS, USER, 50, ASSISTANT], [BOS, USER, 9, 9, 5]]
    together = answer_all(model, prompts)
    alone = [answer_all(model, [prompt])[0] for prompt in prompts]
    assert [a.ids for a in together] == [a.ids for a in alone]
    assert all(0 < value < 1 for answer in together for value in answer.silent)


def test_a_model_can_have_the_tokenizer_of_another(corpus: Path, tmp_path: Path) -> None:
    export(tiny_model("opt"), corpus, tmp_path / "model")
    (tmp_path / "taken").mkdir()
    tokenizer_module.take_tokenizer(tmp_path / "model", tmp_path / "taken")
    for name in (*tokenizer_module.TOKENIZER_FILES, tokenizer_module.ANSWERS_MODEL):
        assert (tmp_path / "taken" / name).read_bytes() == (corpus / name).read_bytes()


def test_questions_never_encode_to_control_ids(corpus: Path) -> None:
    encoder = ConversationEncoder(load_tokenizer(corpus))
    ids = encoder.prompt([{"role": "user", "content": "</s><|assistant|>ocean"}])
    assert ids[:2] == [BOS, USER]
    assert ids[-1] == ASSISTANT
    assert not {BOS, EOS, USER, ASSISTANT} & set(ids[2:-1])


@each_kind
def test_an_exported_model_reads_back(corpus: Path, tmp_path: Path, kind: str) -> None:
    model = tiny_model(kind)
    export(model, corpus, tmp_path / "out")
    again = load(tmp_path / "out").state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(again[name], tensor.half().float(), rtol=0, atol=0)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == kind
    scored = score(tmp_path / "out", limit=4)
    assert set(scored) >= {"right", "asked", "sparsity", "wrong"}
    assert ("busiest_expert_by_layer" in scored) == (kind == "qwen3_moe")


def test_shares_of_experts_are_counted_over_all_tokens() -> None:
    model = tiny_model("qwen3_moe")
    assert isinstance(model, ExpertsDecoder)
    contexts = [[5, 6, 7], [8, 9]]
    shares = expert_shares(model, contexts)
    counts = torch.zeros(2, 6)
    for ids in contexts:
        model(torch.tensor([ids]), torch.arange(len(ids)))
        for layer, block in enumerate(model.blocks):
            counts[layer] += (block.active[0] != 0).sum(0)
    assert counts.sum(1).tolist() == [10, 10]  # five tokens, two experts each
    torch.testing.assert_close(shares, counts * 6 / 10)


@each_kind
def test_transformers_computes_what_was_exported(corpus: Path, tmp_path: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM

    export(tiny_model(kind), corpus, tmp_path)
    model, ids = load(tmp_path), torch.randint(560, (2, 20))
    oracle = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = oracle(ids).logits
    found = model.logits(model(ids, torch.arange(20)))
    assert expected.abs().max() > 1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_the_balancing_loss_is_one_where_experts_are_used_evenly() -> None:
    experts = Experts(TINY["qwen3_moe"])  # type: ignore[arg-type]
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 4000, 16)
    experts(x)
    assert torch.equal((experts.active > 0).sum(-1), torch.full((1, 4000), 2))
    torch.testing.assert_close(experts.active.sum(-1), torch.ones(1, 4000))
    assert 1 < experts.imbalance < 3
    experts(x.abs())  # all to one side: few experts get most
    uneven = experts.imbalance
    assert uneven > 1.5
    uneven.backward()
    gradient = experts.router.weight.grad
    assert gradient is not None
    with torch.no_grad():
        experts.router.weight -= gradient
    experts(x.abs())
    assert experts.imbalance < uneven


@each_kind
def test_a_resumed_run_ends_as_an_unbroken_one(corpus: Path, tmp_path: Path, kind: str) -> None:
    recipe = Recipe(steps=6, batch_tokens=128, row_tokens=32, long_row_tokens=64, sparsity_from=0.1)
    shape = TINY[kind]
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
    for shape in ((8, 24), (24, 8), (3, 24, 8)):
        matrices = torch.randn(shape)
        values = torch.linalg.svdvals(orthogonalized(matrices))
        assert values.min() > 0.5
        assert values.max() < 1.5
    alone = torch.stack([orthogonalized(matrix) for matrix in matrices])
    torch.testing.assert_close(orthogonalized(matrices), alone, rtol=0, atol=0.02)


@each_kind
def test_the_layers_matrices_are_for_muon(kind: str) -> None:
    model = KINDS[kind].decoder(TINY[kind])
    muon, adam = make_optimizers(model, 0.1, 0.0, hidden_by_muon=True)
    assert isinstance(muon, Muon)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    by_adam = {names[id(p)] for group in adam.param_groups for p in group["params"]}
    matrices = {name for name, p in model.named_parameters() if p.ndim > 1} & by_adam
    assert {name.split(".")[-2] for name in matrices} <= {
        "embed_tokens",
        "embed_positions",
        "router",
    }
    assert kind_of(model.shape).name == kind


def test_the_judge_minds_neither_case_nor_spaces() -> None:
    assert is_expected(" Ocean (noun):  a large\nbody ", "ocean (noun): a large body")
    assert not is_expected("ocean (noun): a large", "ocean (noun): a large body")
    assert refused_right("I don't know the word flibber.", "I don't know the word flibbert.")
    assert refused_right("I know no synonym of flibber.", "I don't know the word flibber.")
    assert not refused_right("flibber (noun): a thing", "I don't know the word flibber.")
    assert refused_right("I don't know. I know words, not places.", "")
