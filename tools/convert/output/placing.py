"""The weights of a converted model, written at their final places in whatever order they come.

`writing` writes the same bytes from start to end. Here a shard of the source is written as it is
there, so each of its tensors has its place before the ones in front of it have come; what needs all
bytes, checksums and hashes, is computed at the end from what was written.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashllm.dtypes import tensor_bytes
from flashllm.flash.file_names import BUNDLES_FILE, CHECKSUMS_FILE, RESIDENT_FILE
from flashllm.flash.layout import BundleHeader
from flashllm.flash.manifest import FileRecord
from flashllm.progress import Progress
from flashllm.spec import ModelSpec

from ..families.transforms import Piece
from ..source.files import RangeFile
from .destination import OutputFile, write_error
from .inspection import Job
from .writing import (
    checksum_bytes,
    layer_blocks,
    pieces_of,
    resident_blocks,
    resident_bytes,
    resident_header,
    resident_layout,
)

if TYPE_CHECKING:
    from typing import Self

CHECKED_BYTES = 4 << 20
"""Bytes of bundles read at a time for their checksums."""


class PlacedFile:
    """A file that has its final size from the start; closes as a context manager.

    All of it is allocated at once, so that its pieces lie together on the device whatever the order
    they are written in, and so that a full disk is noticed early.
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as problem:
            raise write_error(problem, path) from problem
        try:
            self._allocate(nbytes)
        except OSError as problem:
            self.close()
            raise write_error(problem, path) from problem

    def write(self, offset: int, content: NDArray[np.uint8]) -> None:
        """Write all of `content` from byte `offset` on."""
        view = np.ascontiguousarray(content).reshape(-1).data
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._descriptor, view[done:], offset + done)
        except OSError as problem:
            raise write_error(problem, self._path) from problem

    def sync(self) -> None:
        """Make everything durable, and let it leave the page cache."""
        try:
            os.fsync(self._descriptor)
        except OSError as problem:
            raise write_error(problem, self._path) from problem
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _allocate(self, nbytes: int) -> None:
        if os.fstat(self._descriptor).st_size == nbytes:
            return
        os.ftruncate(self._descriptor, nbytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, 0, nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PlacedWeights:
    """`resident.safetensors` and `ffn.bundles` of a model, filled shard by shard."""

    def __init__(self, directory: Path, job: Job) -> None:
        self._directory = directory
        self._job = job
        # The id is known when all resident weights are there; `finish` writes the header.
        self._header = BundleHeader.for_spec(job.spec, bytes(16))
        self._offsets = _resident_offsets(job.spec)
        with contextlib.ExitStack() as stack:
            resident = PlacedFile(directory / RESIDENT_FILE, resident_bytes(job.spec))
            self._resident = stack.enter_context(resident)
            bundles = PlacedFile(directory / BUNDLES_FILE, self._header.file_bytes)
            self._bundles = stack.enter_context(bundles)
            self._files = stack.pop_all()

    def take(self, shard: str, progress: Progress) -> None:
        """Write what the file `shard` of the source holds, durably; it must be open.

        `progress` advances by the bytes of the source. Doing it again is harmless.
        """
        self._take_resident(shard, progress)
        for layer, rows in enumerate(self._job.assignment.bundled):
            here = tuple(row if row.tensor.file == shard else None for row in rows)
            if any(row is not None for row in here):
                self._take_layer(layer, here, progress)
        self._resident.sync()
        self._bundles.sync()

    def write_header(self, header: BundleHeader) -> None:
        """Write the header of `ffn.bundles`."""
        self._bundles.write(0, np.frombuffer(header.pack(), np.uint8))
        self._bundles.sync()

    def write_resident_header(self) -> None:
        """Write the header of `resident.safetensors`."""
        raw = resident_header(resident_layout(self._job.spec))
        self._resident.write(0, np.frombuffer(raw, np.uint8))
        self._resident.sync()

    def _take_resident(self, shard: str, progress: Progress) -> None:
        job = self._job
        written = dict.fromkeys(self._offsets, 0)
        blocks = resident_blocks(job.spec, job.checkpoint, job.assignment.resident, shard)
        with contextlib.closing(blocks):
            for name, content, piece, last in blocks:
                self._resident.write(self._offsets[name] + written[name], content)
                written[name] += len(content)
                if last:
                    progress.advance(piece.rows.total * piece.row_bytes)

    def _take_layer(self, layer: int, rows: tuple[Piece | None, ...], progress: Progress) -> None:
        first = 0
        blocks = layer_blocks(self._header, self._job.checkpoint, rows)
        with contextlib.closing(blocks):
            for block in blocks:
                self._place(layer, first, block, rows)
                progress.advance(self._source_bytes(rows, first, len(block)))
                first += len(block)

    def _place(
        self, layer: int, first: int, block: NDArray[np.uint8], rows: tuple[Piece | None, ...]
    ) -> None:
        """Bundles of a layer from `first` on; of incomplete ones only the pieces that are there."""
        if all(rows):
            self._bundles.write(self._header.offset(layer, first), block)
            return
        for number, bundle in enumerate(block, first):
            start = self._header.offset(layer, number)
            for at, nbytes, piece in pieces_of(self._header, rows, number):
                if piece is not None:
                    self._bundles.write(start + at, bundle[at : at + nbytes])

    def _source_bytes(self, rows: tuple[Piece | None, ...], first: int, count: int) -> int:
        """Bytes in the source of what `count` bundles from `first` on take of the pieces."""
        bundles = range(first, first + count)
        if not self._header.down_columns:
            return count * sum(_row_bytes(row) for row in rows if row)
        pieces = (one for n in bundles for _, _, one in pieces_of(self._header, rows, n))
        return sum(piece.rows.total * piece.row_bytes for piece in pieces if piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()


def _row_bytes(piece: Piece) -> int:
    """Bytes in the source of what one neuron takes of a piece: a row, or a column of it."""
    count = piece.tensor.shape[1] if piece.transform == "transpose" else piece.tensor.shape[0]
    return piece.tensor.nbytes // count


def _resident_offsets(spec: ModelSpec) -> dict[str, int]:
    """Where each tensor begins in `resident.safetensors`."""
    layout = resident_layout(spec)
    sizes = [tensor_bytes(dtype, shape) for _, dtype, shape in layout]
    start = len(resident_header(layout))
    places = itertools.accumulate(sizes, initial=start)
    return {name: place for (name, _, _), place in zip(layout, places, strict=False)}


def check_bundles(
    directory: Path, header: BundleHeader, progress: Progress
) -> dict[str, FileRecord]:
    """Write `ffn.crc32c` for what `ffn.bundles` holds; returns size and hash of both."""
    (directory / CHECKSUMS_FILE).unlink(missing_ok=True)
    digest = hashlib.sha256()
    with (
        RangeFile(directory / BUNDLES_FILE) as file,
        OutputFile(directory / CHECKSUMS_FILE) as checksums,
        ThreadPoolExecutor(1, "hashing") as hasher,
    ):
        for layer, first, block in _blocks(file, header):
            hashed = hasher.submit(digest.update, block.reshape(-1).data)
            if layer is not None:
                checksums.write(checksum_bytes(header, block, layer, first))
            hashed.result()
            progress.advance(block.nbytes)
        file.forget(0, file.size)
    record = FileRecord(header.file_bytes, digest.hexdigest())
    return {BUNDLES_FILE: record, CHECKSUMS_FILE: checksums.record}


def _blocks(
    file: RangeFile, header: BundleHeader
) -> Iterator[tuple[int | None, int, NDArray[np.uint8]]]:
    """All of `ffn.bundles`: layer, first bundle and bundles [n, stride]; None beside the layers."""
    yield None, 0, _read(file, 0, header.data_offset).reshape(1, -1)
    most = max(1, CHECKED_BYTES // header.stride)
    for layer in range(header.n_layers):
        for first in range(0, header.bundles_per_layer, most):
            count = min(most, header.bundles_per_layer - first)
            raw = _read(file, header.offset(layer, first), count * header.stride)
            yield layer, first, raw.reshape(count, header.stride)
    end = header.data_offset + header.n_layers * header.bundles_per_layer * header.stride
    if end < header.file_bytes:
        yield None, 0, _read(file, end, header.file_bytes - end).reshape(1, -1)


def _read(file: RangeFile, offset: int, nbytes: int) -> NDArray[np.uint8]:
    content = np.empty(nbytes, np.uint8)
    file.read_into(content.data, offset)
    return content
