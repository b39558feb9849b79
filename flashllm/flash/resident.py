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
    table: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocab_size, spec.embed_dim)}
    if spec.positions == "learned":
        table["embed.positions"] = (spec.max_positions + spec.position_offset, width)
    if spec.embed_dim != width:
        table["embed.project_in.weight"] = (width, spec.embed_dim)
        table["head.project_out.weight"] = (spec.embed_dim, width)
    if not spec.tied_head:
        table["head.weight"] = (spec.vocab_size, spec.embed_dim)
    if spec.head_bias:
        table["head.bias"] = (spec.vocab_size,)
    if spec.final_norm:
        table |= _norm("final_norm", spec)
    for layer in range(spec.n_layers):
        prefix = f"layers.{layer}"
        table |= _attention(f"{prefix}.attn", spec) | _norm(f"{prefix}.attn_norm", spec)
        if not spec.shared_norm:
            table |= _norm(f"{prefix}.ffn_norm", spec)
        if spec.gate == "resident":
            table[f"{prefix}.ffn.gate.weight"] = (spec.d_ffn, width)
        if spec.ffn_bias:
            if spec.gated:
                table[f"{prefix}.ffn.gate.bias"] = (spec.d_ffn,)
            table[f"{prefix}.ffn.up.bias"] = (spec.d_ffn,)
            table[f"{prefix}.ffn.down.bias"] = (width,)
    return table


def _attention(prefix: str, spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    heads, kv_heads = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    table: dict[str, tuple[int, ...]] = {}
    for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        table[f"{prefix}.{name}.weight"] = (rows, spec.d_model)
        if spec.attention_bias:
            table[f"{prefix}.{name}.bias"] = (rows,)
    table[f"{prefix}.o.weight"] = (spec.d_model, heads)
    if spec.attention_output_bias:
        table[f"{prefix}.o.bias"] = (spec.d_model,)
    if spec.qk_norm:
        table[f"{prefix}.q_norm.weight"] = (spec.head_dim,)
        table[f"{prefix}.k_norm.weight"] = (spec.head_dim,)
    return table


def _norm(name: str, spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    if not spec.norm_affine:
        return {}
    leaves = ("weight", "bias") if spec.norm_bias else ("weight",)
    return {f"{name}.{leaf}": (spec.d_model,) for leaf in leaves}


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
