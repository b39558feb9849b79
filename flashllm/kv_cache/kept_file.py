"""Keys and values of a context in a file, so that a later process need not compute them again.

A file is a row of records. The first says what computed them; each other one holds some tokens that
follow those before: their ids, how they were computed, and their rows, with checksums. As a
conversation goes on, records are appended; where it takes another turn, the last ones are cut off.
What is torn or changed ends the file for who reads it: what is before it is still of use.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.errors import ReadFailed
from flashllm.kv_cache.context import Context
from flashllm.kv_cache.context_tokens import ContextTokens
from flashllm.units import MIB
from flashllm.untrusted.strict_fields import from_plain
from flashllm.untrusted.strict_json import parse_object

RECORD_TOKENS = 128
"""Tokens of a record at the most: what one step writes, and what a torn record loses."""
_FRAME = struct.Struct("<8sIIQ")  # magic, bytes of the head, its CRC-32C, bytes of the rest
_MAGIC = b"flashKV1"
_HEAD_BYTES_MAX = MIB
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _First:
    """The head of the first record, which has no rows."""

    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a record of tokens.

    Behind it are the rows [layers, keys or values, kv_heads, tokens, row], and a CRC-32C of those
    of each layer.
    """

    start: int
    ids: tuple[int, ...]
    decoded: tuple[bool, ...]
    """Of each token: whether it is one of an answer."""

    @property
    def end(self) -> int:
        """Tokens up to the last one of this record."""
        return self.start + len(self.ids)

    def tell(self, tokens: ContextTokens) -> None:
        """Appends the tokens to others."""
        tokens.restore(self.ids, self.decoded)


@dataclass(frozen=True, slots=True)
class _Record:
    head: _Head
    rows_at: int
    end: int
    """Offset of the next record."""


class KeptFile:
    """A file of kept keys and values, and the tokens in it."""

    def __init__(self, path: Path, descriptor: int, layers: int, token_bytes: int) -> None:
        """`token_bytes`: of a token's rows in one layer."""
        self.path = path
        self.problem = ""
        """Why the file ends before its last byte; "" where it does not."""
        self._descriptor = descriptor
        self._layers, self._token_bytes = layers, token_bytes
        self._first_end = 0
        self._records: list[_Record] = []

    @classmethod
    def create(
        cls, path: Path, settings: Mapping[str, str], layers: int, token_bytes: int
    ) -> KeptFile:
        """A new file, without tokens; `OSError`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = cls(path, os.open(path, flags, 0o600), layers, token_bytes)
        head = _encoded({"settings": dict(settings)})
        file._write(0, _frame(head, 0) + head)
        file._first_end = _FRAME.size + len(head)
        return file

    @classmethod
    def open(
        cls, path: Path, settings: Mapping[str, str], layers: int, token_bytes: int
    ) -> KeptFile:
        """A file that was written before.

        `ReadFailed` where it is none, or where others than `settings` computed what it holds;
        `OSError`.
        """
        file = cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), layers, token_bytes)
        try:
            size = os.fstat(file._descriptor).st_size
            values, file._first_end, _ = file._read_head(0, size)
            found = _parsed(_First, values, path).settings
            differing = {name for name, value in settings.items() if found.get(name) != value}
            if differing or found.keys() != settings.keys():
                what = ", ".join(sorted(differing)) or "settings"
                raise ReadFailed(f"{path}: was written with another {what}")
            file._read_records(size)
        except BaseException:
            file.close()
            raise
        return file

    @property
    def nbytes(self) -> int:
        """Of the records that are of use."""
        return self._records[-1].end if self._records else self._first_end

    @property
    def length(self) -> int:
        """Tokens in it."""
        return self._records[-1].head.end if self._records else 0

    def fileno(self) -> int:
        """The descriptor of the open file."""
        return self._descriptor

    def close(self) -> None:
        """May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def tokens(self, alike: ContextTokens) -> ContextTokens:
        """The tokens in it, which were computed in the way of those of `alike`."""
        tokens = alike.empty_copy()
        for record in self._records:
            record.head.tell(tokens)
        return tokens

    def truncate(self, length: int) -> None:
        """Drops the last records, until at most `length` tokens are left; `OSError`."""
        while self._records and self._records[-1].head.end > length:
            self._records.pop()
        os.ftruncate(self._descriptor, self.nbytes)

    def next_bytes(self, context: Context) -> int:
        """About the bytes that `append` would write; 0 where the file has all tokens."""
        tokens = min(context.length - self.length, RECORD_TOKENS)
        return tokens * (self._layers * self._token_bytes + 8)

    def append(self, context: Context) -> None:
        """Writes a record of the next tokens of `context`; `OSError`, which leaves the rest as is.

        The context has more tokens than the file.
        """
        start, tokens = self.length, context.tokens
        end = min(start + RECORD_TOKENS, context.length)
        head = _Head(
            start,
            tuple(tokens.ids[start:end]),
            tuple(tokens.decoded(start, end)),
        )
        at = self.nbytes
        os.ftruncate(self._descriptor, at)  # what is torn behind it
        raw = _encoded({name: getattr(head, name) for name in _Head.__slots__})
        rows_at, layer_bytes = at + _FRAME.size + len(raw), (end - start) * self._token_bytes
        checksums = np.empty(self._layers, "<u4")
        for layer in range(self._layers):
            rows = np.ascontiguousarray(context.keys_values.encoded(layer, start, end))
            checksums[layer] = core.crc32c(rows.reshape(-1))
            self._write(rows_at + layer * layer_bytes, rows.reshape(-1).data)
        checksums_at = rows_at + self._layers * layer_bytes
        self._write(checksums_at, checksums.tobytes())
        # Last, so that what is torn before has no beginning.
        record_end = checksums_at + checksums.nbytes
        self._write(at, _frame(raw, record_end - rows_at) + raw)
        self._records.append(_Record(head, rows_at, record_end))

    def restore(self, context: Context) -> None:
        """Puts all tokens into an empty context, up to a record that is damaged.

        Then `problem` says so, and the file ends before it. `OSError`.
        """
        for number, record in enumerate(self._records):
            head = record.head
            if not self._read_rows(record, context):
                which = f"tokens {head.start} to {head.end - 1}"
                self.problem = f"{self.path}: the rows of {which} are damaged"
                del self._records[number:]
                return
            context.keys_values.length = head.end
            head.tell(context.tokens)

    def _read_rows(self, record: _Record, context: Context) -> bool:
        """Reads a record's rows to their places; whether they have their checksums."""
        head, cache = record.head, context.keys_values
        layer_bytes = len(head.ids) * self._token_bytes
        rows = np.empty(layer_bytes, np.uint8)
        checksums = np.empty(self._layers, "<u4")
        if not self._read(record.rows_at + self._layers * layer_bytes, checksums.view(np.uint8)):
            return False
        for layer in range(self._layers):
            is_whole = self._read(record.rows_at + layer * layer_bytes, rows)
            if not is_whole or core.crc32c(rows) != int(checksums[layer]):
                return False
            cache.append_encoded(layer, len(head.ids), rows)
        return True

    def _read_records(self, size: int) -> None:
        """Reads the heads, as far as they fit together."""
        at = self._first_end
        while at < size:
            try:
                values, rows_at, rest = self._read_head(at, size)
                head = _parsed(_Head, values, self.path)
                expected = self._layers * (len(head.ids) * self._token_bytes + 4)
                follows = head.start == self.length and len(head.ids) == len(head.decoded) > 0
                if not follows or rest != expected:
                    raise ReadFailed(f"{self.path}: the record at byte {at} does not follow")
            except ReadFailed as error:
                self.problem = str(error)
                return
            at = rows_at + rest
            self._records.append(_Record(head, rows_at, at))

    def _read_head(self, at: int, size: int) -> tuple[dict[str, Any], int, int]:
        """The values of a head, the offset behind it, and the bytes of the rest."""
        raw = os.pread(self._descriptor, _FRAME.size, at)
        torn = ReadFailed(f"{self.path}: the record at byte {at} is torn or damaged")
        if len(raw) < _FRAME.size:
            raise torn
        magic, head_bytes, checksum, rest = _FRAME.unpack(raw)
        end = at + _FRAME.size + head_bytes
        if magic != _MAGIC or head_bytes > _HEAD_BYTES_MAX or end + rest > size:
            raise torn
        head = os.pread(self._descriptor, head_bytes, at + _FRAME.size)
        if len(head) < head_bytes or core.crc32c(np.frombuffer(head, np.uint8)) != checksum:
            raise torn
        return parse_object(head, self.path, ReadFailed), end, rest

    def _read(self, at: int, into: NDArray[np.uint8]) -> bool:
        """Fills an array; whether the file went so far."""
        view, done = into.data, 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], at + done)
            if count == 0:
                return False
            done += count
        return True

    def _write(self, at: int, content: bytes | memoryview) -> None:
        view, done = memoryview(content), 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done:], at + done)


def _encoded(head: Mapping[str, Any]) -> bytes:
    return json.dumps(head, separators=(",", ":")).encode()


def _frame(head: bytes, rest: int) -> bytes:
    return _FRAME.pack(_MAGIC, len(head), core.crc32c(np.frombuffer(head, np.uint8)), rest)


def _parsed(cls: type[_T], values: dict[str, Any], path: Path) -> _T:
    try:
        return from_plain(cls, values, "record")
    except ValueError as error:
        raise ReadFailed(f"{path}: {error}") from error
