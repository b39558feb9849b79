"""The small files that a converted model takes over: its tokenizer's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from flashllm.flash.manifest import FileRecord
from flashllm.progress import Progress

from ..families.config import GENERATION_FILE
from ..source.files import read_small
from .destination import OutputFile

TOKENIZER_FILES = (
    "tokenizer.model", "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", GENERATION_FILE,
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
TOKENIZER_BYTES_MAX = 64 << 20
TOKENIZERS = ("tokenizer.model", "tokenizer.json", "vocab.json")
"""One of these is needed to make ids of text."""


def has_tokenizer(directory: Path) -> bool:
    """Whether there is a tokenizer at all."""
    return any((directory / name).exists() for name in TOKENIZERS)


def brings_tokenizer(source: Path) -> bool:
    """Whether a converted `source` will have one: a directory by its files, others always."""
    return not source.is_dir() or has_tokenizer(source)


def write_tokenizer(
    source: Path,
    names: Iterable[str],
    made: Mapping[str, bytes],
    directory: Path,
    progress: Progress,
) -> dict[str, FileRecord]:
    """The files of these names as they are, and the `made` ones.

    A warning where there is no tokenizer among them.
    """
    files = {}
    for name in (*names, *made):
        content = made[name] if name in made else read_small(source, name, TOKENIZER_BYTES_MAX)
        with OutputFile(directory / name) as file:
            file.write(content)
        files[name] = file.record
    if not has_tokenizer(directory):
        progress.warn(
            f"{source}: no tokenizer; the model will run, but only with token ids as input"
        )
    return files
