"""Checkpoints of transformers as GGUF files, by the package that owns the format.

Names of tensors and the arithmetic of types are the package's, so that nothing here follows the
converter's own tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)\.weight")
_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_KEYS_OF = {
    "glm4moe": {
        "leading_dense_block_count": "first_k_dense_replace",
        "expert_shared_count": "n_shared_experts",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": "norm_topk_prob",
        "expert_group_count": "n_group",
        "expert_group_used_count": "topk_group",
    },
}
"""What the published converter of each architecture says besides."""
_OTHER_NAMES = {
    "expert_count": ("num_experts", "n_routed_experts", "moe_num_primary_experts"),
    "expert_used_count": ("moe_num_active_primary_experts",),
    "expert_feed_forward_length": ("moe_ffn_hidden_size",),
}
PAIRED = ("llama", "arcee")
"""Architectures whose rotations turn neighbours (llama.cpp: `LLAMA_ROPE_TYPE_NORM`)."""


@dataclass(frozen=True)
class Written:
    """A GGUF file, and a checkpoint of transformers with the values that it holds."""

    gguf: Path
    checkpoint: Path
    decoded: dict[str, np.ndarray]
    """By the names in the GGUF."""


def write_gguf(
    source: Path,
    root: Path,
    architecture: str,
    kind: str = "F32",
    *,
    kinds: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    parts: int = 1,
) -> Written:
    """The checkpoint in `source`; matrices get the type `kind`, single tensors their `kinds`."""
    config = json.loads((source / "config.json").read_text())
    names = gguf.get_tensor_name_map(_arch(architecture), config["num_hidden_layers"])
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors, origins = {}, {}
    for name, values in _stacked(load_file(source / "model.safetensors")).items():
        # As the published converter renames it, so that the package knows it.
        plain_name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        theirs = names.get_name(plain_name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        pairs = heads.get(theirs.split(".")[-2], 0) if architecture in PAIRED else 0
        tensors[theirs], origins[theirs] = paired(values, pairs), (name, pairs)
    path = root / "model.gguf"
    options = {"split_max_tensors": -(-len(tensors) // parts)} if parts > 1 else {}
    writer = gguf.GGUFWriter(path, architecture, **options)
    for key, value in (_metadata(config, architecture) | dict(metadata or {})).items():
        if value is not None:
            add(writer, key, value)
    decoded, exact = {}, {}
    for name, values in tensors.items():
        plain = values.ndim == 1 or "ffn_gate_inp" in name
        own = gguf.GGMLQuantizationType[(kinds or {}).get(name, "F32" if plain else kind)]
        data = gguf.quants.quantize(values, own)
        writer.add_tensor(name, data, raw_dtype=own)
        decoded[name] = gguf.quants.dequantize(data, own)
        theirs, pairs = origins[name]
        exact |= dict(_apart(theirs, unpaired(decoded[name], pairs)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = root / "decoded"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(config))
    save_file(exact, checkpoint / "model.safetensors", {"format": "pt"})
    return Written(path, checkpoint, decoded)


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """A key of the metadata, of the type that llama.cpp gives such values."""
    types = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        types[type(value)](key, value)


def paired(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head in pairs, one of its first half and one of its second."""
    if not heads:
        return values
    turned = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2)
    return np.ascontiguousarray(turned.reshape(values.shape))


def unpaired(values: np.ndarray, heads: int) -> np.ndarray:
    """The opposite."""
    if not heads:
        return np.ascontiguousarray(values)
    turned = values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2)
    return np.ascontiguousarray(turned.reshape(values.shape))


def _arch(name: str) -> gguf.MODEL_ARCH:
    return next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)


def _metadata(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    found = {
        f"{architecture}.{key}": config[name]
        for key, name in {**_KEYS, **_KEYS_OF.get(architecture, {})}.items()
        if config.get(name) is not None
    }
    for key, others in _OTHER_NAMES.items():
        for name in others:
            if name in config:
                found[f"{architecture}.{key}"] = config[name]
    if architecture == "smallthinker":
        softmax = config["moe_primary_router_apply_softmax"]
        found[f"{architecture}.expert_gating_func"] = 1 if softmax else 2
        if any(config["sliding_window_layout"] or ()):
            found[f"{architecture}.attention.sliding_window"] = config["sliding_window_size"]
    if architecture == "glm4moe":
        found[f"{architecture}.expert_gating_func"] = 2
        share = config["rope_parameters"]["partial_rotary_factor"]
        found[f"{architecture}.rope.dimension_count"] = int(config["head_dim"] * share)
    theta = (config.get("rope_parameters") or config).get("rope_theta", 10000.0)
    return {
        **found,
        f"{architecture}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{architecture}.rope.freq_base": float(theta),
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }


def _stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts of a layer in one tensor for each matrix."""
    found: dict[str, Any] = {}
    for name in sorted(tensors):
        match = _EXPERT.fullmatch(name)
        if match is None:
            found[name] = tensors[name]
        else:
            own = found.setdefault(f"{match[1]}.{match[3]}.weight", {})
            own[int(match[2])] = tensors[name]
    return {
        name: np.stack([value[e] for e in range(len(value))]) if isinstance(value, dict) else value
        for name, value in found.items()
    }


def _apart(name: str, values: np.ndarray) -> Any:
    """The opposite for one tensor."""
    if values.ndim < 3:
        yield name, values.astype(np.float32)
        return
    block, matrix = name.removesuffix(".weight").rsplit(".", 1)
    for expert, own in enumerate(values):
        yield f"{block}.{expert}.{matrix}.weight", np.ascontiguousarray(own, np.float32)
