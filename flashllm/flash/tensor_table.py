"""The resident tensors: their names, shapes and encodings, from the spec alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flashllm.dtypes import GROUP_BYTES, row_bytes, tensor_bytes
from flashllm.errors import LayoutError
from flashllm.flash.safetensors_file import TensorRecord
from flashllm.spec import ModelSpec, MoeSpec

EMBEDDING = "embed.weight"
HEAD = "head.weight"
POSITIONS = "embed.positions"
PROJECT_IN = "embed.project_in.weight"
ROUTER = ".router.weight"
ROUTER_BIAS = ".router.bias"
CHOICE_BIAS = ".router.choice_bias"
SHARED_ROUTER = ".shared.router.weight"


def embedding_shape(spec: ModelSpec) -> tuple[str, tuple[int, ...]]:
    """Encoding and shape of the embedding."""
    shape = (spec.vocab_size, spec.embed_dim)
    return resident_dtype(EMBEDDING, shape, spec), shape


def own_embedding_bytes(spec: ModelSpec) -> int:
    """Bytes of an embedding of which a token needs one row; 0 where it is the head too."""
    return 0 if spec.tied_head else resident_bytes(EMBEDDING, embedding_shape(spec)[1], spec)


def tensor_table(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every resident tensor of a model; matrices are [out, in]."""
    width = spec.d_model
    table: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, spec.embed_dim)}
    if spec.positions == "learned":
        table[POSITIONS] = (spec.max_positions + spec.position_offset, width)
    if spec.embed_dim != width:
        table[PROJECT_IN] = (width, spec.embed_dim)
        table["head.project_out.weight"] = (spec.embed_dim, width)
    if not spec.tied_head:
        table[HEAD] = (spec.vocab_size, spec.embed_dim)
    if spec.head_bias:
        table["head.bias"] = (spec.vocab_size,)
    if spec.final_norm:
        table |= _norm("final_norm", spec)
    for layer in range(spec.n_layers):
        prefix = f"layers.{layer}"
        table |= _attention(f"{prefix}.attn", spec) | _norm(f"{prefix}.attn_norm", spec)
        if not spec.shared_norm:
            table |= _norm(f"{prefix}.ffn_norm", spec)
        if spec.experts is not None:
            table |= _beside_experts(prefix, layer, spec.experts, width)
        if spec.gate == "resident":
            table[f"{prefix}.ffn.gate.weight"] = (spec.d_ffn, width)
        if spec.ffn_bias:
            if spec.gated:
                table[f"{prefix}.ffn.gate.bias"] = (spec.d_ffn,)
            table[f"{prefix}.ffn.up.bias"] = (spec.d_ffn,)
            table[f"{prefix}.ffn.down.bias"] = (width,)
    return table


def _beside_experts(
    prefix: str, layer: int, experts: MoeSpec, width: int
) -> dict[str, tuple[int, ...]]:
    """What stays in memory of a feed-forward layer with experts, or of one that is whole."""
    if layer < experts.dense_layers:
        return _gated_ffn(f"{prefix}.dense", width, experts.dense_d_ffn)
    table: dict[str, tuple[int, ...]] = {f"{prefix}{ROUTER}": (experts.n_experts, width)}
    if experts.router_bias:
        table[f"{prefix}{ROUTER_BIAS}"] = (experts.n_experts,)
    if experts.choice_bias:
        table[f"{prefix}{CHOICE_BIAS}"] = (experts.n_experts,)
    if experts.shared_d_ffn:
        table |= _gated_ffn(f"{prefix}.shared", width, experts.shared_d_ffn)
    if experts.shared_gate:
        table[f"{prefix}{SHARED_ROUTER}"] = (1, width)
    return table


def _gated_ffn(prefix: str, width: int, neurons: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate.weight": (neurons, width),
        f"{prefix}.up.weight": (neurons, width),
        f"{prefix}.down.weight": (width, neurons),
    }


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
    if spec.attention_sinks:
        table[f"{prefix}.sinks"] = (spec.n_heads,)
    if spec.qk_norm:
        whole = spec.qk_norm_whole
        table[f"{prefix}.q_norm.weight"] = (heads if whole else spec.head_dim,)
        table[f"{prefix}.k_norm.weight"] = (kv_heads if whole else spec.head_dim,)
    return table


def _norm(name: str, spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    if not spec.norm_affine:
        return {}
    leaves = ("weight", "bias") if spec.norm_bias else ("weight",)
    return {f"{name}.{leaf}": (spec.d_model,) for leaf in leaves}


def resident_dtype(name: str, shape: tuple[int, ...], spec: ModelSpec) -> str:
    """Encoding of a resident tensor: norms and biases are f32, matrices as the spec says.

    Learned positions are few and added directly to the stream, and routers decide which experts
    compute, and how much they count: these are f16 where matrices are in groups.
    """
    if len(shape) == 1:
        return "f32"
    is_exact = name == POSITIONS or name.endswith((ROUTER, SHARED_ROUTER))
    return "f16" if is_exact and spec.matrix_dtype in GROUP_BYTES else spec.matrix_dtype


def resident_bytes(name: str, shape: tuple[int, ...], spec: ModelSpec) -> int:
    """Bytes of a resident tensor."""
    return tensor_bytes(resident_dtype(name, shape, spec), shape)


def stored_as(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Type and shape in a safetensors file, where rows of groups are bytes."""
    if dtype in GROUP_BYTES:
        return "u8", (shape[0], row_bytes(dtype, shape[1]))
    return dtype, shape


def encoding_of(record: TensorRecord, columns: int) -> str:
    """The encoding of a matrix, recognised by the bytes of a row of `columns` weights.

    That is the type in the file, unless it is bytes and a row of groups has as many.
    """
    if record.dtype == "u8" and len(record.shape) == 2:
        for dtype in GROUP_BYTES:
            if record.shape[1] == row_bytes(dtype, columns):
                return dtype
    return record.dtype


def predictor_columns(index: Mapping[str, TensorRecord], spec: ModelSpec) -> dict[str, int]:
    """Name of each matrix of the predictors -> weights in a row: the model's width, or the rank.

    Only of matrices in the file; code that needs others reports their absence.
    """
    columns: dict[str, int] = {}
    for layer in range(spec.n_layers):
        down, up = f"layers.{layer}.down", f"layers.{layer}.up"
        if down in index and len(index[down].shape) == 2:
            columns[down] = spec.d_model
            if up in index and index[down].shape[0]:
                columns[up] = index[down].shape[0]
    return columns


def check_resident(index: Mapping[str, TensorRecord], spec: ModelSpec, path: Path) -> None:
    """`LayoutError` unless the file holds exactly the tensors that the spec asks for."""
    table = tensor_table(spec)
    if set(index) != set(table):
        absent = sorted(set(table) - set(index))[:4]
        extra = sorted(set(index) - set(table))[:4]
        raise LayoutError(f"{path}: tensors absent {absent}, unexpected {extra}; convert again")
    for name, shape in table.items():
        found = index[name].dtype, index[name].shape
        wanted = stored_as(resident_dtype(name, shape, spec), shape)
        if found != wanted:
            raise LayoutError(f"{path}: tensor {name} is {found}; the manifest asks for {wanted}")
