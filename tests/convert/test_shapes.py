"""Known models: against the published numbers of parameters, and against transformers."""

from __future__ import annotations

import math
import re

import pytest
import torch
import transformers
from flashllm.convert.families.known_shapes import (
    KNOWN,
    SHAPES,
    _plain,
    describe_shape,
    find_known,
    near_names,
)

from flashllm.errors import UsageError
from flashllm.flash.tensor_table import tensor_table
from flashllm.spec import ModelSpec

PUBLISHED_BILLIONS = {
    "opt-125m": 0.125,
    "opt-350m": 0.331,
    "opt-1.3b": 1.316,
    "opt-2.7b": 2.652,
    "opt-6.7b": 6.658,
    "opt-13b": 12.853,
    "opt-30b": 29.975,
    "opt-66b": 65.72,
    "opt-175b": 174.6,
    "falcon-7b": 6.922,
    "falcon-40b": 41.303,
    "llama-7b": 6.738,
    "llama-13b": 13.016,
    "llama-65b": 65.286,
    "llama-70b": 68.977,
    "relullama-7b": 6.738,
    "relullama-13b": 13.016,
    "prosparse-llama-2-7b": 6.738,
    "prosparse-llama-2-13b": 13.016,
    "bamboo-7b": 7.242,
    "turbosparse-mistral-7b": 7.242,
    "minicpm-s-1b": 1.361,
    "afm-4.5b": 4.619,
    "nemotron-mini-4b": 4.191,
    "minitron-8b": 8.27,
    "llama-2-7b": 6.738,
    "llama-2-13b": 13.016,
    "llama-3-8b": 8.030,
    "llama-3-70b": 70.554,
    "llama-3.1-8b": 8.030,
    "llama-3.1-70b": 70.554,
    "llama-3.1-405b": 405.853,
    "llama-3.2-1b": 1.236,
    "llama-3.2-3b": 3.213,
    "llama-3.3-70b": 70.554,
    "mistral-7b-v0.1": 7.242,
    "mistral-7b": 7.248,
    "ministral-8b": 8.020,
    "mistral-nemo-12b": 12.248,
    "mistral-small-24b": 23.572,
    "qwen2.5-0.5b": 0.494,
    "qwen2.5-1.5b": 1.544,
    "qwen2.5-3b": 3.086,
    "qwen2.5-7b": 7.616,
    "qwen2.5-14b": 14.770,
    "qwen2.5-32b": 32.764,
    "qwen2.5-72b": 72.706,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.721,
    "qwen3-4b": 4.022,
    "qwen3-8b": 8.191,
    "qwen3-14b": 14.768,
    "qwen3-32b": 32.762,
    "qwen3-30b-a3b": 30.532,
    "qwen3-30b-a3b-2507": 30.532,
    "qwen3-coder-30b-a3b": 30.532,
    "olmoe-1b-7b": 6.919,
    "mixtral-8x7b": 46.703,
    "glm-4.5-air": 106.85,
    "smallthinker-4b-a0.6b": 4.035,
    "smallthinker-21b-a3b": 21.5,
    "gpt-oss-20b": 20.915,
    "gpt-oss-120b": 116.829,
    "phi-1.5": 1.418,
    "phi-2": 2.780,
    "phi-3-mini": 3.821,
    "phi-3-medium": 13.960,
    "phi-4": 14.660,
}
"""Weights that the uploads hold; a tied head counts once."""
REMOTE_CODE = ("bamboo", "minicpm", "sparsellama", "smallthinker")
"""Of these transformers has no class of its own."""


def parameters(spec: ModelSpec) -> int:
    resident = sum(math.prod(shape) for shape in tensor_table(spec).values())
    bundled = spec.d_ffn * spec.rows_per_neuron * spec.d_model
    if spec.experts is not None and spec.experts.bias:
        bundled += 2 * spec.d_ffn + spec.experts.n_experts * spec.d_model
    return resident + spec.bundled_layers * bundled


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_published(name: str) -> None:
    published = PUBLISHED_BILLIONS[name.removesuffix("-relu")]
    assert parameters(describe_shape(name)) == pytest.approx(published * 1e9, rel=0.0035)


NATIVE = [name for name, config in SHAPES.items() if config["model_type"] not in REMOTE_CODE]


@pytest.mark.parametrize("name", NATIVE)
def test_parameters_are_those_that_transformers_makes(name: str) -> None:
    storage = ("torch_dtype", "quantization_config")
    values = {key: value for key, value in SHAPES[name].items() if key not in storage}
    config = transformers.AutoConfig.for_model(**values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    # A tied head is one matrix, which `parameters` names once; what only chooses experts is stored.
    biases = [b for called, b in model.named_buffers() if called.endswith("correction_bias")]
    expected = sum(values.numel() for values in (*model.parameters(), *biases))
    assert parameters(describe_shape(name)) == expected


def test_features_that_sizes_do_not_show() -> None:
    narrow = describe_shape("opt-350m")
    assert (narrow.norm_placement, narrow.embed_dim, narrow.final_norm) == ("post", 512, False)
    assert describe_shape("falcon-7b").shared_norm
    large = describe_shape("falcon-40b")
    assert (large.shared_norm, large.n_kv_heads, large.block) == (False, 8, "parallel")
    early = describe_shape("smallthinker-21b-a3b")
    assert (len(early.unrotated_layers), sum(map(bool, early.attention_windows))) == (13, 39)
    everywhere = describe_shape("smallthinker-4b-a0.6b")
    assert (everywhere.unrotated_layers, everywhere.attention_windows) == ((), ())
    assert describe_shape("llama-7b-relu").gate == "resident"
    assert not describe_shape("llama-7b").sparse
    assert describe_shape("opt-6.7b").dtype == "f16"
    assert describe_shape("OPT-6.7B", dtype="f32").dtype == "f32"


def test_positions_that_reach_further_than_trained() -> None:
    rope = describe_shape("llama-3.2-3b").rope
    assert rope is not None
    assert (rope.scaling, rope.factor, rope.original_positions) == ("llama3", 32.0, 8192)
    assert describe_shape("mistral-7b").attention_windows == ()
    assert describe_shape("mistral-7b-v0.1").attention_windows == (4096,) * 32
    assert describe_shape("phi-4").attention_windows == ()
    assert describe_shape("prosparse-llama-2-7b").activation_threshold == 0.01


def test_names_are_plain_and_differ_by_more_than_punctuation() -> None:
    plain = [_plain(model.name) for model in KNOWN.values()]
    plain += [_plain(model.repository) for model in KNOWN.values() if model.repository]
    assert len(set(plain)) == len(plain)
    for model in KNOWN.values():
        assert model.family
        if model.repository:
            assert re.fullmatch(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+", model.repository)


def test_those_that_are_listed_can_be_fetched() -> None:
    listed = [model for model in KNOWN.values() if model.listed]
    assert 10 <= len(listed) <= 24
    assert all(model.repository for model in listed)
    assert {describe_shape(model.name).sparse for model in listed} == {True, False}
    assert not KNOWN["llama-70b-relu"].repository  # only a shape
    assert not KNOWN["llama-3.3-70b"].listed  # what is like a listed one is not listed itself


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("opt-13b", "opt-13b"),
        ("OPT_1.3B", "opt-1.3b"),
        ("llama3-8b", "llama-3-8b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("qwen3-8b-instruct", "qwen3-8b"),
        ("mistral 7b", "mistral-7b"),
        ("phi4", "phi-4"),
        ("microsoft/phi-1_5", "phi-1.5"),
        ("opt", None),
        ("", None),
        ("../opt-13b/..", None),
    ],
)
def test_a_name_is_found_however_it_is_spelt(typed: str, name: str | None) -> None:
    found = find_known(typed)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("opt-6.8b", "opt-6.7b"),
        ("opt-14b", "opt-13b"),
        ("lama-7b", "llama-7b"),
        ("mistal", "mistral-7b"),
        ("qwen3-9b", "qwen3-8b"),
        ("phi3", "phi-3-mini"),
        ("meta-llama/Llama-3-8B", "llama-3-8b"),
    ],
)
def test_near_names_are_near(typed: str, first: str) -> None:
    assert near_names(typed)[0] == first


@pytest.mark.parametrize("typed", ["whisper", "gemma-2b", "§", "", "opt-1000b", "bert-base"])
def test_what_is_like_nothing_is_near_nothing(typed: str) -> None:
    assert near_names(typed) == []


def test_unknown_names_are_told_with_those_near() -> None:
    with pytest.raises(
        UsageError, match=r"opt-6\.8b: no such directory.*one of: opt-6\.7b, opt-13b$"
    ):
        describe_shape("opt-6.8b")
    with pytest.raises(UsageError, match="a name from `flashllm models --all`"):
        describe_shape("whisper")
