"""An open converted model: checks it, loads resident tensors, reads bundles.

Goals: weights reach memory by direct reads and stay in anonymous memory (no mmap of a file, so
a truncated file is a short read and the page cache stays empty). Not here: torch, tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.dtypes import GROUP_BYTES
from flashllm.errors import FlashllmError, ModelTruncated
from flashllm.flash.checksums import (
    Part,
    bundle_checksums,
    check_small_files,
    damaged,
    is_whole,
    parts_of,
)
from flashllm.flash.file_loading import (
    OnRead,
    ReadErrors,
    ignore_read,
    load_some_tensors,
    load_tensors,
    open_reader,
)
from flashllm.flash.file_names import BUNDLES_FILE, PREDICTORS_FILE, RESIDENT_FILE
from flashllm.flash.matrix_rows import MatrixRows
from flashllm.flash.model_files import ModelFiles
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.safetensors_file import TensorRecord, read_tensor_index
from flashllm.flash.tensor_table import (
    EMBEDDING,
    check_resident,
    encoding_of,
    predictor_columns,
    resident_dtype,
    tensor_table,
)
from flashllm.options import DEFAULT_VERIFY, Verify
from flashllm.system.clock import WaitClock


class Store(ModelFiles):
    """An open model directory. Close it, or use it as a context manager."""

    def __init__(
        self, directory: Path, verify: Verify = DEFAULT_VERIFY, layers: range | None = None
    ) -> None:
        """`verify` says which weights are held against their checksums when they are read."""
        super().__init__(directory, layers)
        self.verify = verify
        self._bundles = str(directory / BUNDLES_FILE)  # named some sixty times a token
        self._reader: core.Reader | None = None
        self._rows_apart = False
        self.embedding_rows: MatrixRows | None = None
        """Of an embedding that stays on flash, once the resident tensors are loaded."""
        self.read_wait = WaitClock()
        """How long the wait for bundles that is under way has lasted."""

    def open_reader(
        self, direct: bool, threads: int, gap_bytes: int = 0, rows_apart: bool = False
    ) -> core.Reader:
        """Open the bundle file for reading; returns the core's reader.

        `rows_apart` reads each row of a bundle separately, to measure what bundling gains; rows
        have no checksums, so that these are not verified.
        """
        assert self._reader is None
        self._rows_apart = rows_apart
        path = self.directory / BUNDLES_FILE
        self._reader = open_reader(path, direct, threads=threads, gap_bytes=gap_bytes)
        header = self.file_header
        if self._reader.file_bytes < header.file_bytes:
            raise ModelTruncated(
                f"{path}: {self._reader.file_bytes} bytes; its header says"
                f" {header.file_bytes}. Convert the model again"
            )
        if self.verify != "off" and not rows_apart:
            self._reader.verify_bundles(
                bundle_checksums(self.directory, header),
                header.file_id,
                header.data_offset,
                header.stride,
                header.bundle_bytes,
                header.bundles_per_layer,
                self.verify == "always",
            )
        return self._reader

    def check_small_files(self) -> None:
        """`ChecksumMismatch` for a file besides the weights that is not what was written."""
        if self.verify != "off":
            check_small_files(self.directory, self.manifest)

    @property
    def reader(self) -> core.Reader:
        """The reader of the bundle file."""
        assert self._reader is not None
        return self._reader

    def submit_bundles(
        self,
        layer: int,
        ids: NDArray[np.int32],
        buffer: core.Buffer,
        destinations: NDArray[np.int64],
        ahead: bool = False,
        *,
        spans_gaps: bool = True,
    ) -> list[int]:
        """Begin to read bundles to byte positions of `buffer`; tickets for `wait_bundles`.

        Where `tickets_each`, there is one for each, in their order. What is read `ahead` is read
        behind all else, few reads at a time. Without `spans_gaps` none is read that lies between
        two of them.
        """
        header = self.header
        offsets = header.offset(layer, 0) + ids.astype(np.int64) * header.stride
        length, reads = header.stride, [(offsets, destinations)]
        if self.tickets_each:
            reads = [(offsets[i : i + 1], destinations[i : i + 1]) for i in range(len(ids))]
        elif self._rows_apart:
            length = self.spec.row_bytes
            shifts = range(0, header.rows_per_neuron * length, length)
            reads = [(offsets + shift, destinations + shift) for shift in shifts]
        tickets: list[int] = []
        try:
            for places, targets in reads:
                ticket = self.reader.submit(
                    places, length, buffer, targets, ahead=ahead, spans_gaps=spans_gaps
                )
                tickets.append(int(ticket))
        except BaseException:
            with contextlib.suppress(FlashllmError):
                self.wait_bundles(layer, tickets)
            raise
        return tickets

    @property
    def tickets_each(self) -> bool:
        """Whether each bundle has a ticket of its own: experts, which are large enough for it."""
        return bool(self.header.down_columns)

    def hasten(self, ticket: int) -> None:
        """What is read ahead under a ticket is needed: it is read like all else from now on."""
        self.reader.hasten(ticket)

    def drop(self, ticket: int) -> int:
        """What is read under a ticket is not needed; the bytes of it whose reads had begun.

        `wait_bundles` has to follow, and raises Cancelled unless all of it is there.
        """
        return int(self.reader.drop(ticket))

    def wait_bundles(self, layer: int, tickets: list[int]) -> None:
        """Wait for bundles; even after an error, no read of them is under way any more."""
        with contextlib.ExitStack() as stack:
            for ticket in reversed(tickets):
                stack.callback(self.wait, ticket, layer)

    def submit_span(
        self, layer: int, first: int, count: int, buffer: core.Buffer, place: int = 0
    ) -> int:
        """Begin to read `count` neighbouring bundles to byte `place` of `buffer`; a ticket."""
        offsets = np.array([self.header.offset(layer, first)], dtype=np.int64)
        length = count * self.header.stride
        return int(self.reader.submit(offsets, length, buffer, np.array([place], dtype=np.int64)))

    def wait(self, ticket: int, layer: int) -> None:
        """Wait for the reads of a ticket; `ChecksumMismatch` for a bundle that is damaged."""
        try:
            with ReadErrors(f"{self._bundles}, layer {layer}"), self.read_wait:
                self.reader.wait(ticket)
        except core.ChecksumError as error:
            raise damaged(Path(self._bundles), f", {str(error).partition(':')[0]}") from error

    def load_resident(
        self, direct: bool, on_read: OnRead = ignore_read, *, leaves_embedding: bool = False
    ) -> dict[str, RawTensor]:
        """All resident tensors, read once; `LayoutError` unless they fit the spec.

        `on_read` gets the bytes of each piece that was read. `leaves_embedding` on flash, where
        `embedding_rows` are read from then.
        """
        if not leaves_embedding:
            return self.load_resident_image(direct, on_read)[0]
        path, index = self._resident_index()
        parts = self._checked_parts(RESIDENT_FILE, index)
        some = {name: record for name, record in index.items() if name != EMBEDDING}
        on_read(self.file_bytes(RESIDENT_FILE) - sum(record.nbytes for record in index.values()))
        tensors = self._typed(load_some_tensors(path, some, direct, on_read, parts)[0])
        self._open_embedding(index[EMBEDDING], parts, direct, on_read)
        return tensors

    def _open_embedding(
        self, record: TensorRecord, parts: Sequence[Part], direct: bool, on_read: OnRead
    ) -> None:
        path, shape = self.directory / RESIDENT_FILE, tensor_table(self.spec)[EMBEDDING]
        dtype = resident_dtype(EMBEDDING, shape, self.spec)
        rows = MatrixRows(path, EMBEDDING, record, dtype, direct, self.read_wait)
        self.embedding_rows = rows
        if self.verify == "off":
            on_read(record.nbytes)
            return
        rows.check(next((part for part in parts if part.name == EMBEDDING), None), on_read)

    def load_resident_image(
        self, direct: bool, on_read: OnRead = ignore_read
    ) -> tuple[dict[str, RawTensor], core.Buffer]:
        """The same, and the buffer with the whole file, of which the tensors are views."""
        _, index = self._resident_index()
        tensors, image = self._load(RESIDENT_FILE, index, direct, on_read)
        return self._typed(tensors), image

    def load_resident_groups(
        self, groups: Iterable[Sequence[str]], direct: bool, on_read: OnRead = ignore_read
    ) -> Iterator[dict[str, RawTensor]]:
        """The same of some tensors after others, each group in memory of its own."""
        path, index = self._resident_index()
        parts = self._checked_parts(RESIDENT_FILE, index)
        for names in groups:
            some = {name: index[name] for name in names}
            yield self._typed(load_some_tensors(path, some, direct, on_read, parts)[0])

    def _resident_index(self) -> tuple[Path, dict[str, TensorRecord]]:
        """The file of resident tensors, and its index; `LayoutError` unless they fit the spec."""
        path = self.directory / RESIDENT_FILE
        index = read_tensor_index(path)
        check_resident(index, self.model_spec, path)
        return path, index

    def _typed(self, tensors: dict[str, RawTensor]) -> dict[str, RawTensor]:
        """Resident tensors in the encodings and shapes that the spec says."""
        typed = dict(tensors)
        for name, shape in tensor_table(self.spec).items():
            if name in tensors:  # of a stage not all
                dtype = resident_dtype(name, shape, self.spec)
                typed[name] = RawTensor(tensors[name].raw, dtype, shape)
        return typed

    def load_predictors(
        self, direct: bool, on_read: OnRead = ignore_read
    ) -> dict[str, RawTensor] | None:
        """The predictors' tensors, or None if the model has none."""
        if PREDICTORS_FILE not in self.manifest.files:
            return None
        index = read_tensor_index(self.directory / PREDICTORS_FILE)
        tensors = self._load(PREDICTORS_FILE, index, direct, on_read)[0]
        index = self.own(index)
        for name, columns in predictor_columns(index, self.spec).items():
            encoding = encoding_of(index[name], columns)
            if encoding in GROUP_BYTES:
                shape = (index[name].shape[0], columns)
                tensors[name] = RawTensor(tensors[name].raw, encoding, shape)
        return tensors

    def _load(
        self, name: str, index: dict[str, TensorRecord], direct: bool, on_read: OnRead
    ) -> tuple[dict[str, RawTensor], core.Buffer]:
        """The tensors of a file that are needed here, and the buffer that they are views of."""
        path = self.directory / name
        if not self.is_stage:
            return load_tensors(path, index, direct, on_read, self._parts(name, index))
        parts = self._checked_parts(name, index)
        return load_some_tensors(path, self.own(index), direct, on_read, parts)

    def _checked_parts(self, name: str, index: dict[str, TensorRecord]) -> list[Part]:
        """What of a file's tensors is to be checked; the file is now, if it has no such parts."""
        path, parts = self.directory / name, self._parts(name, index)
        if any(not part.name for part in parts):  # no checksums of tensors: of all of the file
            if not is_whole(path, self.manifest.files[name]):
                raise damaged(path, "")
            parts = []
        return parts

    def _parts(self, name: str, index: dict[str, TensorRecord]) -> list[Part]:
        """What of a file is to be held against checksums when it is read."""
        if self.verify == "off":
            return []
        return parts_of(self.directory, name, self.manifest, index)

    def cancel_reads(self) -> None:
        """End the reads under way with `Cancelled`; does nothing on a closed store."""
        reader = self._reader
        if reader is not None:
            # Closed meanwhile by another thread: there is nothing left to cancel.
            with contextlib.suppress(ValueError):
                reader.cancel()

    def allow_reads(self) -> None:
        """Forget an earlier `cancel_reads`."""
        if self._reader is not None:
            self._reader.clear_cancel()

    def close(self) -> None:
        """Stop the reader's threads."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self.embedding_rows is not None:
            self.embedding_rows.close()
            self.embedding_rows = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
