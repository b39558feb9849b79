"""A model in GGUF in a repository of the hub: one of its files, or all parts of one.

What it is and needs is known from the beginning of each part, before anything large is fetched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.convert import WeightFiles, describe
from flashllm.convert.families.opening import READ_FOR_THE_CONFIG
from flashllm.convert.output.tokenizer_files import TOKENIZER_BYTES_MAX, TOKENIZER_FILES
from flashllm.convert.source.gguf_files import parts_of
from flashllm.convert.source.gguf_header import HEADER_BYTES_MAX, needed_start
from flashllm.errors import ModelError, NotACheckpoint
from flashllm.library import hub
from flashllm.library.hub import RemoteFile, Repository
from flashllm.library.pull import GGUF_ENDING, RemoteCheckpoint, gguf_models

if TYPE_CHECKING:
    from flashllm.spec import ModelSpec

START_BYTES = 1 << 20
"""Asked for at first; a vocabulary of 150,000 tokens takes some 8 MB."""
_STEP = 4
"""How many times as much is asked for where that is not enough."""


@dataclass(frozen=True)
class RemoteGguf(RemoteCheckpoint):
    """A model in GGUF by the beginnings of its files."""

    starts: Mapping[str, bytes]

    def source_in(self, snapshot: Path) -> Path:
        """Its first file."""
        first: str = self.weights.shards[0]
        return snapshot / first

    def describe(self, **options: Any) -> ModelSpec:
        """The spec that it gets with these options of a conversion; errors as of `describe`."""
        with _sparse(self.repository, self.starts) as directory:
            spec: ModelSpec = describe(directory / self.weights.shards[0], **options)
        return spec


def examine_gguf(repository: Repository, name: str) -> RemoteGguf:
    """The model that the file `name` of a repository is, or is a part of.

    `NotACheckpoint` where it is not there, or not all of it.
    """
    files = repository.files
    if name not in files or not name.endswith(GGUF_ENDING):
        there = ", ".join(gguf_models(repository)) or "none"
        raise NotACheckpoint(
            f"{repository.name}: has no file {name:.100} in GGUF; those that it has: {there}"
        )
    names = parts_of(Path(repository.name), name).names
    if absent := [part for part in names if part not in files]:
        raise NotACheckpoint(
            f"{repository.name}: {name} is a part of a model of which {absent[0]} is not there; its"
            " authors have not uploaded all of it"
        )
    small = tuple(files[one] for one in TOKENIZER_FILES if one in files)
    for file in small:
        hub.check_small(repository, file, TOKENIZER_BYTES_MAX)
    starts = {part: _start(repository, files[part]) for part in names}
    weights = WeightFiles(Path(repository.name), names)
    return RemoteGguf(repository, small, weights, {}, starts)


def _start(repository: Repository, file: RemoteFile) -> bytes:
    """As much of a file as a description needs."""
    path = Path(repository.name, file.name)
    nbytes = START_BYTES
    while True:
        nbytes = min(nbytes, HEADER_BYTES_MAX, file.size)
        start = hub.read_start(repository, file, nbytes)
        needed = needed_start(path, start, file.size, READ_FOR_THE_CONFIG)
        if needed is None:
            nbytes *= _STEP
        elif needed > HEADER_BYTES_MAX:
            raise NotACheckpoint(
                f"{path}: {' and '.join(READ_FOR_THE_CONFIG)} lies too far behind its header to"
                " know what it is; download it and convert the file"
            )
        elif needed <= len(start):
            return start
        else:
            nbytes = needed


@contextmanager
def _sparse(repository: Repository, starts: Mapping[str, bytes]) -> Iterator[Path]:
    """A directory with files of the right sizes that begin so; errors name the repository."""
    with tempfile.TemporaryDirectory(prefix="flashllm-") as name:
        for part, start in starts.items():
            with open(Path(name) / part, "wb") as file:
                file.write(start)
                file.truncate(repository.files[part].size)
        try:
            yield Path(name)
        except ModelError as problem:
            said = str(problem).replace(f"{name}/", f"{repository.name}: ")
            raise type(problem)(said.replace(name, repository.name)) from problem
