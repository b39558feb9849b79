"""The manifest: what a converted model consists of, and what it was made from.

It is written last, with its hash in `manifest.sha256`: a directory is complete or does not open.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashllm.errors import LayoutError, ModelNotFound, ModelTruncated
from flashllm.flash.file_names import (
    BUNDLES_FILE,
    MANIFEST_FILE,
    MANIFEST_HASH_FILE,
    REQUIRED_FILES,
)
from flashllm.flash.links import check_links
from flashllm.flash.opening_errors import opening_errors
from flashllm.spec import ModelSpec
from flashllm.untrusted.strict_json import parse_object

LAYOUT_VERSION = 1
EXPERTS_LAYOUT_VERSION = 2

MANIFEST_BYTES_MAX = 16 << 20
REQUANTISED_KEY = "requantised"
"""Of `source`: types of weights that had been rounded before, and were rounded again."""
_REQUANTISED_MAX = 16
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEYS = {"layout_version", "spec", "name", "synthetic", "source", "files", "tool_version"}


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and SHA-256 (hexadecimal) of one file of a converted model."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` holds.

    `source` is for people and for provenance, never needed to run: the family, the files with
    bytes and sha256, the settings. `files` names every other file of the directory.
    """

    layout_version: int
    spec: ModelSpec
    name: str
    synthetic: bool
    source: dict[str, Any]
    files: dict[str, FileRecord]
    tool_version: str

    def to_bytes(self) -> bytes:
        """The same manifest gives the same bytes."""
        values = {
            "layout_version": self.layout_version,
            "spec": self.spec.to_json(),
            "name": self.name,
            "synthetic": self.synthetic,
            "source": self.source,
            "files": {name: asdict(record) for name, record in self.files.items()},
            "tool_version": self.tool_version,
        }
        return (json.dumps(values, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, raw: bytes, path: Path) -> Manifest:
        """The manifest in `raw`; `LayoutError` naming `path` if it is not valid."""
        values = parse_object(raw, path, LayoutError)
        version = values.get("layout_version")
        if type(version) is not int or version not in (LAYOUT_VERSION, EXPERTS_LAYOUT_VERSION):
            raise LayoutError(
                f"{path}: layout version {version!r}, written by flashllm "
                f"{values.get('tool_version', '?')!r}; this version reads {LAYOUT_VERSION} and"
                f" {EXPERTS_LAYOUT_VERSION}. Convert the checkpoint again, or update flashllm."
            )
        if set(values) != _KEYS:
            raise LayoutError(f"{path}: keys missing or unknown: {sorted(set(values) ^ _KEYS)}")
        kinds = {"name": str, "synthetic": bool, "source": dict, "tool_version": str}
        for key, kind in kinds.items():
            if not isinstance(values[key], kind):
                raise LayoutError(f"{path}: {key} is {values[key]!r}; expected {kind.__name__}")
        values["spec"] = ModelSpec.from_json(values["spec"])
        if version != layout_version(values["spec"]):
            raise LayoutError(
                f"{path}: layout version {version}, but its spec"
                f" {'has no' if values['spec'].experts is None else 'has'} experts"
            )
        values["files"] = _file_records(values["files"], path)
        return cls(**values)


def format_requantised(source: Mapping[str, Any]) -> str:
    """What was rounded twice, by `source` of a manifest, for people; "" for nothing."""
    types = source.get(REQUANTISED_KEY)
    if not isinstance(types, list) or not all(isinstance(found, str) for found in types):
        return ""
    return f"requantised from {', '.join(types[:_REQUANTISED_MAX])}" if types else ""


def layout_version(spec: ModelSpec) -> int:
    """The version of the layout that a model of this spec is written in."""
    return LAYOUT_VERSION if spec.experts is None else EXPERTS_LAYOUT_VERSION


def _file_records(values: object, path: Path) -> dict[str, FileRecord]:
    """The `files` of a manifest: plain names only, and all of `REQUIRED_FILES`."""
    if not isinstance(values, dict):
        raise LayoutError(f"{path}: files is not an object")
    records = {}
    for name, entry in values.items():
        if not _PLAIN_NAME.fullmatch(name) or name in (MANIFEST_FILE, MANIFEST_HASH_FILE):
            raise LayoutError(f"{path}: {name[:80]!r} is not a plain file name")
        if not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
            raise LayoutError(f"{path}: {name}: expected bytes and sha256")
        size, digest = entry["bytes"], entry["sha256"]
        if type(size) is not int or size < 0:
            raise LayoutError(f"{path}: {name}: bytes is {size!r}")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise LayoutError(f"{path}: {name}: sha256 is not 64 hexadecimal digits")
        records[name] = FileRecord(size, digest)
    absent = [name for name in REQUIRED_FILES if name not in records]
    if absent:
        raise LayoutError(f"{path}: does not name {', '.join(absent)}")
    return records


def manifest_hash_line(raw: bytes) -> bytes:
    """The content of `manifest.sha256` for this manifest: a line that sha256sum can check."""
    return f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST_FILE}\n".encode()


def manifest_hash(directory: Path) -> str:
    """SHA-256 of a complete model's manifest, in hexadecimal digits: the same model, the same hash.

    The manifest has the hashes of the model's other files. Errors as of `read_manifest`.
    """
    read_manifest(directory)
    path = directory / MANIFEST_FILE
    with opening_errors(path):
        return hashlib.sha256(_read_small(path, directory)).hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a complete converted model, its hash and the sizes of all files checked.

    `ModelNotFound` where there is nothing, `LayoutError` where it is no converted model or half of
    one, or where a link leads out of it, `ModelTruncated` where a file is shorter than it was
    written.
    """
    if not directory.exists():
        raise ModelNotFound(f"{directory}: there is no such model; `flashllm convert` makes one")
    path, hash_path = directory / MANIFEST_FILE, directory / MANIFEST_HASH_FILE
    if directory.is_dir():
        check_links(directory)
    with opening_errors(path):
        raw = _read_small(path, directory)
    with opening_errors(hash_path):
        hash_line = _read_small(hash_path, directory)
    if hash_line != manifest_hash_line(raw):
        raise LayoutError(
            f"{path}: does not match {MANIFEST_HASH_FILE}: damaged or edited; convert again"
        )
    manifest = Manifest.from_bytes(raw, path)
    for name, record in manifest.files.items():
        _check_size(directory / name, record)
    return manifest


def _read_small(path: Path, directory: Path) -> bytes:
    """The bytes of a manifest file, or the reason why `directory` is no converted model."""
    if not path.is_file():
        if (directory / "config.json").is_file() and not (directory / BUNDLES_FILE).exists():
            raise LayoutError(
                f"{directory}: this is a checkpoint, not yet a converted model; "
                f"first: flashllm convert {directory}"
            )
        raise LayoutError(
            f"{directory}: not a converted model, or half of one: it has no {path.name}; "
            "make one with: flashllm convert CHECKPOINT"
        )
    if path.stat().st_size > MANIFEST_BYTES_MAX:
        raise LayoutError(f"{path}: larger than {MANIFEST_BYTES_MAX} bytes")
    return path.read_bytes()


def _check_size(path: Path, record: FileRecord) -> None:
    """`LayoutError` for a file absent or grown, `ModelTruncated` for one too short."""
    if not path.is_file():
        raise LayoutError(f"{path}: missing; convert the checkpoint again")
    size = path.stat().st_size
    if size < record.bytes:
        raise ModelTruncated(
            f"{path}: {size} bytes, but {record.bytes} were written; convert the checkpoint again"
        )
    if size > record.bytes:
        raise LayoutError(
            f"{path}: {size} bytes, but only {record.bytes} were written; convert again"
        )
