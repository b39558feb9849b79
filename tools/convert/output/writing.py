"""Writes the weights of a converted model, block by block: resident tensors, bundles, checksums.

At most one tensor of the source is held whole (the one that is transposed), in its own encoding.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.dtypes import GROUP_BYTES, row_bytes, tensor_bytes
from flashllm.flash.checksums import block_checksums
from flashllm.flash.file_names import (
    BUNDLES_FILE,
    CHECKSUMS_FILE,
    MANIFEST_FILE,
    MANIFEST_HASH_FILE,
    RESIDENT_FILE,
)
from flashllm.flash.layout import BundleHeader
from flashllm.flash.manifest import FileRecord, Manifest, manifest_hash_line
from flashllm.flash.safetensors_file import pack_tensor_header
from flashllm.flash.tensor_table import resident_dtype, stored_as, tensor_table
from flashllm.progress import Progress
from flashllm.spec import ModelSpec

from ..families.matching import Assignment
from ..families.transforms import (
    Piece,
    block_starts,
    columns,
    columns_dtype,
    encoded_block,
    read_rows,
    read_whole,
)
from ..source.checkpoint import Checkpoint
from ..source.encoding import check_scales, encode, largest_scale
from ..source.files import BLOCK_BYTES
from ..source.parallel import in_order
from ..source.tensor import SourceTensor
from .destination import OutputFile
from .tensor_checksums import TensorSums

Layout = list[tuple[str, str, tuple[int, ...]]]
BUNDLED_BYTES = 4 << 20
"""Bytes that one thread bundles at a time; they stay in a cache from step to step."""


def resident_layout(spec: ModelSpec) -> Layout:
    """Name, encoding and shape of the resident tensors, in the order of the file."""
    table = tensor_table(spec)
    entries = [(name, resident_dtype(name, shape, spec), shape) for name, shape in table.items()]
    return sorted(entries, key=lambda entry: (entry[1] != "f32", entry[0]))


def resident_bytes(spec: ModelSpec) -> int:
    """Size of `resident.safetensors`."""
    layout = resident_layout(spec)
    data_bytes = sum(tensor_bytes(dtype, shape) for _, dtype, shape in layout)
    return len(resident_header(layout)) + data_bytes


def resident_header(layout: Layout) -> bytes:
    """What `resident.safetensors` begins with."""
    return pack_tensor_header([(name, *stored_as(dtype, shape)) for name, dtype, shape in layout])


def blocks_of(
    checkpoint: Checkpoint, tensor: SourceTensor, start: int = 0, stop: int | None = None
) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a tensor from `start` to `stop` in blocks; each is overwritten by the next."""
    stop = tensor.nbytes if stop is None else stop
    buffer = np.empty(min(BLOCK_BYTES, max(stop - start, 0)), dtype=np.uint8)
    for position in range(start, stop, BLOCK_BYTES):
        block = buffer[: min(BLOCK_BYTES, stop - position)]
        checkpoint.read_into(block.data, tensor, position)
        yield block


def resident_blocks(
    spec: ModelSpec, checkpoint: Checkpoint, assigned: Mapping[str, Piece], shard: str | None = None
) -> Generator[tuple[str, NDArray[np.uint8], Piece, bool]]:
    """The resident weights in the order of `resident_layout`, encoded by several threads.

    Yields our name, a block, what it is of, and whether it is the last of that. With a `shard`,
    only what this file of the source holds.
    """
    layout = [
        (name, assigned[name], dtype)
        for name, dtype, _ in resident_layout(spec)
        if shard in (None, assigned[name].tensor.file)
    ]

    dtypes = {name: dtype for name, _, dtype in layout}

    def blocks() -> Iterator[tuple[str, Piece, int, str]]:
        for following, (name, piece, dtype) in enumerate(layout, 1):
            for _, expected, _ in layout[following : following + 1]:
                checkpoint.expect(expected.tensor)
            for first in block_starts(piece):
                yield name, piece, first, dtype

    def encoded(
        block: tuple[str, Piece, int, str],
    ) -> tuple[str, NDArray[np.uint8], Piece, bool]:
        name, piece, first, dtype = block
        last = first == block_starts(piece)[-1]
        return name, encoded_block(checkpoint, piece, first, dtype), piece, last

    largest = 0
    with contextlib.closing(in_order(encoded, blocks())) as found:
        for name, content, piece, last in found:
            dtype, width = dtypes[name], piece.tensor.shape[-1]
            if dtype in GROUP_BYTES:
                rows = content.reshape(-1, row_bytes(dtype, width))
                largest = max(largest, largest_scale(rows, width, dtype))
            if last:
                check_scales(largest, dtype, piece.tensor.name)
                largest = 0
            yield name, content, piece, last


def write_resident(
    directory: Path,
    spec: ModelSpec,
    checkpoint: Checkpoint,
    assigned: Mapping[str, Piece],
    used: Callable[[SourceTensor], None],
    progress: Progress,
) -> dict[str, FileRecord]:
    """`resident.safetensors`, in the order of `resident_layout`, and its checksums.

    `used` is called when each use of a tensor is over.
    """
    with (
        OutputFile(directory / RESIDENT_FILE) as file,
        contextlib.closing(resident_blocks(spec, checkpoint, assigned)) as blocks,
    ):
        sums = TensorSums()
        file.write(resident_header(resident_layout(spec)))
        progress.advance(file.bytes)
        for name, content, piece, last in blocks:
            file.write(content.data)
            sums.add(name, content)
            progress.advance(len(content))
            if last:
                used(piece.tensor)
    return {RESIDENT_FILE: file.record} | sums.write(directory, RESIDENT_FILE)


def write_bundles(
    directory: Path,
    header: BundleHeader,
    checkpoint: Checkpoint,
    assignment: Assignment,
    used: Callable[[SourceTensor], None],
    progress: Progress,
) -> dict[str, FileRecord]:
    """`ffn.bundles` and `ffn.crc32c`, layer after layer; `used` as with `write_resident`."""
    with (
        OutputFile(directory / BUNDLES_FILE) as file,
        OutputFile(directory / CHECKSUMS_FILE) as checksums,
    ):
        file.write(header.pack().ljust(header.data_offset, b"\0"))
        progress.advance(header.data_offset)
        for layer, rows in enumerate(assignment.bundled):
            first = 0
            for following in assignment.bundled[layer + 1 : layer + 2]:
                _expect(checkpoint, following)
            with contextlib.closing(layer_blocks(header, checkpoint, rows)) as blocks:
                for block in blocks:
                    file.write(block.data)
                    checksums.write(checksum_bytes(header, block, layer, first))
                    first += len(block)
                    progress.advance(block.nbytes)
            for row in rows:
                used(row.tensor)
        padding_bytes = header.file_bytes - file.bytes
        file.write(bytes(padding_bytes))
        progress.advance(padding_bytes)
    return {BUNDLES_FILE: file.record, CHECKSUMS_FILE: checksums.record}


def checksum_bytes(
    header: BundleHeader, block: NDArray[np.uint8], layer: int, first: int
) -> memoryview:
    """What `ffn.crc32c` holds of a layer's bundles [n, stride] from `first` on."""
    return block_checksums(header, block.reshape(-1), layer, first).astype("<u4").data


def _expect(checkpoint: Checkpoint, rows: tuple[Piece, ...]) -> None:
    """Prefetches the first bytes of a layer while the previous layer is being written.

    Transposed tensors are read at once, and nothing else would happen meanwhile.
    """
    for row in rows:
        if row.transform == "transpose":
            checkpoint.expect(row.tensor)


def layer_blocks(
    header: BundleHeader, checkpoint: Checkpoint, rows: Sequence[Piece | None]
) -> Generator[NDArray[np.uint8]]:
    """The bundles of a layer, [n, stride] bytes a block, made by several threads.

    Row r of a neuron comes from the r-th of `rows`: its row, or its column where transposed; zeros
    where that is None. Of experts, `rows` has the matrices of one after another.
    """
    if header.down_columns:
        yield from _experts(header, checkpoint, rows)
        return
    assert header.neurons_per_bundle == 1, "bundles of several neurons are experts"
    turned = [row.tensor for row in rows if row is not None and row.transform == "transpose"]
    whole = {tensor.name: read_whole(checkpoint, tensor) for tensor in turned}
    # A row on its way is f32 for a while, which may be more than what it becomes.
    widest_bytes = max(header.stride, tensor_bytes("f32", (header.d_model,)))
    bundles_max = max(1, BUNDLED_BYTES // widest_bytes)

    def block(first: int) -> NDArray[np.uint8]:
        count = min(bundles_max, header.bundles_per_layer - first)
        return _bundles(header, checkpoint, rows, whole, first, count)

    largest = [0] * len(rows)
    starts = range(0, header.bundles_per_layer, bundles_max)
    with contextlib.closing(in_order(block, starts)) as found:
        for bundles in found:
            if header.dtype in GROUP_BYTES:
                _note_scales(largest, header, bundles)
            yield bundles
    for row, scale in zip(rows, largest, strict=True):
        if row is not None:
            check_scales(scale, header.dtype, row.tensor.name)


def pieces_of(
    header: BundleHeader, rows: Sequence[Piece | None], bundle: int
) -> list[tuple[int, int, Piece | None]]:
    """First byte in its bundle, size, and source of each piece that a bundle consists of."""
    parts = header.bundle_parts
    own = rows[bundle * len(parts) :][: len(parts)] if header.down_columns else rows
    return list(zip(itertools.accumulate(parts, initial=0), parts, own, strict=False))


def _experts(
    header: BundleHeader, checkpoint: Checkpoint, rows: Sequence[Piece | None]
) -> Generator[NDArray[np.uint8]]:
    """The experts of a layer, [1, stride] bytes a block."""

    def expert(number: int) -> NDArray[np.uint8]:
        block = np.zeros((1, header.stride), dtype=np.uint8)
        for start, nbytes, piece in pieces_of(header, rows, number):
            if piece is not None:
                into = block[0, start : start + nbytes]
                dtype = "f32" if piece.transform == "values" else header.dtype
                _encode_matrix(dtype, checkpoint, piece, into)
        return block

    yield from in_order(expert, range(header.bundles_per_layer))


def _encode_matrix(
    dtype: str, checkpoint: Checkpoint, piece: Piece, into: NDArray[np.uint8]
) -> None:
    """Encode all rows of a piece; `TensorMismatch` for weights that the encoding cannot hold."""
    width, largest, done = piece.columns, 0, 0
    for first in block_starts(piece):
        content = encoded_block(checkpoint, piece, first, dtype)
        into[done : done + len(content)] = content
        done += len(content)
        if dtype in GROUP_BYTES:
            rows = content.reshape(-1, row_bytes(dtype, width))
            largest = max(largest, largest_scale(rows, width, dtype))
    assert done == len(into)
    check_scales(largest, dtype, piece.tensor.name)


def _note_scales(largest: list[int], header: BundleHeader, bundles: NDArray[np.uint8]) -> None:
    """Raise the largest scale of each row of a neuron to that of some bundles [n, stride]."""
    nbytes = row_bytes(header.dtype, header.d_model)
    for position in range(len(largest)):
        part = bundles[:, position * nbytes : (position + 1) * nbytes]
        scale = largest_scale(part, header.d_model, header.dtype)
        largest[position] = max(largest[position], scale)


def _bundles(
    header: BundleHeader,
    checkpoint: Checkpoint,
    rows: Sequence[Piece | None],
    whole: Mapping[str, NDArray[np.uint8]],
    first: int,
    count: int,
) -> NDArray[np.uint8]:
    """Bundles [count, stride] of the neurons from `first` on; `whole` has what is transposed."""
    nbytes = row_bytes(header.dtype, header.d_model)
    block = np.zeros((count, header.stride), dtype=np.uint8)
    for position, row in enumerate(rows):
        if row is None:
            continue
        tensor = row.tensor
        if row.transform == "transpose":
            raw = columns(whole[tensor.name], tensor, first, count)
            source = columns_dtype(tensor)
        else:
            raw, source = read_rows(checkpoint, row, first, count), tensor.dtype
        place = functools.partial(_format_place, row, first, header.d_model)
        encoded = encode(raw, source, header.dtype, tensor.name, header.d_model, place)
        start = position * nbytes
        block[:, start : start + nbytes] = encoded.reshape(count, nbytes)
    return block


def _format_place(row: Piece, first: int, d_model: int, value: int) -> str:
    """Where a value lies of the rows of neurons from `first` on."""
    neuron, inside = divmod(value, d_model)
    turned = row.transform == "transpose"
    place = inside if turned else row.rows.source(first + neuron)
    return f" in row {place}, in {row.tensor.file}"


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """`manifest.json` and its hash, in place of those that may be there."""
    raw = manifest.to_bytes()
    for name, content in ((MANIFEST_FILE, raw), (MANIFEST_HASH_FILE, manifest_hash_line(raw))):
        (directory / name).unlink(missing_ok=True)
        with OutputFile(directory / name) as file:
            file.write(content)
