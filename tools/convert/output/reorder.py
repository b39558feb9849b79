"""Rewrites a converted model with the neurons of each layer in another order.

Whole encoded rows and bundles are moved, whatever their encoding; nothing is computed. It takes the
memory of a block, or of one layer's resident gate.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import CannotCreate, UsageError
from flashllm.flash.file_names import (
    BUNDLES_FILE,
    CHECKSUMS_FILE,
    ORDER_FILE,
    PREDICTORS_FILE,
    RESIDENT_FILE,
    TENSOR_CHECKSUMS,
)
from flashllm.flash.layout import BundleHeader, read_header
from flashllm.flash.manifest import FileRecord, Manifest, read_manifest
from flashllm.flash.neuron_order import NeuronOrder
from flashllm.flash.safetensors_file import TensorRecord, read_tensor_index
from flashllm.progress import Progress, SilentProgress

from ..phases import REORDERING, ConversionPlan, ordering_phases
from ..source.files import BLOCK_BYTES, RangeFile
from .destination import (
    OutputFile,
    check_space,
    check_writable,
    partial_directory,
    whole_or_absent,
)
from .predictor_files import check_predictors
from .tensor_checksums import TensorSums
from .tokenizer_files import TOKENIZERS
from .writing import checksum_bytes, write_manifest

_BY_NEURON = {
    RESIDENT_FILE: re.compile(r"layers\.(\d+)\.ffn\.(?:gate\.weight|gate\.bias|up\.bias)"),
    PREDICTORS_FILE: re.compile(r"layers\.(\d+)\.(?:up|bias)"),
}
"""Tensors whose rows are neurons."""
_REWRITTEN = (BUNDLES_FILE, CHECKSUMS_FILE, *_BY_NEURON, *TENSOR_CHECKSUMS.values())

Bytes = NDArray[np.uint8]
Ids = NDArray[np.int32]


def reorder(
    source: Path,
    destination: Path,
    *,
    calibration: Path | None = None,
    progress: Progress | None = None,
    on_plan: Callable[[ConversionPlan], None] | None = None,
    dry_run: bool = False,
) -> None:
    """Turn the converted model in `source` into one whose neurons lie in order of co-activation.

    The order is learnt from the text `calibration`, or the one that lies with the model. The
    destination is complete afterwards, or absent: `on_plan`, `dry_run` and errors as of `convert`.
    """
    progress = SilentProgress() if progress is None else progress
    source, destination = Path(source), Path(destination).absolute()
    manifest = read_manifest(source)
    if destination.resolve().is_relative_to(source.resolve()) and not destination.exists():
        raise CannotCreate(f"{destination}: inside the model; choose a place outside it")
    with whole_or_absent(source, destination, progress):
        check_unordered(source, manifest)
        if on_plan is not None or dry_run:
            check_writable(destination, model_bytes(manifest))
            plan = _plan(source, destination, manifest, calibration)
            if on_plan is not None:
                on_plan(plan)
            if dry_run:
                return
        with partial_directory(destination) as partial:
            check_space(partial, model_bytes(manifest))
            from flashllm.predictors import learn_order

            order = learn_order(source, calibration, progress)
            write_reordered(source, partial, order, progress)


def _plan(
    source: Path, destination: Path, manifest: Manifest, calibration: Path | None
) -> ConversionPlan:
    """What reordering will do; `UsageError` where it cannot: no text, or nothing that chooses."""
    from flashllm.predictors import check_calibration, find_calibration
    from flashllm.predictors.neuron_order import selector_of

    selector_of(source, manifest.spec)
    has_tokenizer = any(name in manifest.files for name in TOKENIZERS)
    text = find_calibration(source, calibration)
    tokens = check_calibration(text, manifest.spec.vocab_size, has_tokenizer)
    status = os.statvfs(destination.parent)
    return ConversionPlan(
        source=source,
        destination=destination,
        spec=manifest.spec,
        source_bytes=sum(record.bytes for record in manifest.files.values()),
        written_bytes=model_bytes(manifest),
        scratch_bytes=0,
        free_bytes=status.f_bavail * status.f_frsize,
        phases=ordering_phases(manifest.spec, model_bytes(manifest), tokens),
    )


def check_unordered(source: Path, manifest: Manifest) -> None:
    """`UsageError` for a model that has an order already: its ids would be mapped back wrongly."""
    if ORDER_FILE in manifest.files:
        raise UsageError(
            f"{source}: its neurons lie in order of co-activation already; start from the model "
            "that it was made from"
        )


def model_bytes(manifest: Manifest) -> int:
    """Bytes of a reordered model, at most."""
    order_bytes = 8 * manifest.spec.n_layers * manifest.spec.d_ffn + 4096
    return order_bytes + sum(record.bytes for record in manifest.files.values())


def write_reordered(
    source: Path, directory: Path, order: NeuronOrder, progress: Progress
) -> Manifest:
    """All files of the model in `source`, its neurons in that order, into `directory`."""
    manifest = read_manifest(source)
    if PREDICTORS_FILE in manifest.files:
        # The runtime looks at the tensors that it needs; all of them are moved here.
        check_predictors(source / PREDICTORS_FILE, manifest.spec)
    old = read_header(source / BUNDLES_FILE)
    content = order.to_bytes()
    # Bundles of the two files must not pass for each other's.
    file_id = hashlib.sha256(old.file_id + content).digest()[: len(old.file_id)]
    progress.start(REORDERING, sum(record.bytes for record in manifest.files.values()))
    files = {}
    for name in manifest.files:
        if name not in _REWRITTEN:
            files[name] = _copy(source / name, directory / name, progress)
        elif name in _BY_NEURON:
            files |= _copy_tensors(source, directory, name, order, progress)
    files |= _copy_bundles(source, directory, replace(old, file_id=file_id), order, progress)
    with OutputFile(directory / ORDER_FILE) as file:
        file.write(content)
    files[ORDER_FILE] = file.record
    progress.finish()
    reordered = replace(manifest, files=files)
    write_manifest(directory, reordered)
    return reordered


def _copy(source: Path, destination: Path, progress: Progress) -> FileRecord:
    with RangeFile(source.resolve()) as old, OutputFile(destination) as file:
        _copy_range(old, file, 0, old.size, progress)
    return file.record


def _copy_range(
    old: RangeFile,
    file: OutputFile,
    start: int,
    stop: int,
    progress: Progress,
    also: Callable[[Bytes], None] = lambda _: None,
) -> None:
    """`also` gets what is copied."""
    for place in range(start, stop, BLOCK_BYTES):
        block = np.empty(min(BLOCK_BYTES, stop - place), dtype=np.uint8)
        old.read_into(block.data, place)
        file.write(block.data)
        also(block)
        progress.advance(len(block))


def _copy_tensors(
    source: Path, directory: Path, name: str, order: NeuronOrder, progress: Progress
) -> dict[str, FileRecord]:
    """A file of tensors, rows that are neurons in their new order, and its checksums.

    Its header stays as it is.
    """
    index, sums = read_tensor_index(source / name), TensorSums()
    with RangeFile((source / name).resolve()) as old, OutputFile(directory / name) as file:
        _copy_range(old, file, 0, min(record.offset for record in index.values()), progress)
        for tensor, record in index.items():
            match, add = _BY_NEURON[name].fullmatch(tensor), functools.partial(sums.add, tensor)
            if match is None:
                end = record.offset + record.nbytes
                _copy_range(old, file, record.offset, end, progress, add)
                continue
            rows = _rows_in_order(old, record, order.neurons[int(match[1])])
            file.write(rows.data)
            add(rows.reshape(-1))
            progress.advance(record.nbytes)
    return {name: file.record} | sums.write(directory, name)


def _rows_in_order(old: RangeFile, record: TensorRecord, neurons: Ids) -> Bytes:
    raw = np.empty(record.nbytes, dtype=np.uint8)
    old.read_into(raw.data, record.offset)
    return np.ascontiguousarray(raw.reshape(len(neurons), -1)[neurons])


def _copy_bundles(
    source: Path, directory: Path, header: BundleHeader, order: NeuronOrder, progress: Progress
) -> dict[str, FileRecord]:
    """`ffn.bundles` and `ffn.crc32c` in the new order."""
    with (
        RangeFile((source / BUNDLES_FILE).resolve()) as old,
        OutputFile(directory / BUNDLES_FILE) as file,
        OutputFile(directory / CHECKSUMS_FILE) as checksums,
    ):
        file.write(header.pack().ljust(header.data_offset, b"\0"))
        for layer in range(header.n_layers):
            first = 0
            for block in _bundles(old, header, layer, order.neurons[layer]):
                file.write(block.data)
                checksums.write(checksum_bytes(header, block, layer, first))
                first += len(block)
                progress.advance(block.nbytes)
        file.write(bytes(header.file_bytes - file.bytes))
    return {BUNDLES_FILE: file.record, CHECKSUMS_FILE: checksums.record}


def _bundles(old: RangeFile, header: BundleHeader, layer: int, neurons: Ids) -> Iterator[Bytes]:
    """Bundles of a layer in their new order, [n, stride] a block; the next overwrites each."""
    bundles_max = max(1, BLOCK_BYTES // header.stride)
    buffer = np.empty((min(bundles_max, len(neurons)), header.stride), dtype=np.uint8)
    for first in range(0, len(neurons), bundles_max):
        block = buffer[: min(bundles_max, len(neurons) - first)]
        for row, neuron in zip(block, neurons[first : first + bundles_max].tolist(), strict=True):
            old.read_into(row.data, header.offset(layer, neuron))
        yield block
