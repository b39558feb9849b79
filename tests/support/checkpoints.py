"""Checkpoints for the converter's tests, written without torch: fast, and every value is random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIG: dict[str, Any] = {
    "model_type": "opt",
    "vocab_size": 40,
    "hidden_size": 12,
    "word_embed_proj_dim": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "ffn_dim": 20,
    "max_position_embeddings": 16,
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 2,
}

Tensors = dict[str, NDArray[Any]]


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of what transformers saves for a configuration."""
    width, ffn = config["hidden_size"], config["ffn_dim"]
    embed = config["word_embed_proj_dim"]
    table: dict[str, tuple[int, ...]] = {
        "model.decoder.embed_tokens.weight": (config["vocab_size"], embed),
        "model.decoder.embed_positions.weight": (config["max_position_embeddings"] + 2, width),
    }
    if embed != width:
        table["model.decoder.project_in.weight"] = (width, embed)
        table["model.decoder.project_out.weight"] = (embed, width)
    if not config["tie_word_embeddings"]:
        table["lm_head.weight"] = (config["vocab_size"], embed)
    norms = ["model.decoder.final_layer_norm"] if config["do_layer_norm_before"] else []
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.decoder.layers.{layer}"
        linears = {
            f"{prefix}.self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")
        }
        linears |= {f"{prefix}.fc1": (ffn, width), f"{prefix}.fc2": (width, ffn)}
        for name, shape in linears.items():
            table[f"{name}.weight"] = shape
            if config["enable_bias"]:
                table[f"{name}.bias"] = shape[:1]
        norms += [f"{prefix}.self_attn_layer_norm", f"{prefix}.final_layer_norm"]
    if config["layer_norm_elementwise_affine"]:
        table |= {f"{norm}.{leaf}": (width,) for norm in norms for leaf in ("weight", "bias")}
    return table


def random_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    """Float32 values for all of `shapes`."""
    generator = np.random.default_rng(seed)
    return {
        name: generator.standard_normal(shape, dtype=np.float32)
        for name, shape in shapes(config).items()
    }


def write_tensors(path: Path, tensors: Tensors) -> None:
    """A `.safetensors` file, written by hand; uint16 arrays are taken for bfloat16."""
    names = {"f4": "F32", "f2": "F16", "u2": "BF16", "f8": "F64", "i8": "I64"}
    header, position = {}, 0
    for name, array in tensors.items():
        end = position + array.nbytes
        header[name] = {
            "dtype": names[array.dtype.str[1:]],
            "shape": list(array.shape),
            "data_offsets": [position, end],
        }
        position = end
    write_raw(path, json.dumps(header), b"".join(array.tobytes() for array in tensors.values()))


def write_raw(path: Path, header: str, data: bytes) -> None:
    """Length, header and data as they are."""
    raw = header.encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)


def write_sharded(directory: Path, tensors: Tensors, count: int) -> None:
    """Shards and their index."""
    names = sorted(tensors)
    weight_map = {}
    for shard in range(count):
        file = f"model-{shard + 1:05d}-of-{count:05d}.safetensors"
        part = names[shard::count]
        write_tensors(directory / file, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def write_checkpoint(
    directory: Path,
    *,
    tensors: Tensors | None = None,
    shards: int = 0,
    dtype: type = np.float32,
    **changes: Any,
) -> Path:
    """A checkpoint with `changes` over `CONFIG`; `shards` of 0 is one whole file."""
    config = {**CONFIG, **changes}
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.model").write_bytes(b"not looked into")
    if tensors is None:
        tensors = {n: t.astype(dtype) for n, t in random_tensors(config).items()}
    if shards:
        write_sharded(directory, tensors, shards)
    else:
        write_tensors(directory / "model.safetensors", tensors)
    return directory


def all_bytes(directory: Path) -> dict[str, bytes]:
    """Every file of a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}
