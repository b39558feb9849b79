"""Mixtures of experts: against transformers, from every way of storing them, at every ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert, verify

from flashllm.engine.loading import load_decoder
from flashllm.engine.local import open_model
from flashllm.flash.manifest import read_manifest
from flashllm.model.router import SelectRouted
from flashllm.options import POLICIES
from flashllm.weight_cache.counters import StreamCounters
from tests.support.compare import Oracle, check_prefill, check_steps, oracle, prompt
from tests.support.smallthinker import SmallThinker
from tests.support.tiny import rewrite_config, tiny

QWEN: dict[str, Any] = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 19,
    "num_key_value_heads": 2,
    "head_dim": 10,
}
OLMOE: dict[str, Any] = {"num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 21}
MIXTRAL: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 45,
    "num_key_value_heads": 3,
}

GPT_OSS: dict[str, Any] = {
    **MIXTRAL,
    "head_dim": 10,
    "num_local_experts": 5,
    "sliding_window": 9,
    "num_hidden_layers": 3,
}

GLM: dict[str, Any] = {
    "n_routed_experts": 9,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 19,
    "intermediate_size": 45,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "head_dim": 12,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3_moe", QWEN),
    "qwen3_moe, weights of sum one": ("qwen3_moe", {**QWEN, "norm_topk_prob": True}),
    "qwen3_moe, biases of attention, tied": (
        "qwen3_moe",
        {**QWEN, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "qwen3_moe, window": (
        "qwen3_moe",
        {**QWEN, "use_sliding_window": True, "sliding_window": 9, "num_hidden_layers": 3},
    ),
    "qwen3_moe, one expert a token": ("qwen3_moe", {**QWEN, "num_experts_per_tok": 1}),
    "qwen3_moe, all experts for each": ("qwen3_moe", {**QWEN, "num_experts_per_tok": 7}),
    "olmoe": ("olmoe", OLMOE),
    "olmoe, grouped keys, weights of sum one": (
        "olmoe",
        {**OLMOE, "num_key_value_heads": 2, "norm_topk_prob": True, "hidden_act": "relu"},
    ),
    "mixtral": ("mixtral", MIXTRAL),
    "mixtral, window": ("mixtral", {**MIXTRAL, "sliding_window": 11}),
    "granitemoe, scaled in four places": (
        "granitemoe",
        {
            **MIXTRAL,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.3,
            "logits_scaling": 1.7,
        },
    ),
    "mellum": ("mellum", QWEN),
    "mellum, positions by kind of layer": (
        "mellum",
        {
            **QWEN,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 9,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gpt_oss": ("gpt_oss", GPT_OSS),
    "gpt_oss, much is cut off, other windows": (
        "gpt_oss",
        {
            **GPT_OSS,
            "swiglu_limit": 0.4,
            "swiglu_alpha": 1.3,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        },
    ),
    "glm4_moe, a dense layer, a shared expert": ("glm4_moe", GLM),
    "glm4_moe, groups, two dense layers, two shared experts": (
        "glm4_moe",
        {
            **GLM,
            "n_group": 3,
            "topk_group": 2,
            "first_k_dense_replace": 2,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.8,
            "attention_bias": True,
            "use_qk_norm": True,
        },
    ),
    "glm4_moe, weights as they are": (
        "glm4_moe",
        {**GLM, "norm_topk_prob": False, "first_k_dense_replace": 0},
    ),
}
STORED = [True, False]
"""Whether transformers undoes what it fuses when it loads a model: one tensor an expert, or all of
a layer's experts in two."""


def build(name: str, directory: Path) -> torch.nn.Module:
    """A model whose routers have favourites, as trained ones have."""
    model_type, changes = CASES[name]
    model = tiny(model_type, **changes)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("gate.weight", "router.weight")):
                scales = torch.linspace(0.5, 3.0, len(parameter))
                parameter.mul_(scales[:, None])
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                # Enough to change many choices.
                buffer.copy_(torch.linspace(0.4, -0.4, len(buffer)))
    model.save_pretrained(directory)
    return model


@pytest.fixture(scope="module", params=list(CASES))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Oracle, Path]:
    root = tmp_path_factory.mktemp("experts")
    model = build(request.param, root / "source")
    convert(root / "source", root / "converted")
    return oracle(model), root / "converted"


@pytest.mark.parametrize("length", [1, 5, 70])
def test_a_prompt(pair: tuple[Oracle, Path], length: int) -> None:
    check_prefill(*pair, length, select=None)


def test_step_by_step(pair: tuple[Oracle, Path]) -> None:
    check_steps(*pair, None)
    assert verify(pair[1]).ok


SMALLTHINKER: dict[str, dict[str, Any]] = {
    "positions everywhere": {},
    "some windows, some layers without positions, softmax": {
        "rope_layout": [1, 0, 1],
        "sliding_window_layout": [0, 0, 1],
        "moe_primary_router_apply_softmax": True,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("name", SMALLTHINKER)
def test_a_router_that_reads_the_input_of_its_block(tmp_path: Path, name: str) -> None:
    model = SmallThinker(**SMALLTHINKER[name])
    convert(model.save(tmp_path / "source"), tmp_path / "model")
    for length in (1, 5, 70):
        check_prefill(model, tmp_path / "model", length, select=None)
    check_steps(model, tmp_path / "model", None)


@pytest.mark.parametrize(
    "name",
    ["qwen3_moe", "olmoe", "mixtral", "granitemoe, scaled in four places", "mellum"],
)
def test_each_way_of_storing_experts_gives_the_same_model(tmp_path: Path, name: str) -> None:
    model = build(name, tmp_path / "one-by-one")
    model.save_pretrained(tmp_path / "fused", save_original_format=False)
    found = []
    for source in ("one-by-one", "fused"):
        convert(tmp_path / source, tmp_path / f"{source}-converted", dtype="f16")
        bundles = (tmp_path / f"{source}-converted" / "ffn.bundles").read_bytes()
        found.append(bundles[16384:])
    assert found[0] == found[1]
    assert len(found[0]) > 4096


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    """The arithmetic stays f32: the oracle computes so, with the values that the file holds."""
    model = tiny("qwen3_moe", **QWEN)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    expected = oracle(model)
    ids = prompt(40, model.config.vocab_size)
    wanted = expected(ids)
    model.to(dtype).save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "model")
    decoder, _, store = load_decoder(tmp_path / "model", kv_dtype="f32")
    with store:
        np.testing.assert_allclose(decoder.logits(ids), wanted, atol=1e-4, rtol=0)


def test_both_dialects_of_a_configuration(tmp_path: Path) -> None:
    build("qwen3_moe", tmp_path / "new")
    convert(tmp_path / "new", tmp_path / "of-new", dtype="f16")
    older = {"num_experts": QWEN["num_experts"], "rope_theta": 10000.0, "rope_scaling": None}
    older |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "torch_dtype": "float32"}
    rewrite_config(tmp_path / "new", older, ("num_local_experts", "rope_parameters", "dtype"))
    convert(tmp_path / "new", tmp_path / "of-old", dtype="f16")
    specs = [read_manifest(tmp_path / name).spec for name in ("of-new", "of-old")]
    assert specs[0] == specs[1]


TWELVE: dict[str, Any] = {"num_experts_per_tok": 3, "num_hidden_layers": 4}


@pytest.fixture(
    scope="module",
    params=[
        "f16",
        "int8",
        "int4",
        "biases, in int8",
        "a router that reads early, in int4",
        "a dense layer and a shared expert, in int8",
    ],
)
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of four layers of twelve experts, of which a token needs three."""
    root = tmp_path_factory.mktemp("ceilings")
    kind, _, dtype = request.param.rpartition(", in ")
    if kind == "biases":
        model = tiny("gpt_oss", **{**GPT_OSS, **TWELVE, "num_local_experts": 12})
        model.save_pretrained(root / "source")
    elif kind == "a router that reads early":
        layouts = {"rope_layout": [1, 0, 1, 1], "sliding_window_layout": [0, 0, 1, 0]}
        counts = {"moe_num_primary_experts": 12, "num_hidden_layers": 4}
        SmallThinker(**counts, **layouts).save(root / "source")
    elif kind == "a dense layer and a shared expert":
        counts = {"n_routed_experts": 12, "num_hidden_layers": 5}
        tiny("glm4_moe", **{**GLM, **TWELVE, **counts}).save_pretrained(root / "source")
    else:
        model = tiny("qwen3_moe", **{**QWEN, **TWELVE, "num_experts": 12})
        model.save_pretrained(root / "source")
    convert(root / "source", root / "model", dtype=dtype)
    return root / "model"


def answer(
    directory: Path, slots: int = 0, counted: StreamCounters | None = None, **options: Any
) -> tuple[list[int], np.ndarray]:
    """Twenty greedy tokens after a prompt that needs most experts, and the last logits.

    With so many `slots` a layer, where that is not the plan's number; `counted` gets the counts.
    """
    decoder, plan, store = load_decoder(directory, **options)
    with store:
        if slots:
            decoder.pool.resize((slots,) * len(plan.slots_per_layer))
        decoder.pool.counters = counted or decoder.pool.counters
        logits = decoder.prefill(prompt(30, decoder.spec.vocab_size))
        ids = []
        for _ in range(20):
            ids.append(int(np.argmax(logits)))
            logits = decoder.decode(ids[-1])
    return ids, logits


def test_same_bits_at_every_ceiling_policy_and_number_of_threads(converted: Path) -> None:
    expected = answer(converted)
    decoder, plan, store = load_decoder(converted)
    store.close()
    decoder.close()
    assert plan.slots_per_layer == (12,) * 4
    least = {"least": True}
    settings: list[dict[str, Any]] = [least, {**least, "io_threads": 1}, {"chunk_tokens": 4}]
    settings += [{**least, "policy": policy} for policy in POLICIES]
    settings += [{**least, "overlap": "none"}, {"verify": "off"}, {"direct": False}]
    for setting in settings:
        found = answer(converted, **setting)
        assert found[0] == expected[0], setting
        assert np.array_equal(found[1], expected[1]), setting


def test_what_routers_say_a_layer_early_changes_no_bit(
    converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, counted = answer(converted), StreamCounters()
    found = answer(converted, slots=6, counted=counted, overlap="layer")
    assert found[0] == expected[0]
    assert np.array_equal(found[1], expected[1])
    assert 0 < counted.prefetched_used <= counted.prefetched
    router = read_manifest(converted).spec.experts
    assert router is not None
    if router.router_input == "block":
        return  # what it says is certain

    def unlikely(self: SelectRouted, layer: int, x: np.ndarray) -> np.ndarray:
        return np.flatnonzero(self.weights(layer, x[None])[0] == 0)[:3].astype(np.int32)

    monkeypatch.setattr(SelectRouted, "ranked", unlikely)
    wrong = StreamCounters()
    found = answer(converted, slots=6, counted=wrong, overlap="layer")
    assert found[0] == expected[0]
    assert np.array_equal(found[1], expected[1])
    assert wrong.prefetched > 0
    assert wrong.prefetched_used * counted.prefetched < wrong.prefetched * counted.prefetched_used


def test_a_router_that_reads_the_blocks_input_begins_to_read_before_attention(
    converted: Path,
) -> None:
    decoder, _, store = load_decoder(converted, least=True)
    with store:
        decoder.prefill(prompt(30, decoder.spec.vocab_size))
        for token in (4, 9, 33, 21):
            decoder.decode(token)
        counted = decoder.pool.counters
    experts = decoder.spec.experts
    assert experts is not None
    assert (counted.prefetched > 0) == (experts.router_input == "block")
    assert counted.prefetched_used == counted.prefetched


def test_no_fewer_slots_than_a_token_has_experts(converted: Path) -> None:
    decoder, plan, store = load_decoder(converted, least=True)
    with store:
        assert plan.slots_per_layer == (3,) * 4
        decoder.prefill(prompt(30, decoder.spec.vocab_size))
        before = decoder.pool.counters.misses
        for token in (4, 9, 33, 21):
            decoder.decode(token)
        missed = decoder.pool.counters.misses - before
        assert 0 < missed <= 4 * 4 * 3
        assert decoder.pool.counters.extra_rounds == 0 or plan.needed_tokens > 1


def test_three_contexts_by_turns(converted: Path) -> None:
    prompts = [[5, 17, 40], list(range(20, 60)), [8, 61, 33, 12]]
    expected = []
    with open_model(converted) as model:
        for ids in prompts:
            expected.append([token.id for token in model.generate(ids, 12)])
    with open_model(converted, contexts=3) as model:
        contexts = [None, model.new_context(), model.new_context()]
        answers = [
            model.generate(ids, 12, context=context)
            for ids, context in zip(prompts, contexts, strict=True)
        ]
        found = [[token.id for token in tokens] for tokens in zip(*answers, strict=True)]
    assert [list(ids) for ids in zip(*found, strict=True)] == expected


def test_a_second_prompt_reads_nothing_where_there_is_room(converted: Path) -> None:
    with open_model(converted) as model:
        first = model.generate(list(range(3, 43)), 2)
        assert len(list(first)) == 2
        assert first.prefill.bytes_read > 0
        model.generate([7] * 3, 1)
        again = model.generate(list(range(43, 83)), 2)
        assert len(list(again)) == 2
        assert again.prefill.bytes_read == 0
