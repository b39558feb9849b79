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

from flashllm.errors import UsageError
from flashllm.flash.layout import read_manifest
from flashllm.loading import load_decoder
from tests.parity.compare import oracle, prompt
from tests.tiny import tiny


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

    convert(tmp_path / "source", tmp_path / "out", predictors=folder)

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


def test_a_threshold_of_what_cannot_be_known(tmp_path: Path) -> None:
    model = gated()
    model.save_pretrained(tmp_path / "source")
    folder = published(tmp_path / "predictors", model, sparse_threshold=0.5)
    with pytest.raises(UsageError, match=r"their threshold is 0\.5"):
        convert(tmp_path / "source", tmp_path / "out", predictors=folder)
    assert not (tmp_path / "out").exists()


def test_a_norm_that_hides_what_they_read(tmp_path: Path) -> None:
    falcon = tiny("falcon", activation="relu", ffn_hidden_size=83)
    falcon.save_pretrained(tmp_path / "source")
    folder = published(tmp_path / "predictors", gated())
    with pytest.raises(UsageError, match="what a layer norm puts out does not tell"):
        convert(tmp_path / "source", tmp_path / "out", predictors=folder)
    assert not (tmp_path / "out").exists()
