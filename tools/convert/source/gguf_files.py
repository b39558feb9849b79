"""A model in GGUF: which files it consists of, and what their headers say together."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from flashllm.errors import NotACheckpoint

from .files import PLAIN_NAME, source_file
from .gguf_header import MAGIC, OTHER_MAGICS, GgufHeader, GgufTensor, MetaValue, read_header

ENDING = ".gguf"
PARTS_MAX = 1000
ENTRIES_MAX = 10_000
NAMED_MAX = 6
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_PROJECTOR = "mmproj"
"""What files of a vision tower, which are no models, begin with."""


@dataclass(frozen=True, slots=True)
class GgufFiles:
    """Names of the files of one model, in the order of its parts."""

    directory: Path
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the model is called by its files."""
        return _stem(self.names[0])


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The headers of all parts of a model, which fit together."""

    files: GgufFiles
    headers: tuple[GgufHeader, ...]

    @property
    def metadata(self) -> dict[str, MetaValue]:
        """That of the first part; others only say which part they are."""
        return self.headers[0].metadata

    @property
    def path(self) -> Path:
        """The first part, for messages."""
        return self.files.directory / self.files.names[0]

    def tensors(self) -> dict[str, GgufTensor]:
        """All tensors by name."""
        return {tensor.name: tensor for header in self.headers for tensor in header.tensors}


def find_gguf(source: Path) -> GgufFiles | None:
    """The files of the model that a path leads to; None where that is nothing in GGUF.

    A path is one of the files, or a directory that holds one such model; `NotACheckpoint` where it
    holds several.
    """
    if os.path.isdir(source):
        return _in_directory(source)
    if not os.path.isfile(source) or not (source.suffix == ENDING or _begins_like_gguf(source)):
        return None
    if os.path.islink(source) and source.absolute().parent.parent.name != "snapshots":
        source = source.resolve()  # whoever names a link means what it leads to
    return parts_of(source.parent, source.name)


def open_gguf(files: GgufFiles) -> GgufModel:
    """The headers of all parts; `NotACheckpoint` unless they are parts of one model."""
    headers = tuple(read_header(source_file(files.directory, name)) for name in files.names)
    _check_parts(headers)
    return GgufModel(files, headers)


def _in_directory(directory: Path) -> GgufFiles | None:
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        found += (entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False))
    names = sorted(n for n in found if n.endswith(ENDING) and not n.startswith(_PROJECTOR))
    models = list(dict.fromkeys(map(_stem, names)))
    if len(models) > 1:
        more = f" and {len(models) - NAMED_MAX} more" if len(models) > NAMED_MAX else ""
        raise NotACheckpoint(
            f"{directory}: holds several models in GGUF ({', '.join(models[:NAMED_MAX])}{more});"
            f" give one file: {directory / names[0]}"
        )
    return parts_of(directory, names[0]) if names else None


def parts_of(directory: Path, name: str) -> GgufFiles:
    """The model that a file is, or is a part of, by names alone; `NotACheckpoint` for odd names."""
    if not PLAIN_NAME.fullmatch(name):
        raise NotACheckpoint(
            f"{directory / name}: its name has to consist of letters, digits, points, _ and -;"
            " rename it"
        )
    match = _PART.fullmatch(name)
    if match is None:
        return GgufFiles(directory, (name,))
    count = int(match[3])
    if not 1 <= count <= PARTS_MAX or not 1 <= int(match[2]) <= count:
        raise NotACheckpoint(f"{directory / name}: its name says part {match[2]} of {match[3]}")
    names = (f"{match[1]}-{part + 1:05d}-of-{match[3]}{ENDING}" for part in range(count))
    return GgufFiles(directory, tuple(names))


def _stem(name: str) -> str:
    match = _PART.fullmatch(name)
    return match[1] if match else name.removesuffix(ENDING)


def _check_parts(headers: tuple[GgufHeader, ...]) -> None:
    """What parts say of themselves, and that no tensor is in two of them."""
    owners: dict[str, Path] = {}
    for number, header in enumerate(headers):
        metadata = header.metadata
        count, own = metadata.get("split.count", 1), metadata.get("split.no", 0)
        # A model that was not split may say nothing, or that it is the only part.
        if max(int_or(count, 1), 1) != len(headers) or int_or(own, 0) != number:
            raise NotACheckpoint(
                f"{header.path}: says that it is part {int_or(own, 0) + 1} of {int_or(count, 1)},"
                f" but its name says part {number + 1} of {len(headers)}; give files the names that"
                " they were published with"
            )
        for tensor in header.tensors:
            if (first := owners.setdefault(tensor.name, header.path)) != header.path:
                raise NotACheckpoint(
                    f"{header.path}: tensor {tensor.name!r} is in {first.name} as well"
                )
    total = int_or(headers[0].metadata.get("split.tensors.count"), len(owners))
    if total != len(owners):
        raise NotACheckpoint(
            f"{headers[0].path}: says that there are {total} tensors, but its parts have"
            f" {len(owners)}; is the download complete?"
        )


def int_or(value: MetaValue | None, default: int) -> int:
    """A whole number of the metadata, or the default for what is none."""
    return value if type(value) is int else default


def _begins_like_gguf(path: Path) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(4) in (MAGIC, *OTHER_MAGICS)
    return False
