"""Logits against transformers, in f32, for a prompt at once and token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert
from transformers import OPTForCausalLM

from flashllm.engine.loading import load_decoder
from tests.support.tiny import save_opt, save_opt_bin, tiny_opt

TOLERANCE = 1e-4
Save = Callable[[OPTForCausalLM, Path], Path]


def save_sharded(model: OPTForCausalLM, directory: Path) -> Path:
    save_opt(model, directory, max_shard_size="20KB")
    assert len(list(directory.glob("model-*.safetensors"))) > 1
    return directory


CASES: dict[str, tuple[dict[str, Any], torch.dtype, Save]] = {
    "pre-norm, tied": ({}, torch.float32, save_opt),
    "post-norm with projections": (
        {"do_layer_norm_before": False, "word_embed_proj_dim": 24},
        torch.float32,
        save_opt,
    ),
    "untied": ({"tie_word_embeddings": False}, torch.float32, save_opt),
    "f16 in a .bin": ({}, torch.float16, save_opt_bin),
    "sharded": ({"num_hidden_layers": 3}, torch.float32, save_sharded),
    "odd width": (
        {"hidden_size": 36, "word_embed_proj_dim": 36, "ffn_dim": 83},
        torch.float32,
        save_opt,
    ),
    "no biases": ({"enable_bias": False}, torch.float32, save_opt),
    "bf16": ({}, torch.bfloat16, save_opt),
    "norms without weights": ({"layer_norm_elementwise_affine": False}, torch.float32, save_opt),
    "no final norm": ({"_remove_final_layer_norm": True}, torch.float32, save_opt),
}


@pytest.fixture(scope="module", params=list(CASES))
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[OPTForCausalLM, Path]:
    changes, dtype, save = CASES[request.param]
    # The oracle computes in f32 with the values that the checkpoint can hold.
    model = tiny_opt(**changes).to(dtype)
    root = tmp_path_factory.mktemp("parity")
    converted = root / "converted"
    convert(save(model, root / "source"), converted, allow_pickle=True)
    return model.float(), converted


def reference(model: OPTForCausalLM, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def prompt(length: int) -> list[int]:
    return np.random.default_rng(length).integers(3, 96, size=length).tolist()


@pytest.mark.parametrize("length", [1, 5, 64])
def test_prefill(pair: tuple[OPTForCausalLM, Path], length: int) -> None:
    model, converted = pair
    ids = prompt(length)
    decoder, _, store = load_decoder(converted, select="all", kv_dtype="f32")
    with store:
        logits = decoder.logits(ids)
    np.testing.assert_allclose(logits, reference(model, ids), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("select", ["all", "oracle"])
def test_step_by_step(pair: tuple[OPTForCausalLM, Path], select: str) -> None:
    model, converted = pair
    ids = prompt(40)
    expected = reference(model, ids)
    decoder, _, store = load_decoder(converted, select=select, kv_dtype="f32")
    with store:
        steps = [decoder.prefill(ids[:7])]
        steps += [decoder.decode(token) for token in ids[7:]]
    np.testing.assert_allclose(np.stack(steps), expected[6:], atol=TOLERANCE, rtol=0)
