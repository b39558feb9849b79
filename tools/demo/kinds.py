"""The kinds of demo models: each is a family of Hugging Face transformers, by its shape.

A kind says how its shape stands in a config.json, and how its weights are called in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from .experts import NORM_EPS, ROPE_THETA, ExpertsDecoder, ExpertsShape
from .model import Decoder, Shape

AnyShape = Shape | ExpertsShape
AnyDecoder = Decoder | ExpertsDecoder
Tensors = dict[str, Tensor]

NOT_CHOSEN = ("vocab_size", "positions_max")
"""Sizes that the tokenizer and its template decide."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A family: its decoder, its keys in config.json, and its names of tensors."""

    name: str
    """The `model_type` of config.json."""
    shape: Callable[..., AnyShape]
    decoder: Callable[..., AnyDecoder]
    keys: Mapping[str, str]
    """Of config.json, by the field of the shape that each holds."""
    more: Mapping[str, object]
    """What config.json says of every model of the kind."""
    exported: Callable[[Mapping[str, Tensor]], Tensors]
    """A decoder's tensors by the names of a checkpoint."""
    imported: Callable[[Mapping[str, Tensor]], Tensors]
    """The other way round."""

    @property
    def sizes(self) -> list[str]:
        """Fields of the shape that one may choose."""
        return [name for name in self.keys if name not in NOT_CHOSEN]

    def config(self, shape: AnyShape) -> dict[str, object]:
        """The part of config.json that says which model it is."""
        sizes = {key: getattr(shape, field) for field, key in self.keys.items()}
        return {"model_type": self.name, **self.more, **sizes}

    def shape_in(self, config: Mapping[str, Any]) -> AnyShape:
        """The shape that a config.json describes."""
        return self.shape(**{field: config[key] for field, key in self.keys.items()})


def kind_of(shape: AnyShape) -> Kind:
    """The kind that a shape is of."""
    return next(kind for kind in KINDS.values() if kind.shape is type(shape))


OPT_PREFIX = "model.decoder."


def _opt_exported(tensors: Mapping[str, Tensor]) -> Tensors:
    return {OPT_PREFIX + name: tensor for name, tensor in tensors.items()}


def _opt_imported(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name.removeprefix(OPT_PREFIX): tensor for name, tensor in tensors.items()}


OPT = Kind(
    name="opt",
    shape=Shape,
    decoder=Decoder,
    keys={
        "vocab_size": "vocab_size",
        "d_model": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "ffn_dim": "ffn_dim",
        "positions_max": "max_position_embeddings",
    },
    more={
        "architectures": ["OPTForCausalLM"],
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "_remove_final_layer_norm": False,
        "tie_word_embeddings": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "layerdrop": 0.0,
        "init_std": 0.02,
        "use_cache": True,
    },
    exported=_opt_exported,
    imported=_opt_imported,
)

MATRICES = ("gate_proj", "up_proj", "down_proj")
ROUTER, ROUTER_IN_CHECKPOINT = "mlp.router.weight", "mlp.gate.weight"


def _experts_exported(tensors: Mapping[str, Tensor]) -> Tensors:
    """Each expert's matrices become tensors of their own."""
    named: Tensors = {}
    for name, tensor in tensors.items():
        block, _, last = name.rpartition(".mlp.")
        if last in MATRICES:
            for expert, matrix in enumerate(tensor):
                named[f"model.{block}.mlp.experts.{expert}.{last}.weight"] = matrix
        else:
            named["model." + name.replace(ROUTER, ROUTER_IN_CHECKPOINT)] = tensor
    return named


def _experts_imported(tensors: Mapping[str, Tensor]) -> Tensors:
    named: Tensors = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        block, _, rest = name.removeprefix("model.").partition(".mlp.experts.")
        if rest:
            expert, matrix, _ = rest.split(".")
            stacks.setdefault(f"{block}.mlp.{matrix}", {})[int(expert)] = tensor
        else:
            named[block.replace(ROUTER_IN_CHECKPOINT, ROUTER)] = tensor
    for name, stack in stacks.items():
        named[name] = torch.stack([stack[expert] for expert in range(len(stack))])
    return named


QWEN3_MOE = Kind(
    name="qwen3_moe",
    shape=ExpertsShape,
    decoder=ExpertsDecoder,
    keys={
        "vocab_size": "vocab_size",
        "d_model": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "experts": "num_experts",
        "experts_per_token": "num_experts_per_tok",
        "expert_ffn_dim": "moe_intermediate_size",
        "positions_max": "max_position_embeddings",
    },
    more={
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_THETA,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
    },
    exported=_experts_exported,
    imported=_experts_imported,
)

KINDS = {kind.name: kind for kind in (OPT, QWEN3_MOE)}
assert all(len(fields(kind.shape)) == len(kind.keys) for kind in KINDS.values())  # type: ignore[arg-type]
