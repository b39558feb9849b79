"""The small files that a converted model takes over as they are: its tokenizer's."""

from __future__ import annotations

from collections.abc import Iterable
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


def copy_tokenizer(
    source: Path, names: Iterable[str], directory: Path, progress: Progress
) -> dict[str, FileRecord]:
    """The files of these names as they are; a warning where there is no tokenizer among them."""
    files = {}
    for name in names:
        with OutputFile(directory / name) as file:
            file.write(read_small(source, name, TOKENIZER_BYTES_MAX))
        files[name] = file.record
    if not has_tokenizer(directory):
        progress.warn(
            f"{source}: no tokenizer; the model will run, but only with token ids as input"
        )
    return files
