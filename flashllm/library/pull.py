"""Gets a checkpoint from the hub: what it would be, then only the files that a conversion needs.

They go into the Hugging Face cache; or, shard by shard, straight into a converted model.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.convert import (
    WeightFiles,
    check_space,
    convert,
    convert_shards,
    describe,
    named_weights,
    weight_files_of,
)
from flashllm.convert.families.config import CONFIG_BYTES_MAX, CONFIG_FILE, GENERATION_FILE
from flashllm.convert.output.tokenizer_files import TOKENIZER_BYTES_MAX, TOKENIZER_FILES
from flashllm.convert.source.checkpoint import INDEX_BYTES_MAX, INDEX_ENDING
from flashllm.errors import Interrupted, ModelError, NotACheckpoint, UsageError
from flashllm.flash.manifest import FileRecord
from flashllm.library import hub
from flashllm.library.download import CachedRepository
from flashllm.library.formatting import clean
from flashllm.library.hf_cache import cache_directories, checkpoints
from flashllm.library.hub import RemoteFile, Repository
from flashllm.library.hub_names import gguf_stem
from flashllm.library.models import Checkpoint
from flashllm.progress import Progress, SilentProgress
from flashllm.system.filesystem import existing_parent
from flashllm.units import format_bytes

if TYPE_CHECKING:
    from flashllm.spec import ModelSpec

NAMED_MAX = 12
"""Of the models in GGUF that a message names."""
GGUF_ENDING, PROJECTOR = ".gguf", "mmproj"
"""The end of names of such files; vision towers, which are no models, begin with the other."""
COMMIT_LENGTH_MIN = 7
"""Of the beginning of a commit that stands for it."""


@dataclass(frozen=True)
class RemoteCheckpoint:
    """A checkpoint in a repository: everything about it that is known without its weights."""

    repository: Repository
    small: tuple[RemoteFile, ...]
    """Its configuration, tokenizer, and the index of its shards."""
    weights: WeightFiles
    texts: Mapping[str, bytes]
    """Contents of config.json, and of generation_config.json where there is one."""

    @property
    def shards(self) -> tuple[RemoteFile, ...]:
        """The files of its weights."""
        return tuple(self.repository.files[name] for name in self.weights.shards)

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """All files that a conversion needs."""
        return (*self.small, *self.shards)

    @cached_property
    def bytes(self) -> int:
        """The size of these files."""
        return sum(file.size for file in self.files)

    def source_in(self, snapshot: Path) -> Path:
        """What is converted, where all files are in the directory `snapshot`."""
        return snapshot

    def describe(self, **options: Any) -> ModelSpec:
        """The spec that it gets with these options of a conversion; errors as of `describe`."""
        with _written(self.repository, self.texts) as directory:
            spec: ModelSpec = describe(directory, **options)
        return spec


def examine(repository: Repository) -> RemoteCheckpoint:
    """The checkpoint in a repository, from the names of its files, its configuration and its index.

    `NotACheckpoint` where there is nothing that can be converted. For a model in GGUF see
    `pull_gguf.examine_gguf`.
    """
    files = repository.files
    leading = named_weights(files.__contains__)
    if CONFIG_FILE not in files or leading is None:
        raise NotACheckpoint(_nothing_to_convert(repository))
    texts = {
        name: hub.read_whole(repository, files[name], CONFIG_BYTES_MAX)
        for name in (CONFIG_FILE, GENERATION_FILE)
        if name in files
    }
    index = leading if leading.endswith(INDEX_ENDING) else None
    indices = {}
    if index is not None:
        indices[index] = hub.read_whole(repository, files[index], INDEX_BYTES_MAX)
    with _written(repository, indices) as directory:
        weights: WeightFiles = weight_files_of(directory, leading)
    if absent := [name for name in weights.shards if name not in files]:
        raise NotACheckpoint(
            f"{repository.name}: {index} names {absent[0]}, which is not there ({len(absent)} such"
            " files); its authors have not uploaded all of it"
        )
    names = (CONFIG_FILE, *TOKENIZER_FILES, *([index] if index else []))
    small = tuple(files[name] for name in names if name in files)
    for file in small:
        hub.check_small(repository, file, TOKENIZER_BYTES_MAX)
    return RemoteCheckpoint(repository, small, weights, texts)


@contextlib.contextmanager
def _written(repository: Repository, texts: Mapping[str, bytes]) -> Iterator[Path]:
    """A directory with these files, whose path errors do not name, but the repository."""
    with tempfile.TemporaryDirectory(prefix="flashllm-") as name:
        for file, content in texts.items():
            (Path(name) / file).write_bytes(content)
        try:
            yield Path(name)
        except (ModelError, UsageError) as problem:
            said = str(problem).replace(f"{name}/", f"{repository.name}: ")
            raise type(problem)(said.replace(name, repository.name)) from problem


_FORMATS = {
    ".safetensors": "safetensors under names that no conversion looks for",
    ".bin": "pickles under names that no conversion looks for",
    ".pth": "pickles of another layout",
    ".pt": "pickles of another layout",
    ".h5": "weights for TensorFlow",
    ".msgpack": "weights for Flax",
    ".onnx": "ONNX",
}


def _nothing_to_convert(repository: Repository) -> str:
    """What there is instead of a checkpoint, and where one may be."""
    names = sorted(repository.files)
    if "adapter_config.json" in names:
        found = "an adapter (LoRA), which changes another model and is none itself"
    elif models := gguf_models(repository):
        shown = ", ".join(models[:NAMED_MAX])
        more = f" and {len(models) - NAMED_MAX} more" if len(models) > NAMED_MAX else ""
        found = f"models in GGUF; choose one with --file NAME: {shown}{more}"
    else:
        ending = next((e for e in _FORMATS if any(name.endswith(e) for name in names)), None)
        if ending is not None:
            example = next(name for name in names if name.endswith(ending))
            found = f"{_FORMATS[ending]} ({clean(example)})"
        elif CONFIG_FILE not in names:
            found = f"no {CONFIG_FILE}"
        else:
            found = "no weights"
        found += "" if names else ", and no other file either"
    advice = "look for a repository with model.safetensors"
    if repository.made_from is not None:
        advice = f"it was made from {repository.made_from}: flashllm pull {repository.made_from}"
    return f"{repository.name}: holds {found}; {advice}"


def gguf_models(repository: Repository) -> list[str]:
    """The models in GGUF of a repository: the first file of each, and the size of all its parts."""
    sizes: dict[str, int] = {}
    firsts: dict[str, str] = {}
    for name in sorted(repository.files):
        if name.endswith(GGUF_ENDING) and not name.startswith(PROJECTOR):
            stem = gguf_stem(name)
            firsts.setdefault(stem, name)
            sizes[stem] = sizes.get(stem, 0) + repository.files[name].size
    return [f"{clean(first)} ({format_bytes(sizes[stem])})" for stem, first in firsts.items()]


def cached(checkpoint: RemoteCheckpoint) -> CachedRepository:
    """The repository in the user's Hugging Face cache."""
    return CachedRepository(checkpoint.repository, cache_directories()[0])


def is_cached(checkpoint: RemoteCheckpoint) -> bool:
    """Whether all files that a conversion needs are in the cache."""
    place = cached(checkpoint)
    return all(place.has(file) for file in checkpoint.files)


def find_cached(name: str, revision: str) -> Checkpoint | None:
    """A checkpoint of that name and revision in the cache that can be converted, without asking."""
    for found in checkpoints():
        if found.name == name and not found.problem:
            abbreviated = len(revision) >= COMMIT_LENGTH_MIN
            if revision == found.revision.split(" ")[0] or (
                abbreviated and found.path.name.startswith(revision)
            ):
                return found
    return None


def fetch(checkpoint: RemoteCheckpoint, progress: Progress) -> Path:
    """All files that a conversion needs, into the cache; returns their directory there.

    `Interrupted` on Ctrl-C; the same call goes on then, and after every error.
    """
    place = cached(checkpoint)
    missing = sum(file.size - place.bytes_here(file) for file in checkpoint.files)
    check_space(existing_parent(place.snapshot), missing)
    with _stoppable(checkpoint.repository, progress):
        if missing:
            progress.start(f"fetching {checkpoint.repository.name}", missing)
        for file in checkpoint.files:
            place.fetch(file, _WhatComes(progress, place.bytes_here(file)))
        place.note_revision()
    return checkpoint.source_in(place.snapshot)


class _WhatComes(SilentProgress):
    """Passes on the progress of a file without the bytes of it that were here before."""

    def __init__(self, progress: Progress, here_bytes: int) -> None:
        self._progress = progress
        self._here_bytes = here_bytes

    def advance(self, nbytes: int) -> None:
        """`nbytes` more are here, or are known to be."""
        known = min(nbytes, self._here_bytes)
        self._here_bytes -= known
        if nbytes > known:
            self._progress.advance(nbytes - known)

    def warn(self, text: str) -> None:
        """A warning to the user."""
        self._progress.warn(text)


@contextlib.contextmanager
def _stoppable(repository: Repository, progress: Progress) -> Iterator[None]:
    try:
        with hub.warnings_to(progress):
            yield
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"{repository.name}: stopped; what was fetched stays. Run the same command to go on"
        ) from stop
    finally:
        progress.finish()


@dataclass(frozen=True, slots=True)
class Making:
    """How a converted model is to be made of what is fetched; as the options of `convert`."""

    dtype: str | None = None
    resident_dtype: str | None = None
    act: str | None = None
    fatrelu_threshold: float | None = None
    predictors: str = "none"
    calibration: Path | None = None
    predictor_dtype: str | None = None
    order: str = "none"
    allow_pickle: bool = False
    requantise: bool = False

    @property
    def reading(self) -> dict[str, Any]:
        """What completes or corrects config.json."""
        return {
            "dtype": self.dtype,
            "resident_dtype": self.resident_dtype,
            "act": self.act,
            "fatrelu_threshold": self.fatrelu_threshold,
            "requantise": self.requantise,
        }

    @property
    def learning(self) -> dict[str, Any]:
        """What needs all of a checkpoint at once, so far as it is asked for."""
        usual = Making()
        names = ("predictors", "calibration", "predictor_dtype", "order")
        return {n: getattr(self, n) for n in names if getattr(self, n) != getattr(usual, n)}


def check_pickles(checkpoint: RemoteCheckpoint, making: Making) -> None:
    """`UsageError` for weights in pickles, unless they may be read; before they are fetched."""
    if checkpoint.weights.pickled and not making.allow_pickle:
        raise UsageError(
            f"{checkpoint.repository.name}: its weights are pickles, which can carry programs; add"
            " --keep-source --allow-pickle to read their tensors, in a process with limits, or look"
            " for a repository with safetensors"
        )


def check_streamable(checkpoint: RemoteCheckpoint, making: Making) -> None:
    """Errors for what cannot be converted shard by shard."""
    name = checkpoint.repository.name
    for option, value in making.learning.items():
        flag = option.replace("_", "-")
        raise UsageError(
            f"--{flag} {value}: needs the whole checkpoint, and `pull --convert` drops each file"
            " once it is converted; add --keep-source"
        )
    if checkpoint.weights.pickled:
        raise UsageError(
            f"{name}: its weights are pickles, of which nothing is known before they are here"
            " completely; add --keep-source, or look for a repository with safetensors"
        )


def fetch_and_convert(
    checkpoint: RemoteCheckpoint, destination: Path, making: Making, progress: Progress
) -> None:
    """A converted model at `destination`, from the cache where all of it is there.

    Else each shard comes, is converted and goes: see `convert_shards`.
    """
    if is_cached(checkpoint):
        convert_cached(checkpoint, destination, making, progress)
        return
    check_streamable(checkpoint, making)
    with hub.warnings_to(progress):
        convert_shards(HubShards(checkpoint), destination, progress=progress, **making.reading)


def convert_cached(
    checkpoint: RemoteCheckpoint, destination: Path, making: Making, progress: Progress
) -> None:
    """A converted model at `destination`, from the files in the cache, which stay there."""
    convert(
        checkpoint.source_in(cached(checkpoint).snapshot),
        destination,
        allow_pickle=making.allow_pickle,
        progress=progress,
        **making.reading,
        **making.learning,
    )


class HubShards:
    """The shards of a checkpoint in a repository, for `convert_shards`."""

    def __init__(self, checkpoint: RemoteCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._place: CachedRepository | None = None

    @property
    def identity(self) -> Mapping[str, str]:
        """Repository and commit."""
        repository = self._checkpoint.repository
        return {"repository": repository.name, "commit": repository.commit}

    @property
    def files(self) -> WeightFiles:
        """Its shards and their index."""
        return self._checkpoint.weights

    @property
    def shard_bytes(self) -> Mapping[str, int]:
        """The size of each shard."""
        return {file.name: file.size for file in self._checkpoint.shards}

    def prepare(self, directory: Path) -> Path:
        """A small cache in `directory`, with all files but the shards."""
        self._place = CachedRepository(self._checkpoint.repository, directory)
        for file in self._checkpoint.small:
            self._place.fetch(file, SilentProgress())
        return self._place.snapshot

    def read_start(self, name: str, nbytes: int) -> bytes:
        """The first bytes of a shard."""
        return hub.read_start(self._checkpoint.repository, self._file(name), nbytes)

    def fetch(self, name: str, progress: Progress) -> FileRecord:
        """A shard beside the other files; its hash is the one that was computed as it came."""
        file = self._file(name)
        path = self._here.fetch(file, progress)
        sha256 = file.sha256
        if sha256 is None:  # a small one, of which git knows another hash
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        return FileRecord(file.size, sha256)

    def drop(self, name: str) -> None:
        """Remove a shard."""
        self._here.drop(self._file(name))

    @property
    def _here(self) -> CachedRepository:
        assert self._place is not None, "prepare comes first"
        return self._place

    def _file(self, name: str) -> RemoteFile:
        return self._checkpoint.repository.files[name]
