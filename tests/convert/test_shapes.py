"""The built-in shapes: against the published numbers of parameters, and against transformers."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from flashllm.convert.families.known_shapes import SHAPES, describe_shape

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
}


def parameters(spec: ModelSpec) -> int:
    resident = sum(math.prod(shape) for shape in tensor_table(spec).values())
    return resident + spec.n_layers * spec.d_ffn * spec.rows_per_neuron * spec.d_model


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_published(name: str) -> None:
    published = PUBLISHED_BILLIONS[name.removesuffix("-relu")]
    assert parameters(describe_shape(name)) == pytest.approx(published * 1e9, rel=0.0035)


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_that_transformers_makes(name: str) -> None:
    values = {key: value for key, value in SHAPES[name].items() if key != "torch_dtype"}
    config = transformers.AutoConfig.for_model(**values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    # A tied head is one matrix, which `parameters` names once.
    assert parameters(describe_shape(name)) == sum(p.numel() for p in model.parameters())


def test_features_that_sizes_do_not_show() -> None:
    narrow = describe_shape("opt-350m")
    assert (narrow.norm_placement, narrow.embed_dim, narrow.final_norm) == ("post", 512, False)
    assert describe_shape("falcon-7b").shared_norm
    large = describe_shape("falcon-40b")
    assert (large.shared_norm, large.n_kv_heads, large.block) == (False, 8, "parallel")
    assert describe_shape("llama-7b-relu").gate == "resident"
    assert not describe_shape("llama-7b").sparse
    assert describe_shape("opt-6.7b").dtype == "f16"
    assert describe_shape("OPT-6.7B", dtype="f32").dtype == "f32"


def test_unknown_names_are_told_with_those_near() -> None:
    with pytest.raises(UsageError, match=r"opt-6\.8b: no such directory.*opt-6\.7b"):
        describe_shape("opt-6.8b")
    with pytest.raises(UsageError, match=r"opt-125m, opt-350m.*llama-70b-relu"):
        describe_shape("§")
