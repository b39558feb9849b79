"""Reads files of a model that are needed whole, or tensors of them, into memory once.

Each piece is held against its checksum while the next ones are read.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from flashllm import core
from flashllm.errors import Cancelled, ModelTruncated, ReadFailed
from flashllm.flash.checksums import FileCheck, Part, damaged, forget_cached
from flashllm.flash.opening_errors import read_failed
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.safetensors_file import TensorRecord
from flashllm.flash.tensor_spans import spans_of

# Large sequential reads: a few threads saturate any device at this size.
_LOAD_READ_BYTES = 1 << 20
_LOAD_THREADS = 4
_LOAD_PIECE_BYTES = 16 << 20
"""Read at a time: progress is told after each, and each is checked while the others are read."""
_PIECES_UNDER_WAY = 4

OnRead = Callable[[int], None]
"""Called with the bytes of each piece of a file that is read whole."""


def ignore_read(_nbytes: int) -> None:
    """Tells nobody."""


class ReadErrors:
    """Turns the core's read errors into ours, with file, layer and offset."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, EOFError):
            raise ModelTruncated(
                f"{self._where}: the file ends too early ({error}). Run `flashllm verify`,"
                " then convert the model again"
            ) from error
        # A cancelled read has no errno; a device that gives EINTR for ever has one.
        if isinstance(error, InterruptedError) and error.errno is None:
            raise Cancelled("stopped while reading") from error
        if isinstance(error, OSError):
            raise ReadFailed(
                f"{self._where}: {error}. If it happens again, check the disk, then run"
                " `flashllm verify`"
            ) from error


def open_file_reader(path: Path, direct: bool, **options: int) -> core.Reader:
    """A reader for the whole of a file, in few and large reads unless `options` say otherwise."""
    sizes = {"threads": _LOAD_THREADS, "max_read_bytes": _LOAD_READ_BYTES} | options
    return open_reader(path, direct, **sizes)


def open_reader(path: Path, direct: bool, **options: int) -> core.Reader:
    """A reader of the core's; `ReadFailed` for a file that cannot be opened."""
    try:
        mode = "optional" if direct else "disabled"
        return core.Reader(str(path), direct=mode, backend=core.IO_BACKEND, **options)
    except OSError as error:
        raise read_failed(error, path) from error


def load_tensors(
    path: Path,
    index: dict[str, TensorRecord],
    direct: bool,
    on_read: OnRead,
    parts: Sequence[Part],
) -> tuple[dict[str, RawTensor], core.Buffer]:
    """All tensors of a file, and the buffer with the file's bytes, of which they are views."""
    reader, check = open_file_reader(path, direct), FileCheck(parts)
    try:
        buffer = core.Buffer(reader.file_bytes)
        with ReadErrors(str(path)):
            _read_whole(reader, buffer, on_read, check)
            for part in check.wrong:
                _read_again(reader, buffer, path, part)
    finally:
        reader.close()
    raw = buffer.array()
    tensors = {
        name: RawTensor(raw[t.offset : t.offset + t.nbytes], t.dtype, tuple(t.shape))
        for name, t in index.items()
    }
    return tensors, buffer


def _read_again(reader: core.Reader, buffer: core.Buffer, path: Path, part: Part) -> None:
    """What was wrong once more, from the device; `ChecksumMismatch` where it stays wrong."""
    forget_cached(path)
    place = np.array([part.start], dtype=np.int64)
    reader.read(place, part.end - part.start, buffer, place)
    if not part.is_right(buffer.array()):
        raise damaged(path, part.where)


def _read_whole(
    reader: core.Reader, buffer: core.Buffer, on_read: OnRead, check: FileCheck
) -> None:
    """The whole of a file, piece by piece; each is checked while the next ones are read."""
    raw = buffer.array()
    under_way: deque[tuple[int, int, int]] = deque()
    for start in range(0, reader.file_bytes, _LOAD_PIECE_BYTES):
        length = min(_LOAD_PIECE_BYTES, reader.file_bytes - start)
        place = np.array([start], dtype=np.int64)
        ticket = int(reader.submit(place, length, buffer, place))
        under_way.append((ticket, length, start + length))
        if len(under_way) == _PIECES_UNDER_WAY:
            check.advance(raw, _wait(reader, under_way, on_read))
    while under_way:
        check.advance(raw, _wait(reader, under_way, on_read))


def _wait(reader: core.Reader, under_way: deque[tuple[int, int, int]], on_read: OnRead) -> int:
    """Wait for the next piece; returns where it ends."""
    ticket, length, end = under_way.popleft()
    reader.wait(ticket)
    on_read(length)
    return end


def load_some_tensors(
    path: Path,
    index: dict[str, TensorRecord],
    direct: bool,
    on_read: OnRead,
    parts: Sequence[Part],
) -> tuple[dict[str, RawTensor], core.Buffer]:
    """Some tensors of a file, by names of the caller's; nothing else of it is read or kept.

    Of `parts` those of these tensors are checked.
    """
    spans = spans_of(index)
    reader = open_file_reader(path, direct)
    checks = {part.start: part for part in parts}
    tensors: dict[str, RawTensor] = {}
    try:
        buffer = core.Buffer(max(spans[-1].place_end, 1) if spans else 1)
        raw = buffer.array()
        for span in spans:
            with ReadErrors(str(path)):
                for start in range(span.start, span.end, _LOAD_PIECE_BYTES):
                    length = min(_LOAD_PIECE_BYTES, span.end - start)
                    source = np.array([start], dtype=np.int64)
                    reader.read(source, length, buffer, source + span.shift)
                    on_read(length)
        for name, record in index.items():
            shift = next(span.shift for span in spans if span.start <= record.offset < span.end)
            first = record.offset + shift
            part = checks.get(record.offset)
            if part is not None:
                _check(reader, buffer, path, part, shift)
            own = raw[first : first + record.nbytes]
            tensors[name] = RawTensor(own, record.dtype, tuple(record.shape))
    finally:
        reader.close()
    return tensors, buffer


def _check(reader: core.Reader, buffer: core.Buffer, path: Path, part: Part, shift: int) -> None:
    """`ChecksumMismatch` for a tensor that is wrong, also when it is read again."""
    here = dataclasses.replace(part, start=part.start + shift, end=part.end + shift)
    if here.is_right(buffer.array()):
        return
    forget_cached(path)
    place = np.array([part.start], dtype=np.int64)
    with ReadErrors(str(path)):
        reader.read(place, part.end - part.start, buffer, place + shift)
    if not here.is_right(buffer.array()):
        raise damaged(path, part.where)
