"""How checkpoints hold experts: each in tensors of its own, stacked, fused, turned round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flashllm.spec import ModelSpec

from ..source.paired_blocks import BLOCKS
from ..source.tensor import SourceTensor
from .family import ExpertMatrix, ExpertNames
from .transforms import Piece, Rows, Transform


def fused(router: str, gate_up: str, down: str) -> ExpertNames:
    """All experts of a layer in two tensors, the rows of gate in front of those of up."""
    return ExpertNames(
        router,
        ExpertMatrix(gate_up, "first half"),
        ExpertMatrix(gate_up, "second half"),
        ExpertMatrix(down),
    )


def fused_in(block: str) -> ExpertNames:
    """The same by the names that are usual within a block."""
    stacks = f"{block}.experts"
    return fused(f"{block}.gate.weight", f"{stacks}.gate_up_proj", f"{stacks}.down_proj")


def stacked_in(block: str, stack: str) -> ExpertNames:
    """All experts of a layer in three tensors [experts, out, in], as mlx-lm has them."""
    gate, up, down = (
        ExpertMatrix(f"{block}.{stack}.{name}_proj.weight") for name in ("gate", "up", "down")
    )
    return ExpertNames(f"{block}.gate.weight", gate, up, down)


def separate(block: str, gate: str, up: str, down: str, router: str = "gate") -> ExpertNames:
    """Each matrix of each expert in a tensor of its own."""

    def matrix(name: str) -> ExpertMatrix:
        tensor = f"{block}.experts.{{e}}.{name}"
        return ExpertMatrix(f"{tensor}.weight", bias=f"{tensor}.bias")

    return ExpertNames(f"{block}.{router}.weight", matrix(gate), matrix(up), matrix(down))


def alternating(router: str, gate_up: str, down: str) -> ExpertNames:
    """All experts of a layer in two tensors of [in, out], gate and up by turns; with biases."""
    return ExpertNames(
        f"{router}.weight",
        ExpertMatrix(gate_up, "even", turned=True, bias=f"{gate_up}_bias"),
        ExpertMatrix(gate_up, "odd", turned=True, bias=f"{gate_up}_bias"),
        ExpertMatrix(down, turned=True, bias=f"{down}_bias"),
        f"{router}.bias",
    )


def in_blocks(router: str, gate_up: str, down: str) -> ExpertNames:
    """The same in mxfp4 (`source/paired_blocks.py`): [out, in], gate and up by turns."""
    return ExpertNames(
        f"{router}.weight",
        ExpertMatrix(f"{gate_up}{BLOCKS}", "even", bias=f"{gate_up}_bias"),
        ExpertMatrix(f"{gate_up}{BLOCKS}", "odd", bias=f"{gate_up}_bias"),
        ExpertMatrix(f"{down}{BLOCKS}", bias=f"{down}_bias"),
        f"{router}.bias",
    )


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """A tensor of the source, its shape, and the rows of it that are one matrix of an expert."""

    name: str
    shape: tuple[int, ...]
    rows: Rows
    transform: Transform = "as is"
    stack: int = 0
    """Of a transposed one, which matrix of the tensor."""

    def piece(self, tensor: SourceTensor) -> Piece:
        """The same as a piece of the tensor that was found."""
        return Piece(tensor, self.rows, self.transform, self.stack)


def expert_source(names: ExpertNames, spec: ModelSpec, layer: int) -> Iterator[ExpertPart]:
    """Of each expert gate, up and down, and then their biases where it has them."""
    experts = spec.experts
    assert experts is not None
    width, neurons = spec.d_model, experts.d_ffn
    shapes = (neurons, width), (neurons, width), (width, neurons)
    for expert in range(experts.n_experts):
        for matrix, (out, into) in zip(names.matrices, shapes, strict=True):
            yield _weights(matrix, layer, (expert, experts.n_experts), out, into)
        for matrix, (out, _) in zip(names.matrices, shapes, strict=True):
            if experts.bias:
                yield _bias(matrix, layer, (expert, experts.n_experts), out)


def _weights(
    matrix: ExpertMatrix, layer: int, which: tuple[int, int], out: int, into: int
) -> ExpertPart:
    """A matrix [out, into] of an expert; `which` is its number, and how many there are."""
    expert, count = which
    name = matrix.name.format(i=layer, e=expert)
    rows, total = _share(matrix, out)
    shape: tuple[int, ...] = (into, total) if matrix.turned else (total, into)
    if "{e}" in matrix.name:
        expert = 0
    else:
        shape = (count, *shape)
    if matrix.turned:
        return ExpertPart(name, shape, rows, "transpose", expert)
    return ExpertPart(name, shape, replace(rows, first=rows.first + expert * total))


def _bias(matrix: ExpertMatrix, layer: int, which: tuple[int, int], out: int) -> ExpertPart:
    """The bias [out] of a matrix, out of the biases of all experts."""
    rows, total = _share(matrix, out)
    expert, count = which
    name = matrix.bias.format(i=layer, e=expert)
    if "{e}" in matrix.bias:
        return ExpertPart(name, (total,), rows, "values")
    rows = replace(rows, first=rows.first + expert * total)
    return ExpertPart(name, (count, total), rows, "values")


def _share(matrix: ExpertMatrix, out: int) -> tuple[Rows, int]:
    """Which rows of one expert are those of a matrix of `out` rows, and of how many."""
    if matrix.share == "all":
        return Rows(0, out, out, 1), out
    first = {"first half": 0, "second half": out, "even": 0, "odd": 1}[matrix.share]
    if matrix.share in ("even", "odd"):
        return Rows(first, 1, 2, out), 2 * out
    return Rows(first, out, out, 1), 2 * out
