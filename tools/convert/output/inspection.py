"""Inspects a source before a byte is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flashllm.errors import TensorMismatch
from flashllm.flash.layout import BundleHeader
from flashllm.flash.tensor_table import tensor_table
from flashllm.spec import ModelSpec

from ..families.config import Config
from ..families.encodings import choose_encodings
from ..families.family import Family
from ..families.matching import Assignment, assign
from ..families.spec_from_config import Overrides
from ..source.checkpoint import Checkpoint
from ..source.tensor import SourceTensor
from .gguf_tokenizer import made_tokenizer
from .tokenizer_files import TOKENIZER_FILES, TOKENIZERS
from .writing import blocks_of, resident_bytes


@dataclass(frozen=True, slots=True)
class Job:
    """A source that was inspected and can be converted."""

    source: Path
    """The directory of its files."""
    name: str
    config: Config
    family: Family
    spec: ModelSpec
    checkpoint: Checkpoint
    assignment: Assignment
    tokenizer_files: tuple[str, ...]
    """Those in the directory, taken over as they are."""
    made_files: Mapping[str, bytes]
    """More of them, made of what the weights' files say."""
    overrides: Overrides
    requantised: tuple[str, ...]
    """Types of weights that are rounded a second time."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether ids can be made of text."""
        return not {*self.tokenizer_files, *self.made_files}.isdisjoint(TOKENIZERS)


def look(
    name: str,
    config: Config,
    family: Family,
    spec: ModelSpec,
    checkpoint: Checkpoint,
    overrides: Overrides,
) -> Job:
    """Checks everything that headers show, and chooses the encoding."""
    source = checkpoint.directory
    assignment = assign(family, spec, checkpoint)
    place = source if checkpoint.metadata is None else config.path
    mixed = checkpoint.is_mixed
    chosen = choose_encodings(assignment, spec, overrides, place, mixed=mixed)
    files = tuple(name for name in TOKENIZER_FILES if (source / name).exists())
    return Job(
        source=source,
        name=name,
        config=config,
        family=family,
        spec=chosen.spec,
        checkpoint=checkpoint,
        assignment=assignment,
        tokenizer_files=files,
        made_files=made_tokenizer(config.path, checkpoint.metadata, files),
        overrides=overrides,
        requantised=chosen.requantised,
    )


def converted_bytes(job: Job) -> int:
    """Bytes that the converted model will take, without predictors."""
    spec = job.spec
    needed = resident_bytes(spec) + BundleHeader.for_spec(spec, bytes(16)).file_bytes
    needed += 4 * (spec.n_layers * spec.bundles_per_layer + len(tensor_table(spec)))
    needed += sum(map(len, job.made_files.values()))
    return needed + sum((job.source / name).stat().st_size for name in job.tokenizer_files)


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
