"""One sparse model for the tests of the runtime, with predictors that are never wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import OPTForCausalLM

from flashllm.convert import convert
from flashllm.engine import Model, open_model
from tests.tiny import save_exact_predictors, save_opt, tiny_opt


def sparse_opt() -> OPTForCausalLM:
    """A model most of whose neurons are silent, as in those that the method is made for."""
    model = tiny_opt(num_hidden_layers=3, ffn_dim=320, max_position_embeddings=160)
    with torch.no_grad():
        for layer in model.model.decoder.layers:
            layer.fc1.bias -= 0.8
    return model.half().float()


@pytest.fixture(scope="session")
def sparse_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its converted directory."""
    root = tmp_path_factory.mktemp("sparse")
    model = sparse_opt()
    predictors = save_exact_predictors(model, root / "predictors.safetensors")
    convert(save_opt(model, root / "source"), root / "converted", predictors=predictors)
    return root / "converted"


@pytest.fixture
def model(sparse_model: Path) -> Iterator[Model]:
    """It, open, with the default settings."""
    with open_model(sparse_model) as opened:
        yield opened
