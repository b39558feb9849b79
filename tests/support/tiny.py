"""Tiny random checkpoints, written by transformers, with nothing left at its default value.

Freshly initialised models have zero biases and norms of ones: whatever is wrong with those would
not show. Here every parameter is random, and large enough to matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, OPTConfig, OPTForCausalLM
from transformers.activations import ACT2FN

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 200,
    "max_position_embeddings": 64,
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}


def tiny_opt(seed: int = 0, **changes: Any) -> OPTForCausalLM:
    """A random model; `changes` go over `SIZES`."""
    torch.manual_seed(seed)
    model = OPTForCausalLM(OPTConfig(**{**SIZES, **changes})).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "layer_norm.weight" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(noise * 0.7 / parameter.shape[1] ** 0.5)
    return model


COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


class FatRelu(torch.nn.Module):
    """Zero up to a threshold, the input itself above (Song et al. 2024, arXiv 2402.13516)."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > self.threshold, x, torch.zeros_like(x))


def tiny(model_type: str, seed: int = 0, **changes: Any) -> torch.nn.Module:
    """A random model of any family; `changes` go over `COMMON`."""
    torch.manual_seed(seed)
    if changes.get("hidden_act") == "fatrelu":
        ACT2FN["fatrelu"] = (FatRelu, {"threshold": changes["hidden_act_param"]})
    config = AutoConfig.for_model(model_type, **{**COMMON, **changes})
    # The usual products of experts want widths that fill registers.
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).eval()
    randomise(model, seed, zero_centred=model_type == "nemotron")
    return model


def randomise(model: torch.nn.Module, seed: int, zero_centred: bool = False) -> None:
    """Every parameter at random: norms around 1 (or 0, where 1 is added to them), biases not 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * 0.9 / parameter.shape[1] ** 0.5)
            elif name.endswith("weight") and not zero_centred:
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(0.3 * noise)


def rewrite_config(directory: Path, change: dict[str, Any], remove: tuple[str, ...] = ()) -> None:
    """Other keys in the `config.json` of a checkpoint."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    kept = {key: value for key, value in config.items() if key not in remove}
    path.write_text(json.dumps(kept | change))


def sparse_opt() -> OPTForCausalLM:
    """A model most of whose neurons are silent, with weights that f16 can represent."""
    model = tiny_opt(num_hidden_layers=3, ffn_dim=320, max_position_embeddings=160)
    with torch.no_grad():
        for layer in model.model.decoder.layers:
            layer.fc1.bias -= 0.8
    return model.half().float()


def save_opt(model: OPTForCausalLM, directory: Path, **options: Any) -> Path:
    """Write the checkpoint as transformers does."""
    model.save_pretrained(directory, **options)
    return directory


def save_opt_bin(model: OPTForCausalLM, directory: Path) -> Path:
    """Write the checkpoint as older versions of transformers did: a pickled state dict."""
    directory.mkdir()
    model.config.architectures = ["OPTForCausalLM"]
    model.config.save_pretrained(directory)
    state = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    torch.save(state, directory / "pytorch_model.bin")
    return directory


def save_exact_predictors(model: OPTForCausalLM, path: Path, threshold: float = 0.0) -> Path:
    """Predictors of full rank that compute the pre-activation itself: they are never wrong.

    Above a threshold of 0 they leave out neurons that are not zero. The model's weights must be
    representable in f16, as the predictors' are.
    """
    tensors: dict[str, torch.Tensor] = {}
    layers = model.model.decoder.layers
    width, d_ffn = model.config.hidden_size, model.config.ffn_dim
    for index, layer in enumerate(layers):
        tensors[f"layers.{index}.down"] = torch.eye(width).half()
        tensors[f"layers.{index}.up"] = layer.fc1.weight.detach().half().contiguous()
        tensors[f"layers.{index}.bias"] = layer.fc1.bias.detach().float()
        tensors[f"layers.{index}.threshold"] = torch.full((1,), threshold)
    save_file(tensors, path)
    needed = [[min(40 * window, d_ffn)] * len(layers) for window in WINDOWS]
    activity = {
        "calibration_tokens": 1,
        "heldout_tokens": 1,
        "windows": WINDOWS,
        "predicted": {"slots_needed": needed},
        "oracle": {"slots_needed": needed},
        "layers": [{"rank": width} for _ in layers],
        "mean": {"false_negatives": 0.0, "false_positives": 0.0},
    }
    (path.parent / "activity.json").write_text(json.dumps(activity))
    return path


WINDOWS = [1, 2, 5, 10, 50]
