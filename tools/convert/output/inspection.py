"""Inspects a source before a byte is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flashllm.errors import TensorMismatch, UsageError
from flashllm.flash.layout import BundleHeader
from flashllm.flash.tensor_table import tensor_table
from flashllm.spec import ModelSpec

from ..families.config import Config
from ..families.family import Family
from ..families.matching import Assignment, assign
from ..families.spec_from_config import Overrides
from ..source.checkpoint import Checkpoint
from ..source.tensor import SourceTensor
from .tokenizer_files import TOKENIZER_FILES
from .writing import blocks_of, resident_bytes


@dataclass(frozen=True, slots=True)
class Job:
    """A source that was inspected and can be converted."""

    source: Path
    config: Config
    family: Family
    spec: ModelSpec
    checkpoint: Checkpoint
    assignment: Assignment
    tokenizer_files: tuple[str, ...]
    overrides: Overrides


def look(
    config: Config, family: Family, spec: ModelSpec, checkpoint: Checkpoint, overrides: Overrides
) -> Job:
    """Checks everything that headers show, and chooses the encoding."""
    source = checkpoint.directory
    assignment = assign(family, spec, checkpoint)
    chosen = overrides.dtype or _matrix_dtype(assignment, source)
    return Job(
        source=source,
        config=config,
        family=family,
        spec=overrides.encoded(spec, chosen),
        checkpoint=checkpoint,
        assignment=assignment,
        tokenizer_files=tuple(name for name in TOKENIZER_FILES if (source / name).exists()),
        overrides=overrides,
    )


def converted_bytes(job: Job) -> int:
    """Bytes that the converted model will take, without predictors."""
    spec = job.spec
    needed = resident_bytes(spec) + BundleHeader.for_spec(spec, bytes(16)).file_bytes
    needed += 4 * (spec.n_layers * spec.bundles_per_layer + len(tensor_table(spec)))
    return needed + sum((job.source / name).stat().st_size for name in job.tokenizer_files)


def _matrix_dtype(assignment: Assignment, source: Path) -> str:
    """The one encoding of all matrices."""
    dtypes = sorted({t.dtype for t in assignment.tensors() if len(t.shape) > 1})
    if len(dtypes) > 1:
        raise UsageError(
            f"{source}: its matrices are of several types ({', '.join(dtypes)}); choose one with "
            "--dtype"
        )
    return dtypes[0]


def check_copies(job: Job) -> None:
    """`TensorMismatch` unless tensors that are tied hold the same bytes."""
    for copy, original in job.assignment.copies:
        same = (copy.dtype, copy.shape) == (original.dtype, original.shape) and all(
            (a == b).all()
            for a, b in zip(
                blocks_of(job.checkpoint, copy), blocks_of(job.checkpoint, original), strict=True
            )
        )
        if not same:
            raise not_tied(job.source, copy, original)


def not_tied(source: Path, copy: SourceTensor, original: SourceTensor) -> TensorMismatch:
    """The error for tensors that should be the same and are not."""
    return TensorMismatch(
        f"{source}: config.json says that {copy.name} and {original.name} are tied, but they "
        "differ; set tie_word_embeddings to false if both are meant"
    )
