"""Inspects a source before a byte is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flashllm.errors import TensorMismatch, UsageError
from flashllm.spec import ModelSpec

from ..families.config import GENERATION_FILE, Config
from ..families.family import Family
from ..families.matching import Assignment, assign
from ..families.spec_from_config import Overrides
from ..source.checkpoint import Checkpoint
from .writing import blocks_of

TOKENIZERS = ("tokenizer.model", "tokenizer.json", "vocab.json")
"""One of these is needed to make ids of text."""
TOKENIZER_FILES = (
    "tokenizer.model", "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", GENERATION_FILE,
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip


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
    """Checks everything that can be checked before a byte is written, and chooses the encoding."""
    source = checkpoint.directory
    assignment = assign(family, spec, checkpoint)
    chosen = overrides.dtype or _matrix_dtype(assignment, source)
    for copy, original in assignment.copies:
        _check_copy(checkpoint, copy.name, original.name)
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


def _matrix_dtype(assignment: Assignment, source: Path) -> str:
    """The one encoding of all matrices."""
    dtypes = sorted({t.dtype for t in assignment.tensors() if len(t.shape) > 1})
    if len(dtypes) > 1:
        raise UsageError(
            f"{source}: its matrices are of several types ({', '.join(dtypes)}); choose one with "
            "--dtype"
        )
    return dtypes[0]


def _check_copy(checkpoint: Checkpoint, copy: str, original: str) -> None:
    """`TensorMismatch` unless two tensors hold the same bytes."""
    first, second = checkpoint.tensors[copy], checkpoint.tensors[original]
    same = (first.dtype, first.shape) == (second.dtype, second.shape) and all(
        (a == b).all()
        for a, b in zip(blocks_of(checkpoint, first), blocks_of(checkpoint, second), strict=True)
    )
    if not same:
        raise TensorMismatch(
            f"{checkpoint.directory}: config.json says that {copy} and {original} are tied, but "
            "they differ; set tie_word_embeddings to false if both are meant"
        )
