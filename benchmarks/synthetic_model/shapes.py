"""Which shapes can be written: the built-in ones of families that have makers, and small ones."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashllm.convert.families.config import CONFIG_FILE, Config
from flashllm.convert.families.known_shapes import SHAPES as BUILT_IN
from flashllm.convert.families.spec_from_config import describe_config

from flashllm.errors import UsageError
from flashllm.spec import ModelSpec

from . import falcon, llama, opt
from .tensors import Maker, Tensor

Makers = Callable[[ModelSpec, Maker], Iterator[Tensor]]
MAKERS: dict[str, Makers] = {
    "opt": opt.tensors,
    "falcon": falcon.tensors,
    "llama": llama.tensors,
}
ACTIVATION_KEYS = ("activation_function", "activation", "hidden_act")
LAYERS_KEY = "num_hidden_layers"
NOTE = "random weights with calibrated activity"
NOTE_PREDICTORS = (
    "; predictors.safetensors beside them holds the generator's own low-rank factors, nothing that"
    " was trained"
)
TORCH_DTYPES = {"f32": "float32", "f16": "float16"}


def _tiny(name: str, **sizes: int) -> dict[str, Any]:
    config: dict[str, Any] = BUILT_IN[name]
    return config | {"max_position_embeddings": 512, "vocab_size": 600} | sizes


_SMALL = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4}
TINY = {
    "tiny": _tiny(
        "opt-125m", num_hidden_layers=3, hidden_size=96, num_attention_heads=4, ffn_dim=1024,
        word_embed_proj_dim=96, max_position_embeddings=128,
    ),
    "small-opt": _tiny("opt-125m", **_SMALL, ffn_dim=2048, word_embed_proj_dim=256),
    "small-falcon": _tiny("falcon-7b", **_SMALL),
    "small-llama": _tiny(
        "llama-7b-relu", **_SMALL, num_key_value_heads=4, intermediate_size=2048
    ),
}  # fmt: skip
_LONG = {"max_position_embeddings": 40_960, "rope_theta": 1e6}
GROUPED = {
    "small-llama-grouped": _tiny(
        "llama-7b-relu", **_SMALL, num_key_value_heads=2, intermediate_size=2048
    ) | _LONG,
    "llama-7b-grouped-relu": BUILT_IN["llama-7b-relu"] | {"num_key_value_heads": 8} | _LONG,
}  # fmt: skip
"""Query heads that share keys, and long contexts: no published model with this activation."""
SHAPES = {
    name: config
    for name, config in (TINY | GROUPED | BUILT_IN).items()
    if config["model_type"] in MAKERS and "relu" in map(config.get, ACTIVATION_KEYS)
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What is to be written."""

    config: dict[str, Any]
    """Content of `config.json`, marked as synthetic."""
    spec: ModelSpec

    def tensors(self, seed: int, dtype: str) -> list[Tensor]:
        """In the order of the file."""
        return list(MAKERS[self.config["model_type"]](self.spec, Maker(seed, dtype)))


def shape_of(name: str, layers: int | None, dtype: str, seed: int) -> Shape:
    """A shape by its name, with `layers` layers; `UsageError` for an unknown name."""
    if name not in SHAPES:
        near = difflib.get_close_matches(name, SHAPES, n=3) or sorted(SHAPES)
        raise UsageError(f"{name}: no such shape; one of: {', '.join(near)}")
    config = SHAPES[name] | {
        "torch_dtype": TORCH_DTYPES[dtype],
        "flashllm_synthetic": True,
        "flashllm_synthetic_shape": name,
        "flashllm_synthetic_seed": seed,
    }
    if layers is not None:
        if layers < 1:
            raise UsageError(f"--layers {layers}: expected 1 or more")
        config[LAYERS_KEY] = layers
    spec = describe_config(Config(Path(name) / CONFIG_FILE, dict(config)))
    config["flashllm_synthetic_note"] = NOTE if spec.gated else NOTE + NOTE_PREDICTORS
    return Shape(config, spec)
