"""A checkpoint as a set of named tensors whose bytes can be read by range, whatever its files are.

Nothing here knows a family. Accepted: `model.safetensors` or `pytorch_model.bin`, each whole or in
shards with an index, which is compared with the real content of the shards; or a model in GGUF.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flashllm.errors import NotACheckpoint, TensorMismatch
from flashllm.flash.safetensors_file import TensorRecord, read_tensor_index
from flashllm.untrusted.strict_json import parse_object

from .files import RangeFile, read_small, source_file
from .fp8_blocks import find_squares
from .gguf_files import GgufFiles, find_gguf
from .gguf_header import MetaValue
from .packed_affine import find_affine
from .packed_awq import find_awq
from .packed_int4 import find_packed
from .paired_blocks import find_pairs
from .parts import StoredInParts
from .pickled import check_allowed, open_pickles
from .tensor import Shard, SourceTensor

INDEX_BYTES_MAX = 32 << 20
SAFETENSORS_FILE = "model.safetensors"
PICKLED_FILE = "pytorch_model.bin"
INDEX_ENDING = ".index.json"


_CONFIG_FILE = "config.json"


class Checkpoint:
    """All shards of a source as one; `files` are the names that its content depends on.

    `names` are what its tensors are called in a checkpoint of transformers, where they have other
    names; `metadata` is what a model in GGUF says of itself, None for other sources.
    """

    def __init__(
        self,
        directory: Path,
        shards: Mapping[str, Shard],
        index: str | None,
        *,
        names: Mapping[str, str] | None = None,
        metadata: Mapping[str, MetaValue] | None = None,
    ) -> None:
        self.directory = directory
        self.names = names or {}
        self.metadata = metadata
        self.settings = "config.json" if metadata is None else "its metadata"
        """Where the settings come from, for messages."""
        self.files = sorted([*shards, *([index] if index else [])])
        self._shards = shards
        self.tensors: dict[str, SourceTensor] = {}
        for shard in shards.values():
            for tensor in shard.tensors():
                first = self.tensors.setdefault(tensor.name, tensor)
                if first is not tensor:
                    raise TensorMismatch(
                        f"{directory}: tensor {tensor.name} is in {first.file} and in {tensor.file}"
                    )
        self.file_of = {name: tensor.file for name, tensor in self.tensors.items()}
        """Of each tensor as it is stored."""
        self._in_parts: dict[str, StoredInParts] = {}
        stored = dict(self.tensors)
        for find in (find_pairs, find_packed, find_awq, find_squares):
            for one in find(stored, str(directory)):
                self._show(one)
        if any(tensor.dtype == "u32" for tensor in stored.values()):
            for matrix in find_affine(stored, str(directory), _affine_settings(directory)):
                self._show(matrix)

    def _show(self, one: StoredInParts) -> None:
        """One tensor instead of those that it is stored as; of the last of their files."""
        for part in one.parts:
            del self.tensors[part.name]
        together = one.together
        name = together.name
        if name in self.tensors:
            raise TensorMismatch(
                f"{self.directory}: tensor {name} is there, and {one.parts[0].name} too"
            )
        last = max(part.file for part in one.parts)
        self._in_parts[name], self.tensors[name] = one, replace(together, file=last)

    @property
    def is_mixed(self) -> bool:
        """Whether its matrices may be of several types."""
        return self.metadata is not None or bool(self._in_parts)

    @property
    def torn(self) -> list[tuple[SourceTensor, SourceTensor]]:
        """Tensors that lie in several files, each with a part that is in a file before its last."""
        return [
            (self.tensors[name], part)
            for name, one in self._in_parts.items()
            for part in one.parts
            if part.file != self.tensors[name].file
        ]

    def read_into(self, buffer: memoryview, tensor: SourceTensor, start: int) -> None:
        """Fill `buffer` with the bytes of a tensor from its byte `start` on."""
        if (one := self._in_parts.get(tensor.name)) is not None:
            one.read_into(buffer, start, self._read_stored)
            return
        self._read_stored(buffer, tensor, start)

    def _read_stored(self, buffer: memoryview, tensor: SourceTensor, start: int) -> None:
        self._shards[tensor.file].read_into(buffer, tensor.name, start)

    def expect(self, tensor: SourceTensor) -> None:
        """Prefetch the bytes of a tensor, if that needs no waiting."""
        one = self._in_parts.get(tensor.name)
        for part in (tensor,) if one is None else one.parts:
            self._shards[part.file].expect(part.name)

    def check_unchanged(self) -> None:
        """`NotACheckpoint` when a file was written to since it was opened."""
        for shard in self._shards.values():
            shard.check_unchanged()


def _affine_settings(directory: Path) -> Mapping[str, object]:
    """What config.json says of the groups of mlx-lm; nothing where it says none."""
    if not (directory / _CONFIG_FILE).exists():
        return {}
    raw = read_small(directory, _CONFIG_FILE, INDEX_BYTES_MAX)
    values = parse_object(raw, directory / _CONFIG_FILE, NotACheckpoint, depth_max=16)
    found = values.get("quantization")
    return found if isinstance(found, dict) else {}


def tensors_of(file: str, index: Mapping[str, TensorRecord]) -> list[SourceTensor]:
    """The tensors of a `.safetensors` file, by its header."""
    return [
        SourceTensor(name, record.dtype, record.shape, file, record.offset, record.nbytes)
        for name, record in index.items()
    ]


class SafetensorsShard:
    """A `.safetensors` file: our own strict reading of its header, then plain ranges."""

    def __init__(self, directory: Path, name: str) -> None:
        path = source_file(directory, name)
        self._name = name
        self._index: dict[str, TensorRecord] = read_tensor_index(path, NotACheckpoint)
        self._file = RangeFile(path)

    def tensors(self) -> list[SourceTensor]:
        """What the header names."""
        return tensors_of(self._name, self._index)

    def read_into(self, buffer: memoryview, name: str, start: int) -> None:
        """A positioned read."""
        record = self._index[name]
        assert start + len(buffer) <= record.nbytes
        self._file.read_into(buffer, record.offset + start)

    def expect(self, name: str) -> None:
        """Into the page cache."""
        record = self._index[name]
        self._file.expect(record.offset, record.nbytes)

    def check_unchanged(self) -> None:
        """By size and time of the last change."""
        self._file.check_unchanged()

    def close(self) -> None:
        """Close the file; what was read ahead of it leaves the page cache, too."""
        self._file.forget(0, self._file.size)
        self._file.close()


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Names of the files with a checkpoint's weights, and their index."""

    directory: Path
    shards: tuple[str, ...]
    index: str | None = None
    weight_map: dict[str, str] | None = None
    """Tensor -> shard; None where there is one file and no index."""

    @property
    def pickled(self) -> bool:
        """Whether they are pickles."""
        return self.shards[0].endswith(".bin")


def named_weights(is_there: Callable[[str], bool]) -> str | None:
    """The file that leads to the weights, by names alone: all of them, or an index of shards."""
    for whole in (SAFETENSORS_FILE, PICKLED_FILE):
        for name in (whole, f"{whole}{INDEX_ENDING}"):
            if is_there(name):
                return name
    return None


def gguf_of(source: Path) -> GgufFiles | None:
    """The model in GGUF that a source is; None where it has other weights, or none.

    `NotACheckpoint` for a directory of several.
    """
    return None if _weights_in(source) is not None else find_gguf(source)


def weight_files(source: Path) -> WeightFiles:
    """The weights of a source, by names alone; `NotACheckpoint` where there are none."""
    name = _weights_in(source)
    if name is not None:
        return weight_files_of(source, name)
    if (files := find_gguf(source)) is not None:
        return WeightFiles(files.directory, files.names)
    raise NotACheckpoint(
        f"{source}: no weights: looked for {SAFETENSORS_FILE} and {PICKLED_FILE}, "
        "whole or with an index of shards, and for a .gguf"
    )


def _weights_in(source: Path) -> str | None:
    return named_weights(lambda name: os.path.lexists(source / name))


def weight_files_of(directory: Path, name: str) -> WeightFiles:
    """The weights that a file leads to, `name` being one that `named_weights` gave."""
    if not name.endswith(INDEX_ENDING):
        return WeightFiles(directory, (name,))
    weight_map = read_weight_map(directory, name)
    return WeightFiles(directory, tuple(sorted(set(weight_map.values()))), name, weight_map)


@contextmanager
def open_checkpoint(directory: Path, allow_pickle: bool = False) -> Iterator[Checkpoint]:
    """The weights in a directory; `NotACheckpoint` if there are none or they are inconsistent.

    `UsageError` for pickles unless they are allowed.
    """
    files = weight_files(directory)
    if files.pickled:
        check_allowed(directory / files.shards[0], allow_pickle)
    with ExitStack() as stack:
        shards: dict[str, Shard] = {}
        if files.pickled:
            for name, shard in open_pickles(directory, files.shards).items():
                shards[name] = shard
                stack.callback(shard.close)
        else:
            for name in files.shards:
                shards[name] = SafetensorsShard(directory, name)
                stack.callback(shards[name].close)
        checkpoint = Checkpoint(directory, shards, files.index)
        check_weight_map(files, checkpoint)
        yield checkpoint


def read_weight_map(directory: Path, index: str) -> dict[str, str]:
    """Tensor -> shard as an index has it; only plain names of the index's own kind."""
    path = directory / index
    ending = ".safetensors" if index.startswith(SAFETENSORS_FILE) else ".bin"
    pattern = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*" + re.escape(ending))
    values = parse_object(read_small(directory, index, INDEX_BYTES_MAX), path, NotACheckpoint)
    weight_map = values.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise NotACheckpoint(f"{path}: has no weight_map")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not pattern.fullmatch(shard):
            raise NotACheckpoint(f"{path}: {tensor}: {str(shard)[:80]!r} is no name of a shard")
    return weight_map


def check_weight_map(files: WeightFiles, checkpoint: Checkpoint) -> None:
    """The index, if there is one, and the shards must name the same tensors in the same files."""
    if files.index is None or files.weight_map is None:
        return
    weight_map, path = files.weight_map, checkpoint.directory / files.index
    found = checkpoint.file_of
    wrong = sorted(
        name for name in {*weight_map, *found} if weight_map.get(name) != found.get(name)
    )
    if wrong:
        name = wrong[0]
        raise TensorMismatch(
            f"{path}: tensor {name}: the index says {weight_map.get(name, 'nothing')}, "
            f"the shards say {found.get(name, 'nothing')} ({len(wrong)} such tensors)"
        )
