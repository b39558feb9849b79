"""Pairs the tensors of a checkpoint with the rows of its family's table: all, or an error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flashllm.errors import TensorMismatch
from flashllm.flash.layout import tensor_table
from flashllm.spec import DTYPE_BYTES, ModelSpec

from .checkpoint import Checkpoint, SourceTensor
from .families import Family, Row

NAMED_MAX = 6


@dataclass(frozen=True, slots=True)
class BundleRow:
    """A tensor whose rows (or columns, where transposed) are the same row of every bundle."""

    tensor: SourceTensor
    transposed: bool


@dataclass(frozen=True, slots=True)
class Assignment:
    """What every tensor of the source is for.

    `resident` is our name -> tensor, `bundled` the rows of a neuron for each layer, `copies` pairs
    of tensors that must hold the same values.
    """

    resident: dict[str, SourceTensor]
    bundled: tuple[tuple[BundleRow, ...], ...]
    copies: tuple[tuple[SourceTensor, SourceTensor], ...]

    def tensors(self) -> Iterable[SourceTensor]:
        """Everything that is written."""
        yield from self.resident.values()
        for layer in self.bundled:
            for row in layer:
                yield row.tensor


def assign(family: Family, spec: ModelSpec, checkpoint: Checkpoint) -> Assignment:
    """Every tensor to its row; `TensorMismatch` names those that are absent, extra or misshapen.

    The encoding in `spec` does not matter here.
    """
    found = _plain_names(family, checkpoint)
    copies = _take_copies(family, spec, found)
    wanted = _wanted(family, spec)
    where = str(checkpoint.directory)
    absent = [name for name in wanted if name not in found]
    extra = [found[name].name for name in found if name not in wanted]
    if absent or extra:
        problems = [
            f"{what}: {_some(names)}"
            for what, names in (("missing", absent), ("not expected", extra))
            if names
        ]
        raise TensorMismatch(
            f"{where}: tensors do not fit config.json as model_type {family.model_type}: "
            + "; ".join(problems)
        )
    sizes = _sizes(spec)
    resident: dict[str, SourceTensor] = {}
    bundled: list[list[BundleRow]] = [[] for _ in range(spec.n_layers)]
    for name, (row, layer) in wanted.items():
        tensor = found[name]
        _check(tensor, tuple(sizes[size] for size in row.shape), where)
        if row.place == "resident":
            resident[row.ours.format(i=layer)] = tensor
        else:
            bundled[layer].append(BundleRow(tensor, row.transform == "transpose"))
    return Assignment(resident, tuple(tuple(rows) for rows in bundled), copies)


def _plain_names(family: Family, checkpoint: Checkpoint) -> dict[str, SourceTensor]:
    """The tensors without the family's prefix and without those that it ignores."""
    found: dict[str, SourceTensor] = {}
    for tensor in checkpoint.tensors.values():
        name = tensor.name.removeprefix(family.prefix)
        if any(pattern.fullmatch(name) for pattern in family.ignored):
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


def _wanted(family: Family, spec: ModelSpec) -> dict[str, tuple[Row, int]]:
    """Name in the source -> its row and layer, for a model of this spec."""
    table = tensor_table(spec)
    wanted = {}
    for row in family.rows:
        for layer in range(spec.n_layers if "{i}" in row.source else 1):
            if row.place == "bundle" or row.ours.format(i=layer) in table:
                wanted[row.source.format(i=layer)] = (row, layer)
    return wanted


def _sizes(spec: ModelSpec) -> dict[str, int]:
    """What the names of sizes in a row's shape stand for."""
    return {
        "d_model": spec.d_model,
        "embed_dim": spec.embed_dim,
        "d_ffn": spec.d_ffn,
        "vocab_size": spec.vocab_size,
        "position_rows": spec.max_positions + spec.position_offset,
    }


def _check(tensor: SourceTensor, shape: tuple[int, ...], where: str) -> None:
    """`TensorMismatch` for a shape or a type that cannot be."""
    if tensor.shape != shape:
        raise TensorMismatch(
            f"{where}: tensor {tensor.name} in {tensor.file} has shape {list(tensor.shape)}, "
            f"but config.json asks for {list(shape)}"
        )
    if tensor.dtype not in DTYPE_BYTES:
        raise TensorMismatch(
            f"{where}: tensor {tensor.name} in {tensor.file} is of type {tensor.dtype}; "
            f"supported: {', '.join(DTYPE_BYTES)}"
        )


def _some(names: list[str]) -> str:
    """The first few names and how many more there are."""
    more = len(names) - NAMED_MAX
    return ", ".join(sorted(names)[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
