"""Holds what is read of a model's files against their checksums, and says what is damaged.

Bundles: the core compares each with `ffn.crc32c` when it is read. Files that are read whole: a
CRC-32C of each tensor, where the model has them, else the SHA-256 of the manifest. These find
accidents, not attackers, who would change the checksums too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.errors import ChecksumMismatch, LayoutError, ReadFailed
from flashllm.flash.file_names import (
    BUNDLES_FILE,
    CHECKSUMS_FILE,
    PREDICTORS_FILE,
    RESIDENT_FILE,
    TENSOR_CHECKSUMS,
)
from flashllm.flash.layout import BundleHeader
from flashllm.flash.manifest import FileRecord, Manifest
from flashllm.flash.safetensors_file import TensorRecord

_READ_WHOLE = (BUNDLES_FILE, RESIDENT_FILE, PREDICTORS_FILE)
"""Large files that are checked while they are read for use."""


def damaged(path: Path, where: str) -> ChecksumMismatch:
    """The error for a file that is not what was written; `where` begins with a comma or is ""."""
    return ChecksumMismatch(
        f"{path}{where}: not what was written, also when it was read again. The file, the disk or"
        f" the memory is damaged: run `flashllm verify {path.parent}`, then convert the model again"
    )


class TensorHash:
    """CRC-32C of a tensor as a model stores it: of its name, then of its bytes."""

    def __init__(self, name: str) -> None:
        self._value = core.crc32c(name.encode())

    def update(self, data: NDArray[np.uint8]) -> None:
        """Go on with these bytes."""
        self._value = core.crc32c(data, self._value)

    def digest(self) -> bytes:
        """4 bytes, little-endian."""
        return self._value.to_bytes(4, "little")


class FileHash:
    """SHA-256 of a whole file, as the manifest has it."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, data: NDArray[np.uint8]) -> None:
        """Go on with these bytes."""
        self._hash.update(data.data)

    def digest(self) -> bytes:
        """32 bytes."""
        return self._hash.digest()


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a file that has a checksum: one tensor, or the whole file where `name` is ""."""

    name: str
    start: int
    end: int
    expected: bytes

    def new_hash(self) -> TensorHash | FileHash:
        """The hash that `expected` is of."""
        return TensorHash(self.name) if self.name else FileHash()

    def is_right(self, raw: NDArray[np.uint8]) -> bool:
        """Whether the part is right in the image of the file."""
        found = self.new_hash()
        found.update(raw[self.start : self.end])
        return found.digest() == self.expected

    @property
    def where(self) -> str:
        """Its place in words."""
        return f", tensor {self.name} at offset {self.start}" if self.name else ""


class FileCheck:
    """Compares a file that is read from its start to its end, piece by piece."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """`parts` are ascending, and do not overlap."""
        self._left = list(reversed(parts))
        self._hash: TensorHash | FileHash | None = None
        self._done = 0
        self.wrong: list[Part] = []

    def advance(self, raw: NDArray[np.uint8], end: int) -> None:
        """The bytes of the file's image up to `end` are there."""
        while self._left:
            part = self._left[-1]
            if part.start > end:
                break
            if self._hash is None:
                self._hash = part.new_hash()
            self._hash.update(raw[max(part.start, self._done) : min(part.end, end)])
            if part.end > end:
                break
            if self._hash.digest() != part.expected:
                self.wrong.append(part)
            self._hash = None
            self._left.pop()
        self._done = end


def parts_of(
    directory: Path, name: str, manifest: Manifest, index: Mapping[str, TensorRecord]
) -> list[Part]:
    """The parts of a safetensors file that have checksums; its tensors, or the file."""
    record, side_file = manifest.files[name], TENSOR_CHECKSUMS[name]
    # The twin's CRC-32C is in Python; the SHA-256 is not.
    if side_file not in manifest.files or core.NAME != "native":
        return [Part("", 0, record.bytes, bytes.fromhex(record.sha256))]
    path = directory / side_file
    sums = _read(path)
    if len(sums) != 4 * len(index):
        raise LayoutError(
            f"{path}: {len(sums)} bytes for {len(index)} tensors. Convert the model again"
        )
    return [
        Part(tensor, at.offset, at.offset + at.nbytes, sums[4 * i : 4 * i + 4])
        for i, (tensor, at) in enumerate(index.items())
    ]


def bundle_checksums(directory: Path, header: BundleHeader) -> NDArray[np.uint32]:
    """What `ffn.crc32c` holds, one for each bundle, layer after layer."""
    path, bundles = directory / CHECKSUMS_FILE, header.n_layers * header.bundles_per_layer
    raw = _read(path)
    if len(raw) != 4 * bundles:
        raise LayoutError(
            f"{path}: {len(raw)} bytes for {bundles} bundles. Convert the model again"
        )
    return np.frombuffer(raw, "<u4").astype(np.uint32)


def block_checksums(
    header: BundleHeader, block: NDArray[np.uint8], layer: int, first: int
) -> NDArray[np.uint32]:
    """CRC-32C of a layer's bundles from number `first` on, which `block` [n * stride] holds."""
    numbers = np.arange(first, first + len(block) // header.stride, dtype=np.uint32)
    begins = (numbers - np.uint32(first)) * np.int64(header.stride)
    return core.bundle_checksums(block, begins, header.bundle_bytes, header.file_id, layer, numbers)


def check_small_files(directory: Path, manifest: Manifest) -> None:
    """`ChecksumMismatch` for a small file that is not what was written: tokenizer, checksums."""
    for name, record in manifest.files.items():
        if name not in _READ_WHOLE and not is_whole(directory / name, record):
            forget_cached(directory / name)
            if not is_whole(directory / name, record):
                raise damaged(directory / name, "")


def forget_cached(path: Path) -> None:
    """Drop what the page cache holds of a file, so that the next read is of the device."""
    if not hasattr(os, "posix_fadvise"):
        return
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def is_whole(path: Path, record: FileRecord) -> bool:
    """Whether a file has the SHA-256 of the manifest."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == record.sha256
    except OSError as error:
        raise ReadFailed(f"{path}: {error.strerror or error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReadFailed(f"{path}: {error.strerror or error}") from error
