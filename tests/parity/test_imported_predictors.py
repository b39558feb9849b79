"""Predictors that others published, from a folder: exact ones name what the oracle names.

relu(x) - relu(-x) is x, so a predictor with relu in the middle and twice the width can compute the
pre-activation itself, but for the number that the norm divides by: published ones read the stream
before it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert, verify

from flashllm.engine.loading import load_decoder
from flashllm.flash.manifest import read_manifest
from tests.support.compare import oracle, prompt
from tests.support.tiny import tiny


def published(folder: Path, model: Any, **extra: Any) -> Path:
    """Exact predictors of a gated model, as a folder of PowerInfer."""
    folder.mkdir()
    eye = torch.eye(36)
    for index, layer in enumerate(model.model.layers):
        weight = layer.mlp.gate_proj.weight * layer.post_attention_layernorm.weight
        tensors = {
            "fc1.weight": torch.cat([eye, -eye]),
            "fc2.weight": torch.cat([weight, -weight], 1).detach(),
        }
        torch.save(tensors, folder / f"model_{index}.pt")
    if extra:
        (folder / "config.json").write_text(json.dumps(extra))
    return folder


def gated() -> Any:
    sizes = {"intermediate_size": 83, "num_key_value_heads": 2}
    return tiny("llama", hidden_act="relu", **sizes)


@pytest.mark.parametrize("extra", [{}, {"sparse_threshold": 0.0}])
def test_exact_ones(tmp_path: Path, extra: dict[str, float]) -> None:
    model = gated()
    model.save_pretrained(tmp_path / "source")
    folder = published(tmp_path / "predictors", model, **extra)

    convert(tmp_path / "source", tmp_path / "out", predictors=folder, allow_pickle=True)

    manifest = read_manifest(tmp_path / "out")
    assert manifest.spec.gate == "bundled"
    assert "predictors.safetensors" in manifest.files
    assert "activity.json" not in manifest.files
    assert verify(tmp_path / "out").ok
    found = {}
    for select in (None, "oracle"):
        decoder, _, store = load_decoder(tmp_path / "out", select=select)
        with store:
            assert decoder.selects == (select or "predicted")
            logits = [decoder.prefill(prompt(9, 97))]
            logits += [decoder.decode(token) for token in prompt(20, 97)]
            found[select] = np.stack(logits)
            counters = decoder.pool.counters
            assert 0 < counters.hits + counters.misses < 0.7 * 20 * 2 * 83
    # A neuron that is all but 0 may be named or not: the predictors are stored in f16.
    np.testing.assert_allclose(found[None], found["oracle"], atol=2e-2)
    expected = oracle(model)(prompt(9, 97) + prompt(20, 97))[8:]
    np.testing.assert_allclose(found[None], expected, atol=2e-2)


def random_ones(folder: Path, width: int, d_ffn: int, threshold: float) -> list[torch.nn.Module]:
    """A folder of predictors that know nothing, and the networks that they are."""
    folder.mkdir()
    networks = []
    for layer in range(2):
        first = torch.nn.Linear(width, 7, bias=False)
        second = torch.nn.Linear(7, d_ffn, bias=False)
        tensors = {"fc1.weight": first.weight.data, "fc2.weight": second.weight.data}
        torch.save(tensors, folder / f"model_{layer}.pt")
        networks.append(torch.nn.Sequential(first, torch.nn.ReLU(), second))
    (folder / "config.json").write_text(json.dumps({"sparse_threshold": threshold}))
    return networks


@pytest.mark.parametrize(
    ("model_type", "norm", "changes"),
    [
        ("llama", "post_attention_layernorm", {"hidden_act": "relu", "intermediate_size": 83}),
        ("falcon", "input_layernorm", {"activation": "relu", "ffn_hidden_size": 83}),
        (
            "falcon",
            "ln_mlp",
            {"activation": "relu", "ffn_hidden_size": 83, "new_decoder_architecture": True},
        ),
        (
            "falcon",
            "post_attention_layernorm",
            {"activation": "relu", "ffn_hidden_size": 83, "parallel_attn": False},
        ),
    ],
)
def test_they_read_what_the_norm_reads(
    tmp_path: Path, model_type: str, norm: str, changes: dict[str, Any]
) -> None:
    """In the first layer, which no earlier mistake has changed, with a threshold that is not 0."""
    torch.manual_seed(4)
    threshold = 0.02
    model = tiny(model_type, **changes)
    model.save_pretrained(tmp_path / "source")
    networks = random_ones(tmp_path / "predictors", 36, 83, threshold)
    convert(
        tmp_path / "source",
        tmp_path / "out",
        predictors=tmp_path / "predictors",
        allow_pickle=True,
    )
    body = model.transformer.h if model_type == "falcon" else model.model.layers
    read: list[torch.Tensor] = []
    getattr(body[0], norm).register_forward_pre_hook(lambda _, inputs: read.append(inputs[0][0]))
    ids = prompt(40, 97)
    oracle(model)(ids)
    with torch.no_grad():
        scores = networks[0](read[0]).numpy()
    chosen: dict[int, list[np.ndarray]] = {}
    tapped: dict[int, list[np.ndarray]] = {}
    decoder, _, store = load_decoder(tmp_path / "out", select="predicted")
    with store:
        for _ in decoder.logits_blocks(
            ids, "selected", chosen=lambda layer, each: chosen.setdefault(layer, []).extend(each)
        ):
            pass
        decoder.prefill(ids, tap=lambda layer, x, _: tapped.setdefault(layer, []).append(x))
        asked = [decoder.choose(0, x) for x in np.concatenate(tapped[0])]
        counters = decoder.pool.counters
        before = counters.hits + counters.misses
        decoder.decode(5)
        used = counters.hits + counters.misses - before
    assert 0 < used < 2 * 83
    sure = np.abs(scores - threshold) > 1e-3  # stored in f16
    assert sure.mean() > 0.9
    for row, certain, *found in zip(scores, sure, chosen[0], asked, strict=True):
        for names in found:
            named = np.isin(np.arange(83), names)
            assert np.array_equal(named[certain], (row > threshold)[certain])
    assert 0.03 < np.mean(scores > threshold) < 0.97
