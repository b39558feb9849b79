"""In which encodings a model is stored: what was asked for, or what keeps every weight as it is.

Weights in blocks (`source/blocks.py`) were rounded before. What no encoding of ours holds exactly
would be rounded once more, and is refused unless that was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from flashllm.dtypes import DTYPE_BYTES, DType
from flashllm.errors import UnsupportedModel, UsageError
from flashllm.flash.tensor_table import resident_dtype
from flashllm.spec import ModelSpec

from ..source.blocks import is_block_type, is_exact, stored_bits
from .matching import Assignment
from .spec_from_config import Overrides
from .transforms import Piece

NAMED_MAX = 3
_NARROW: DType = "int4"
_WIDE: DType = "int8"
_NARROW_BITS = 5.0
"""Types of more bits a weight than that become int8 when they are rounded again."""
_PREFERRED = ("mxfp4", "int4", "int8", "f16", "bf16")
"""Encodings that are chosen where they keep all weights, the narrowest first.

f32 would take a multiple of the memory, and has to be asked for."""


@dataclass(frozen=True, slots=True)
class Encodings:
    """A spec with its encodings, and the types of blocks that are rounded a second time for it."""

    spec: ModelSpec
    requantised: tuple[str, ...] = ()


def choose_encodings(
    assignment: Assignment, spec: ModelSpec, overrides: Overrides, source: Path, *, mixed: bool
) -> Encodings:
    """The encodings of a model; in a `mixed` source, matrices may be of several types.

    `UsageError` where a choice is needed, `UnsupportedModel` where weights would be rounded twice.
    """
    if not mixed:
        return Encodings(
            overrides.encoded(spec, overrides.dtype or _only_dtype(assignment, source))
        )
    bundled = overrides.dtype or _bundled_dtype(assignment)
    spec = overrides.encoded(spec, bundled)
    if overrides.dtype is None and overrides.resident_dtype is None:
        spec = overrides.encoded(spec, bundled, _resident_dtype(assignment, spec))
    rounded = list(_rounded_twice(assignment, spec))
    if rounded and not overrides.requantise:
        raise UnsupportedModel(f"{source}: {_format_rounded(rounded)}")
    return Encodings(spec, tuple(sorted({one.piece.tensor.dtype.upper() for one in rounded})))


def _only_dtype(assignment: Assignment, source: Path) -> str:
    """The one encoding of all matrices."""
    dtypes = sorted({t.dtype for t in assignment.tensors() if len(t.shape) > 1})
    if len(dtypes) > 1:
        raise UsageError(
            f"{source}: its matrices are of several types ({', '.join(dtypes)}); choose one with "
            "--dtype"
        )
    return dtypes[0]


def _bundled_dtype(assignment: Assignment) -> str:
    """The encoding that most of the feed-forward weights have, or one that keeps all of them."""
    sizes: Counter[str] = Counter()
    for piece in _bundled(assignment):
        sizes[piece.tensor.dtype] += piece.rows.total * piece.row_bytes
    most = sizes.most_common(1)[0][0]
    if not any(map(is_block_type, sizes)):
        return most if len(sizes) == 1 else "f32"
    if not is_block_type(most):
        return most
    own = next((target for target in _PREFERRED if is_exact(most, target)), None)
    own = own or (_NARROW if stored_bits(most) <= _NARROW_BITS else _WIDE)
    keeping = (target for target in (own, _WIDE) if all(_keeps(found, target) for found in sizes))
    return next(keeping, own)


def _resident_dtype(assignment: Assignment, spec: ModelSpec) -> str | None:
    """The encoding of the resident matrices where the bundles' does not keep them; else None."""
    grouped = replace(spec, resident_dtype=_WIDE)
    types = {
        piece.tensor.dtype
        for name, piece in assignment.resident.items()
        # Norms, routers and their like have encodings of their own.
        if resident_dtype(name, piece.tensor.shape, grouped) == _WIDE
    }
    if all(_keeps(found, spec.dtype) for found in types):
        return None
    if not any(map(is_block_type, types)):
        return types.pop() if len(types) == 1 else "f32"
    return next((to for to in _PREFERRED if all(_keeps(found, to) for found in types)), _WIDE)


def _keeps(source: str, target: str) -> bool:
    """Whether all values of a tensor stay as they are."""
    if source in DTYPE_BYTES:
        return target in (source, "f32")
    return is_exact(source, target)


@dataclass(frozen=True, slots=True)
class _Rounded:
    """A tensor that would be rounded a second time, and the encoding it would get."""

    piece: Piece
    target: str

    @property
    def is_turned(self) -> bool:
        return self.piece.transform == "transpose"


def _rounded_twice(assignment: Assignment, spec: ModelSpec) -> Iterator[_Rounded]:
    for piece in _bundled(assignment):
        yield from _if_rounded(_Rounded(piece, spec.dtype))
    for name, piece in assignment.resident.items():
        target = resident_dtype(name, piece.tensor.shape, spec)
        yield from _if_rounded(_Rounded(piece, target))


def _if_rounded(one: _Rounded) -> Iterator[_Rounded]:
    source = one.piece.tensor.dtype
    if is_block_type(source) and not is_exact(source, one.target, one.is_turned):
        yield one


def _bundled(assignment: Assignment) -> Iterator[Piece]:
    """The matrices of bundles, without biases."""
    return (piece for layer in assignment.bundled for piece in layer if piece.transform != "values")


def _format_rounded(rounded: list[_Rounded]) -> str:
    """What would be rounded again, why, and what to do instead."""
    turned = [one for one in rounded if one.is_turned]
    others = [one for one in rounded if not one.is_turned]
    parts = []
    if others:
        parts.append(f"{_names(others)}, where no group holds the same values")
    if turned:
        parts.append(
            f"{_names(turned)}, since neurons keep the columns of a down projection as rows, with"
            " groups of their own"
        )
    return (
        f"these weights would be rounded a second time: {'; '.join(parts)}. --requantise does so,"
        " and the model says it ever after; --dtype f32 keeps every value, of what stays in memory"
        " --resident-dtype f32; best is a conversion of the original weights"
    )


def _format_one(one: _Rounded) -> str:
    tensor = one.piece.tensor
    # Of stacked experts each is a tensor.
    return f"{tensor.name.partition('[')[0]} ({tensor.dtype.upper()} to {one.target})"


def _names(rounded: list[_Rounded]) -> str:
    """The first few tensors, each with its type and what it would become."""
    found = dict.fromkeys(map(_format_one, rounded))
    more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return ", ".join(list(found)[:NAMED_MAX]) + more
