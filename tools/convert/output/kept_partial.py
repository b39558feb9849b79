"""A conversion that goes on after an interruption: its directory, and the record of what is in.

DST.partial-pull/record.json   what is made, and which shards are in it
DST.partial-pull/source/       the files of the checkpoint that are here
DST.partial-pull/model/        the converted model, of its final size; becomes DST
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flashllm.errors import CannotCreate, LayoutError
from flashllm.flash.manifest import FileRecord
from flashllm.flash.unfinished import pulled_path
from flashllm.system.atomic_file import write_whole
from flashllm.untrusted.strict_json import parse_object

from .destination import check_destination, lock_directory, publish, remove_tree, write_error

RECORD_FILE = "record.json"
RECORD_FORMAT = 1
RECORD_BYTES_MAX = 16 << 20


@dataclass(slots=True)
class KeptPartial:
    """The directory, while its lock is held."""

    directory: Path
    made: dict[str, Any]
    """What the model is made of and how; a conversion goes on only where this is the same."""
    shards: dict[str, FileRecord] = field(default_factory=dict)
    """Size and hash of the shards whose tensors are all in."""
    copies: dict[str, str] = field(default_factory=dict)
    """Hashes of tensors that must turn out equal to others."""

    @property
    def source(self) -> Path:
        """Where the files of the checkpoint are."""
        return self.directory / "source"

    @property
    def model(self) -> Path:
        """Where the converted model grows."""
        return self.directory / "model"

    @property
    def parts(self) -> Path:
        """Where tensors are that wait for a part of them in a later shard."""
        return self.directory / "parts"

    @property
    def holds_weights(self) -> bool:
        """Whether anything of the model is in it, which the next conversion goes on with."""
        return self.model.is_dir() and any(self.model.iterdir())

    def save(self) -> None:
        """Write the record, durably."""
        values = {
            "format": RECORD_FORMAT,
            "made": self.made,
            "shards": {name: asdict(record) for name, record in self.shards.items()},
            "copies": self.copies,
        }
        raw = json.dumps(values, indent=1, sort_keys=True).encode()
        write_whole(self.directory / RECORD_FILE, raw, durable=True)


@contextlib.contextmanager
def kept_partial(destination: Path, made: Mapping[str, Any]) -> Iterator[KeptPartial]:
    """A locked directory beside `destination`, whose `model` takes its place when the block ends.

    Whatever ends it otherwise, the directory stays as soon as `model` holds anything, and the next
    one with the same `made` goes on with it. `CannotCreate` where another process holds it, or
    where it holds something else.
    """
    check_destination(destination)
    directory = pulled_path(destination)
    with _our_errors(directory):
        directory.mkdir(exist_ok=True)
        try:
            lock = lock_directory(directory)
        except BlockingIOError as problem:
            raise CannotCreate(
                f"{destination}: another process is writing it; wait for it"
            ) from problem
        try:
            partial = _opened(directory, dict(made))
            try:
                yield partial
                publish(partial.model, destination)
            finally:
                # Nothing large has begun, or the model has its name.
                if not partial.holds_weights:
                    remove_tree(directory)
        finally:
            os.close(lock)


@contextlib.contextmanager
def _our_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise write_error(problem, directory) from problem


def _opened(directory: Path, made: dict[str, Any]) -> KeptPartial:
    """What the directory holds; a new one begins where it has no record."""
    partial = KeptPartial(directory, made)
    path = directory / RECORD_FILE
    if path.exists():
        _read(path, partial)
    else:
        for left in (partial.source, partial.model, partial.parts):
            remove_tree(left)
    for needed in (partial.source, partial.model):
        needed.mkdir(exist_ok=True)
    if not path.exists():
        partial.save()
    return partial


def _read(path: Path, partial: KeptPartial) -> None:
    """Fill `partial` from the record; `CannotCreate` where it is of something else, or damaged."""
    again = f"remove {path.parent} to begin again, or convert to another place"
    try:
        if path.stat().st_size > RECORD_BYTES_MAX:
            raise LayoutError("too large")
        values = parse_object(path.read_bytes(), path, LayoutError)
        if values.get("format") != RECORD_FORMAT:
            raise LayoutError("of another version")
        found = values["made"]
        partial.shards = {
            name: FileRecord(int(record["bytes"]), str(record["sha256"]))
            for name, record in values["shards"].items()
        }
        partial.copies = {name: str(digest) for name, digest in values["copies"].items()}
    except (LayoutError, AttributeError, KeyError, TypeError, ValueError) as problem:
        raise CannotCreate(
            f"{path}: is no record of a conversion ({problem}); {again}"
        ) from problem
    if found != partial.made:
        differs = _differences(found, partial.made)
        raise CannotCreate(
            f"{path.parent}: holds the beginning of another conversion ({differs}); go on with"
            f" that one, or {again}"
        )


def _differences(found: Any, made: Mapping[str, Any]) -> str:
    """`commit 0123 instead of 4567` for each value that differs."""
    found = found if isinstance(found, dict) else {}
    names = sorted(name for name in {*found, *made} if found.get(name) != made.get(name))
    return ", ".join(
        f"{name.replace('_', ' ')} {found.get(name, 'unset')} instead of {made.get(name, 'unset')}"
        for name in names
    )
