"""The weights of a converted model as plain numbers, read by docs/layout-v1.md and no code of ours.

Only the manifest's spec is taken from the runtime, for its sizes.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from flashllm.flash.manifest import read_manifest
from flashllm.flash.tensor_table import tensor_table
from tests.support.encodings import decode

Weights = dict[str, np.ndarray]


def dequantised(directory: Path) -> Weights:
    """Our name -> values in float64; up, down and gate of each layer as [d_ffn, d_model]."""
    return resident(directory) | bundled(directory)


def resident(directory: Path) -> Weights:
    """What lies in `resident.safetensors`."""
    spec = read_manifest(directory).spec
    found = load_file(directory / "resident.safetensors")
    weights: Weights = {}
    for name, shape in tensor_table(spec).items():
        stored = found.pop(name)
        if stored.dtype == np.uint8:
            dtype = spec.resident_dtype or spec.dtype
            weights[name] = decode(stored.reshape(-1), dtype, shape[1])
        else:
            weights[name] = stored.astype(np.float64)
        assert weights[name].shape == shape, name
    assert not found
    return weights


def bundled(directory: Path) -> Weights:
    """What lies in `ffn.bundles`."""
    raw = np.fromfile(directory / "ffn.bundles", np.uint8)
    code, rows, _, n_layers, bundles, width = struct.unpack_from("<6I", raw, 16)
    stride, bundle_bytes, start = struct.unpack_from("<3Q", raw, 40)
    dtype = {1: "f32", 2: "f16", 3: "bf16", 4: "int8", 5: "int4", 6: "mxfp4"}[code]
    weights: Weights = {}
    for layer in range(n_layers):
        end = start + bundles * stride
        neurons = raw[start:end].reshape(bundles, stride)[:, :bundle_bytes]
        values = decode(np.ascontiguousarray(neurons).reshape(-1), dtype, width)
        values = values.reshape(bundles, rows, width)
        for row, leaf in enumerate(("gate.weight", "up", "down")[-rows:]):
            weights[f"layers.{layer}.ffn.{leaf}"] = values[:, row]
        start = end
    return weights


NAMES = {
    "model.decoder.": "", "model.": "", "embed_tokens": "embed", "embed_positions.weight":
    "embed.positions", "project_in": "embed.project_in", "project_out": "head.project_out",
    "lm_head": "head", "self_attn_layer_norm": "attn_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", ".final_layer_norm": ".ffn_norm",
    "final_layer_norm": "final_norm", "self_attn.out_proj": "attn.o", "self_attn.": "attn.",
    "_proj.": ".", "mlp.gate.": "ffn.gate.", "mlp.": "ffn.", "fc1": "ffn.up", "fc2": "ffn.down",
    "ffn.up.weight": "ffn.up", "ffn.down.weight": "ffn.down",
}  # fmt: skip


def give_back(model: torch.nn.Module, directory: Path) -> torch.nn.Module:
    """A model of transformers with the values of the converted one; all of them find a place."""
    weights = dequantised(directory)
    unused = set(weights)
    with torch.no_grad():
        for theirs, parameter in model.named_parameters():
            name = theirs
            for old, new in NAMES.items():
                name = name.replace(old, new, 1)
            name = "final_norm.weight" if name == "norm.weight" else name
            values = weights[name]
            unused.discard(name)
            if name.endswith("ffn.down"):
                values = values.T
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    assert not unused
    return model
