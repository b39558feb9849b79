"""Pairs all tensors of a checkpoint with the rows of its family's table, or raises an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flashllm.dtypes import DTYPE_BYTES
from flashllm.errors import TensorMismatch
from flashllm.flash.tensor_table import tensor_table
from flashllm.spec import ModelSpec

from ..source.blocks import is_block_type
from ..source.checkpoint import Checkpoint
from ..source.tensor import SourceTensor
from .expert_storage import ExpertPart, expert_source
from .family import ExpertNames, Family, Row
from .transforms import Piece, rows_of

NAMED_MAX = 6
_LAYER = re.compile(r"layers\.([0-9]{1,5})\.")
_NEURON = ("gate.weight", "up", "down")
"""The rows of a neuron, in the order of the bundle."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What every tensor of the source is for.

    `resident` is our name -> piece, `bundled` the rows of a neuron for each layer, or the matrices
    of one expert after another, `copies` pairs of tensors that must hold the same values,
    `predictors` fc1 and fc2 of each layer, if the checkpoint has them.
    """

    resident: dict[str, Piece]
    bundled: tuple[tuple[Piece, ...], ...]
    copies: tuple[tuple[SourceTensor, SourceTensor], ...]
    predictors: tuple[tuple[SourceTensor, SourceTensor], ...]

    def tensors(self) -> Iterable[SourceTensor]:
        """Everything that is written except predictors, each as often as it is used."""
        for piece in self.resident.values():
            yield piece.tensor
        for layer in self.bundled:
            for piece in layer:
                yield piece.tensor


def assign(family: Family, spec: ModelSpec, checkpoint: Checkpoint) -> Assignment:
    """Every tensor to its row; `TensorMismatch` names those that are absent, extra or misshapen.

    The encoding in `spec` does not matter here.
    """
    found = _plain_names(family, spec, checkpoint)
    predictors = _take_predictors(family, spec, found)
    copies = _take_copies(family, spec, found)
    names = _expert_names(family, spec, found)
    wanted = _wanted(family, spec, names)
    experts = [_experts(names, spec, at) for at in range(spec.dense_layers, spec.n_layers)]
    where = str(checkpoint.directory)
    of_experts = {part.name: part.shape for layer in experts for part in layer}
    needed = {**dict.fromkeys(wanted), **dict.fromkeys(of_experts)}
    absent = [name for name in needed if name not in found]
    extra = [found[name].name for name in found if name not in needed]
    if absent or extra:
        problems = [
            f"{what}: {_some(names)}"
            for what, names in (("missing", absent), ("not expected", extra))
            if names
        ]
        raise TensorMismatch(
            f"{where}: tensors do not fit {checkpoint.settings} as model_type {family.model_type}: "
            + "; ".join(problems)
        )
    sizes = _sizes(spec)
    resident: dict[str, Piece] = {}
    bundled: list[dict[str, Piece]] = [{} for _ in range(spec.n_layers)]
    for name, rows in wanted.items():
        tensor = found[name]
        for row, layer in rows:
            _check(tensor, tuple(sizes[size] for size in row.shape), checkpoint)
            piece = Piece(tensor, rows_of(row.part, tensor.shape[0], spec), row.transform)
            if _is_resident(row, spec):
                resident[row.ours.format(i=layer)] = piece
            else:
                bundled[layer][row.ours.partition(".ffn.")[2]] = piece
    for name, shape in of_experts.items():
        _check(found[name], shape, checkpoint)
    if names is not None:
        ordered = tuple(tuple(part.piece(found[part.name]) for part in at) for at in experts)
    else:
        ordered = tuple(tuple(row[leaf] for leaf in _NEURON if leaf in row) for row in bundled)
    return Assignment(resident, ordered, copies, predictors)


def _expert_names(
    family: Family, spec: ModelSpec, found: Mapping[str, SourceTensor]
) -> ExpertNames | None:
    """The way in which this checkpoint stores experts; None where the model has none."""
    if spec.experts is None:
        return None
    first = spec.dense_layers
    ways = (way for way in family.experts if way.gate.name.format(i=first, e=0) in found)
    return next(ways, family.experts[0])


def _experts(names: ExpertNames | None, spec: ModelSpec, layer: int) -> list[ExpertPart]:
    return [] if names is None else list(expert_source(names, spec, layer))


def _plain_names(
    family: Family, spec: ModelSpec, checkpoint: Checkpoint
) -> dict[str, SourceTensor]:
    """The tensors without the family's prefix and without those that it ignores."""
    found: dict[str, SourceTensor] = {}
    for tensor in checkpoint.tensors.values():
        name = checkpoint.names.get(tensor.name, tensor.name).removeprefix(family.prefix)
        if any(pattern.fullmatch(name) for pattern in family.ignored):
            continue
        layer = _LAYER.match(name)
        if family.is_followed_by_others and layer and int(layer[1]) >= spec.n_layers:
            continue
        first = found.setdefault(name, tensor)
        if first is not tensor:
            raise TensorMismatch(
                f"{checkpoint.directory}: {first.name} and {tensor.name} are the same tensor"
            )
    return found


def _take_copies(
    family: Family, spec: ModelSpec, found: dict[str, SourceTensor]
) -> tuple[tuple[SourceTensor, SourceTensor], ...]:
    """Removes from `found` what a tied head makes superfluous; one of the two names is enough."""
    copies = []
    for copy, original in family.tied_copies.items() if spec.tied_head else ():
        if copy in found:
            tensor = found.pop(copy)
            if found.setdefault(original, tensor) is not tensor:
                copies.append((tensor, found[original]))
    return tuple(copies)


def _take_predictors(
    family: Family, spec: ModelSpec, found: dict[str, SourceTensor]
) -> tuple[tuple[SourceTensor, SourceTensor], ...]:
    """Removes from `found` the predictors of the layers; all layers have one, or none."""
    if family.predictor is None:
        return ()
    pairs = [
        (family.predictor[0].format(i=layer), family.predictor[1].format(i=layer))
        for layer in range(spec.n_layers)
    ]
    if not any(name in found for pair in pairs for name in pair):
        return ()
    absent = [name for pair in pairs for name in pair if name not in found]
    if absent:
        raise TensorMismatch(f"predictors of some layers only; missing: {_some(absent)}")
    return tuple((found.pop(first), found.pop(second)) for first, second in pairs)


def _is_resident(row: Row, spec: ModelSpec) -> bool:
    return row.place == "resident" or (row.place == "gate" and spec.gate == "resident")


def _wanted(
    family: Family, spec: ModelSpec, names: ExpertNames | None
) -> dict[str, list[tuple[Row, int]]]:
    """Name in the source -> its rows and their layer, for a model of this spec."""
    table = tensor_table(spec)
    wanted: dict[str, list[tuple[Row, int]]] = {}
    rows = family.rows
    if names is not None:
        rows += (
            Row("layers.{i}.router.weight", names.router, ("n_experts", "d_model")),
            Row("layers.{i}.router.bias", names.router_bias, ("n_experts",)),
            Row("layers.{i}.router.choice_bias", names.choice_bias, ("n_experts",)),
        )
    for row in rows:
        if row.when is not None and not row.when(spec):
            continue
        for layer in range(spec.n_layers if "{i}" in row.source else 1):
            if not _is_resident(row, spec) or row.ours.format(i=layer) in table:
                wanted.setdefault(row.source.format(i=layer), []).append((row, layer))
    return wanted


def _sizes(spec: ModelSpec) -> dict[str, int]:
    """What the names of sizes in a row's shape stand for."""
    queries, keys = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    return {
        "d_model": spec.d_model,
        "n_heads": spec.n_heads,
        "embed_dim": spec.embed_dim,
        "head_dim": spec.head_dim,
        "d_ffn": spec.d_ffn,
        "vocab_size": spec.vocab_size,
        "position_rows": spec.max_positions + spec.position_offset,
        "q_rows": queries,
        "kv_rows": keys,
        "qkv_rows": queries + 2 * keys,
        "gate_up_rows": 2 * spec.d_ffn,
        "q_norm": queries if spec.qk_norm_whole else spec.head_dim,
        "k_norm": keys if spec.qk_norm_whole else spec.head_dim,
        "n_experts": 0 if spec.experts is None else spec.experts.n_experts,
        "shared_rows": 0 if spec.experts is None else spec.experts.shared_d_ffn,
        "dense_rows": 0 if spec.experts is None else spec.experts.dense_d_ffn,
    }


def _check(tensor: SourceTensor, shape: tuple[int, ...], checkpoint: Checkpoint) -> None:
    """`TensorMismatch` for a shape or a type that cannot be."""
    where = checkpoint.directory
    if tensor.shape != shape:
        raise TensorMismatch(
            f"{where}: tensor {tensor.name} in {tensor.file} has shape {list(tensor.shape)}, "
            f"but {checkpoint.settings} asks for {list(shape)}"
        )
    if tensor.dtype not in DTYPE_BYTES and not (len(shape) > 1 and is_block_type(tensor.dtype)):
        raise TensorMismatch(
            f"{where}: tensor {tensor.name} in {tensor.file} is of type {tensor.dtype}; "
            f"supported: {', '.join(DTYPE_BYTES)}"
        )


def _some(names: list[str]) -> str:
    """The first few names and how many more there are."""
    more = len(names) - NAMED_MAX
    return ", ".join(sorted(names)[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
