"""A checkpoint that is elsewhere: its shards come one at a time, are converted, and go again.

Headers are known from the start, so that everything can be checked before anything large comes.
Where numbers of a tensor lie in one shard and its scales in a later one, what comes first is kept
in a file of its own until the other is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from flashllm.errors import NotACheckpoint
from flashllm.flash.manifest import FileRecord
from flashllm.flash.safetensors_file import (
    PREFIX_BYTES,
    TensorRecord,
    parse_tensor_index,
    read_header_bytes,
)
from flashllm.progress import Progress
from flashllm.system.atomic_file import sync

from .checkpoint import SafetensorsShard, WeightFiles, tensors_of
from .files import BLOCK_BYTES, RangeFile
from .tensor import SourceTensor


class ShardSource(Protocol):
    """Where the shards come from. All methods raise errors of ours."""

    @property
    def identity(self) -> Mapping[str, str]:
        """What tells this checkpoint from any other: a conversion goes on with the same only."""

    @property
    def files(self) -> WeightFiles:
        """The shards, and the index that names them; all of them safetensors."""

    @property
    def shard_bytes(self) -> Mapping[str, int]:
        """The size of each shard."""

    def prepare(self, directory: Path) -> Path:
        """Put everything but the shards below `directory`; returns where the checkpoint is."""

    def read_start(self, name: str, nbytes: int) -> bytes:
        """The first bytes of a shard, without fetching it."""

    def fetch(self, name: str, progress: Progress) -> FileRecord:
        """Put a shard beside the other files, verified; `progress` advances by its size."""

    def drop(self, name: str) -> None:
        """Remove a shard."""


class ArrivingShard:
    """A `.safetensors` file by its header alone; its tensors can be read while it `is_here`."""

    def __init__(self, path: Path, index: Mapping[str, TensorRecord], kept: Path) -> None:
        self._path = path
        self._index = index
        self._shard: SafetensorsShard | None = None
        self._kept = kept
        self._kept_files: dict[str, RangeFile] = {}

    def tensors(self) -> list[SourceTensor]:
        """What the header names."""
        return tensors_of(self._path.name, self._index)

    @contextmanager
    def is_here(self) -> Iterator[None]:
        """While the block runs the file is open; `NotACheckpoint` unless its header is the same."""
        shard = SafetensorsShard(self._path.parent, self._path.name)
        try:
            if shard.tensors() != self.tensors():
                raise NotACheckpoint(
                    f"{self._path}: its header is not the one that was sent before; run the same "
                    "command again"
                )
            self._shard = shard
            yield
            shard.check_unchanged()
        finally:
            self._shard = None
            shard.close()

    def keep(self, name: str) -> None:
        """Copy a tensor, so that it can be read when the file has gone."""
        record, block = self._index[name], memoryview(bytearray(BLOCK_BYTES))
        path = self._kept_path(name)
        path.parent.mkdir(exist_ok=True)
        with open(path, "wb") as file:
            for start in range(0, record.nbytes, BLOCK_BYTES):
                content = block[: min(BLOCK_BYTES, record.nbytes - start)]
                self._open.read_into(content, name, start)
                file.write(content)
        sync(path)

    def forget(self, name: str) -> None:
        """Remove a tensor that was kept."""
        if (file := self._kept_files.pop(name, None)) is not None:
            file.close()
        self._kept_path(name).unlink(missing_ok=True)

    def read_into(self, buffer: memoryview, name: str, start: int) -> None:
        """A positioned read, of the file while it is here or of what was kept of it."""
        if self._shard is not None:
            self._shard.read_into(buffer, name, start)
            return
        if name not in self._kept_files:
            self._kept_files[name] = RangeFile(self._kept_path(name))
        self._kept_files[name].read_into(buffer, start)

    def expect(self, name: str) -> None:
        """Into the page cache."""
        if self._shard is not None:
            self._shard.expect(name)

    def _kept_path(self, name: str) -> Path:
        number = list(self._index).index(name)
        return self._kept / f"{self._path.name}.{number}"

    def check_unchanged(self) -> None:
        """Checked whenever the file goes; nothing of it is needed afterwards."""

    def close(self) -> None:
        """What was kept of it; the file is open inside `is_here` alone."""
        for file in self._kept_files.values():
            file.close()
        self._kept_files.clear()

    @property
    def _open(self) -> SafetensorsShard:
        assert self._shard is not None, f"{self._path.name} is not here"
        return self._shard


START_BYTES = 256 << 10
"""Asked for at first: most headers are shorter."""


def arriving_shard(source: ShardSource, directory: Path, name: str, kept: Path) -> ArrivingShard:
    """A shard by the header that the source sends; strict as for a file that is here.

    `kept` is the directory for tensors of it that are needed when it has gone.
    """
    path, file_bytes = directory / name, source.shard_bytes[name]
    start = source.read_start(name, min(START_BYTES, file_bytes))
    header_bytes = read_header_bytes(start[:PREFIX_BYTES], file_bytes, path, NotACheckpoint)
    end = PREFIX_BYTES + header_bytes
    if end > len(start):
        start = source.read_start(name, end)
    return ArrivingShard(
        path, parse_tensor_index(start[PREFIX_BYTES:end], file_bytes, path, NotACheckpoint), kept
    )
