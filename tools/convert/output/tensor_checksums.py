"""Writes the checksums of tensors that stay in memory, which are compared at every opening.

A CRC-32C a tensor costs about a quarter of the SHA-256 in the manifest, and says which tensor is
damaged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.flash.checksums import TensorHash
from flashllm.flash.file_names import TENSOR_CHECKSUMS
from flashllm.flash.manifest import FileRecord
from flashllm.flash.safetensors_file import read_tensor_index
from flashllm.progress import Progress

from ..source.files import BLOCK_BYTES, RangeFile
from .destination import OutputFile


class TensorSums:
    """The checksums of tensors, which come one after the other in the order of their file."""

    def __init__(self) -> None:
        self._sums: dict[str, TensorHash] = {}

    def add(self, name: str, content: NDArray[np.uint8]) -> None:
        """The next bytes of a tensor."""
        if name not in self._sums:
            self._sums[name] = TensorHash(name)
        self._sums[name].update(content)

    def write(self, directory: Path, name: str) -> dict[str, FileRecord]:
        """Write the checksums of the file `name`; returns the record of their own file."""
        side_file = TENSOR_CHECKSUMS[name]
        (directory / side_file).unlink(missing_ok=True)  # of an earlier file
        with OutputFile(directory / side_file) as file:
            for tensor in self._sums.values():
                file.write(tensor.digest())
        return {side_file: file.record}


def hash_tensors(directory: Path, name: str, progress: Progress) -> dict[str, FileRecord]:
    """Writes the checksums of a complete file of tensors; returns the records of both files."""
    path, digest, sums = directory / name, hashlib.sha256(), TensorSums()
    index = read_tensor_index(path)
    begin = min((record.offset for record in index.values()), default=path.stat().st_size)
    with RangeFile(path) as file:
        for block in _blocks(file, 0, begin):
            digest.update(block.data)
            progress.advance(len(block))
        for tensor, record in index.items():
            sums.add(tensor, np.zeros(0, np.uint8))  # also one of no bytes
            for block in _blocks(file, record.offset, record.offset + record.nbytes):
                digest.update(block.data)
                sums.add(tensor, block)
                progress.advance(len(block))
        found = {name: FileRecord(file.size, digest.hexdigest())}
    return found | sums.write(directory, name)


def _blocks(file: RangeFile, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a range in blocks; each is overwritten by the next."""
    buffer = np.empty(min(BLOCK_BYTES, stop - start), np.uint8)
    for offset in range(start, stop, BLOCK_BYTES):
        block = buffer[: min(BLOCK_BYTES, stop - offset)]
        file.read_into(block.data, offset)
        yield block
