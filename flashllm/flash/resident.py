"""Which tensors stay in memory: their names, shapes and encodings, from the spec alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flashllm.errors import LayoutError
from flashllm.flash.safetensors_header import TensorRecord
from flashllm.spec import ModelSpec


def tensor_table(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every resident tensor of a model; matrices are [out, in]."""
    width = spec.d_model
    kv_width = spec.n_kv_heads * spec.head_dim
    table: dict[str, tuple[int, ...]] = {
        "embed.weight": (spec.vocab_size, spec.embed_dim),
        "embed.positions": (spec.max_positions + spec.position_offset, width),
    }
    if spec.embed_dim != width:
        table["embed.project_in.weight"] = (width, spec.embed_dim)
        table["head.project_out.weight"] = (spec.embed_dim, width)
    if not spec.tied_head:
        table["head.weight"] = (spec.vocab_size, spec.embed_dim)
    norms = ["final_norm"] if spec.final_norm else []
    for layer in range(spec.n_layers):
        prefix = f"layers.{layer}"
        for name, rows in (("q", width), ("k", kv_width), ("v", kv_width), ("o", width)):
            table[f"{prefix}.attn.{name}.weight"] = (rows, width)
            if spec.attention_bias:
                table[f"{prefix}.attn.{name}.bias"] = (rows,)
        if spec.ffn_bias:
            table[f"{prefix}.ffn.up.bias"] = (spec.d_ffn,)
            table[f"{prefix}.ffn.down.bias"] = (width,)
        norms += [f"{prefix}.attn_norm", f"{prefix}.ffn_norm"]
    if spec.norm_affine:
        table |= {f"{norm}.{leaf}": (width,) for norm in norms for leaf in ("weight", "bias")}
    return table


def resident_dtype(shape: tuple[int, ...], spec: ModelSpec) -> str:
    """Encoding of a resident tensor: norms and biases are f32, matrices as the model."""
    return "f32" if len(shape) == 1 else spec.dtype


def check_resident(index: Mapping[str, TensorRecord], spec: ModelSpec, path: Path) -> None:
    """`LayoutError` unless the file holds exactly the tensors that the spec asks for."""
    table = tensor_table(spec)
    if set(index) != set(table):
        absent = sorted(set(table) - set(index))[:4]
        extra = sorted(set(index) - set(table))[:4]
        raise LayoutError(f"{path}: tensors absent {absent}, unexpected {extra}; convert again")
    for name, shape in table.items():
        found, wanted = (index[name].dtype, index[name].shape), (resident_dtype(shape, spec), shape)
        if found != wanted:
            raise LayoutError(f"{path}: tensor {name} is {found}; the manifest asks for {wanted}")
