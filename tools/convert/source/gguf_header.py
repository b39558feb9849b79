"""The header of a GGUF file: our own strict reading of it.

Nothing in it is believed before it was held against the size of the file: the reader of the package
`gguf` maps files and takes counts as they are. Format: ggml's docs/gguf.md, versions 2 and 3,
little endian.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import ModelError, ModelTruncated, NotACheckpoint, UnsupportedModel

from .files import RangeFile
from .gguf_types import block_type

MAGIC = b"GGUF"
OTHER_MAGICS = {
    b"PWRI": "a GGUF of PowerInfer, whose layout is another",
    b"GGML": "a GGML file of an early llama.cpp",
    b"lmgg": "a GGML file of an early llama.cpp",
    b"tjgg": "a GGML file of an early llama.cpp",
}
HEADER_BYTES_MAX = 32 << 20
"""The largest known, of a vocabulary of 200,000 tokens with their merges, has about 13 MB."""
KEYS_MAX, TENSORS_MAX = 1 << 14, 1 << 16
STRINGS_MAX = 1 << 21
"""In all arrays together."""
NAME_BYTES_MAX = 256
DIMENSIONS_MAX = 4
WEIGHTS_MAX = 1 << 48
ALIGNMENT, ALIGNMENT_MAX = 32, 1 << 20

MetaValue = bool | int | float | str | list[str] | NDArray[np.generic]
_SCALARS = {
    0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_ARRAYS = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "u1", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
_FLOAT32, _STRING, _ARRAY = 6, 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file: its type in lower case, its shape with rows last, its place."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Of its first byte in the file."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a file says of itself, checked; numbers in f32 are the shortest decimals of these."""

    path: Path
    metadata: dict[str, MetaValue]
    tensors: tuple[GgufTensor, ...]


def read_header(path: Path) -> GgufHeader:
    """The header of a file.

    Errors: `NotACheckpoint` for what is no GGUF or contradicts itself, `ModelTruncated` where the
    file ends too early, `UnsupportedModel` for a version or a type that is not known.
    """
    with RangeFile(path) as file:
        raw = bytearray(min(file.size, HEADER_BYTES_MAX))
        file.read_into(memoryview(raw), 0)
        return _Parser(path, raw, file.size).header()


def needed_start(path: Path, start: bytes, file_bytes: int, tensors: Iterable[str]) -> int | None:
    """How many bytes of a file's beginning hold its header and those of the tensors that it has.

    None where `start`, which the file begins with, ends within the header. Errors as those of
    `read_header`.
    """
    parser = _Parser(path, bytearray(start[:HEADER_BYTES_MAX]), file_bytes)
    try:
        header = parser.header()
    except ModelError:
        if parser.is_cut and len(start) < min(file_bytes, HEADER_BYTES_MAX):
            return None
        raise
    wanted = set(tensors)
    ends = [one.offset + one.nbytes for one in header.tensors if one.name in wanted]
    return max(ends, default=len(start))


class _Parser:
    """One pass over the bytes that a file begins with."""

    def __init__(self, path: Path, raw: bytearray, file_bytes: int) -> None:
        self._path = path
        self._raw = raw
        self._file_bytes = file_bytes
        self._at = 0
        self._strings = 0
        self.is_cut = False
        """Whether it needed more than the bytes that were given."""

    def header(self) -> GgufHeader:
        """All of it."""
        self._check_magic()
        n_tensors = self._count("tensors", TENSORS_MAX, bytes_each=24)
        n_keys = self._count("keys", KEYS_MAX, bytes_each=13)
        metadata: dict[str, MetaValue] = {}
        for _ in range(n_keys):
            key = self._name("a key")
            if key in metadata:
                raise self._wrong(f"key {key!r} occurs twice")
            metadata[key] = self._value(key)
        alignment = self._alignment(metadata)
        declared = [self._tensor() for _ in range(n_tensors)]
        start = -(-self._at // alignment) * alignment
        return GgufHeader(self._path, metadata, self._placed(declared, start, alignment))

    def _check_magic(self) -> None:
        magic = bytes(self._raw[:4])
        if magic != MAGIC:
            what = OTHER_MAGICS.get(magic, "no GGUF file")
            raise NotACheckpoint(f"{self._path}: {what}: it begins with {magic!r}")
        self._at = 4
        version = self._number("<I")
        if version not in (2, 3):
            kind = "big endian" if version & 0xFFFF == 0 else f"version {version}"
            raise UnsupportedModel(
                f"{self._path}: a GGUF of {kind}; read are versions 2 and 3, little endian"
            )

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        """Name, number of the type, dimensions from the innermost on, and offset in the data."""
        name = self._name("a tensor")
        n_dims = self._number("<I")
        if not 1 <= n_dims <= DIMENSIONS_MAX:
            raise self._wrong(f"tensor {name!r} has {n_dims} dimensions")
        dims = tuple(self._number("<Q") for _ in range(n_dims))
        if not all(dims) or math.prod(dims) > WEIGHTS_MAX:
            raise self._wrong(f"tensor {name!r} has the shape {list(reversed(dims))}")
        return name, self._number("<I"), dims, self._number("<Q")

    def _placed(
        self, declared: list[tuple[str, int, tuple[int, ...], int]], start: int, alignment: int
    ) -> tuple[GgufTensor, ...]:
        """Tensors with their bytes, which lie in the file and apart from each other."""
        found: dict[str, GgufTensor] = {}
        for name, number, dims, offset in declared:
            kind = block_type(number, f"{self._path}: tensor {name!r}")
            if name in found:
                raise self._wrong(f"tensor {name!r} occurs twice")
            if dims[0] % kind.block_weights:
                raise self._wrong(
                    f"tensor {name!r}: rows of {dims[0]} are no whole blocks of {kind.name.upper()}"
                )
            if offset % alignment:
                raise self._wrong(f"tensor {name!r} begins at {offset}, which is not aligned")
            nbytes = math.prod(dims) // kind.block_weights * kind.block_bytes
            if start + offset + nbytes > self._file_bytes:
                raise ModelTruncated(
                    f"{self._path}: tensor {name!r} ends at byte {start + offset + nbytes}, but the"
                    f" file has {self._file_bytes}; fetch it again"
                )
            found[name] = GgufTensor(name, kind.name, dims[::-1], start + offset, nbytes)
        ordered = sorted(found.values(), key=lambda tensor: tensor.offset)
        for first, second in itertools.pairwise(ordered):
            if first.offset + first.nbytes > second.offset:
                raise self._wrong(f"tensors {first.name!r} and {second.name!r} overlap")
        return tuple(found.values())

    def _alignment(self, metadata: dict[str, MetaValue]) -> int:
        value = metadata.get("general.alignment", ALIGNMENT)
        if type(value) is not int or not 1 <= value <= ALIGNMENT_MAX or value & (value - 1):
            raise self._wrong(f"general.alignment is {value!r:.40}; expected a power of two")
        return value

    def _value(self, key: str) -> MetaValue:
        kind = self._number("<I")
        if kind in _SCALARS:
            return self._scalar(kind)
        if kind == _STRING:
            return self._text(key)
        if kind == _ARRAY:
            return self._array(key)
        raise self._wrong(f"key {key!r} is of type {kind}, which does not exist")

    def _scalar(self, kind: int) -> bool | int | float:
        (value,) = struct.unpack(_SCALARS[kind], self._take(struct.calcsize(_SCALARS[kind])))
        return float(str(np.float32(value))) if kind == _FLOAT32 else value

    def _array(self, key: str) -> MetaValue:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _STRING:
            return self._texts(key, count)
        if kind not in _ARRAYS:
            raise self._wrong(f"key {key!r} is an array of type {kind}; arrays hold plain values")
        dtype = np.dtype(_ARRAYS[kind])
        self._check_room(count * dtype.itemsize, f"key {key!r}: an array of {count} values")
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _texts(self, key: str, count: int) -> list[str]:
        self._check_room(8 * count, f"key {key!r}: an array of {count} texts")
        self._strings += count
        if self._strings > STRINGS_MAX:
            raise self._wrong(f"key {key!r}: more than {STRINGS_MAX} texts")
        return [self._text(key) for _ in range(count)]

    def _text(self, what: str) -> str:
        # One call for each token of a vocabulary: no helper between here and the bytes.
        start = self._at + 8
        length = int.from_bytes(self._raw[self._at : start], "little")
        self._at = start + length
        if self._at > len(self._raw) or start > len(self._raw):
            self._at = start - 8
            self._check_room(8 + length, f"{what}: a text of {length} bytes")
        try:
            return self._raw[start : self._at].decode()
        except UnicodeDecodeError as problem:
            raise self._wrong(f"{what}: a text that is not UTF-8 ({problem.reason})") from problem

    def _name(self, what: str) -> str:
        length = int.from_bytes(self._raw[self._at : self._at + 8], "little")
        if length > NAME_BYTES_MAX:
            raise self._wrong(f"{what} with a name of {length} bytes")
        return self._text(what)

    def _count(self, what: str, most: int, bytes_each: int) -> int:
        count = self._number("<Q")
        self._check_room(count * bytes_each, f"{count} {what}")
        if count > most:
            raise self._wrong(f"{count} {what}; at most {most} are read")
        return count

    def _number(self, code: str) -> int:
        (value,) = struct.unpack(code, self._take(struct.calcsize(code)))
        return int(value)

    def _take(self, nbytes: int) -> bytearray:
        self._check_room(nbytes, f"{nbytes} bytes")
        self._at += nbytes
        return self._raw[self._at - nbytes : self._at]

    def _check_room(self, nbytes: int, what: str) -> None:
        """An error unless that many bytes follow; `what` they are."""
        if self._at + nbytes <= len(self._raw):
            return
        if self._at + nbytes <= self._file_bytes:
            self.is_cut = True
            raise self._wrong(f"its header is longer than {HEADER_BYTES_MAX} bytes")
        raise ModelTruncated(
            f"{self._path}: byte {self._at}: {what}, but the file ends at byte"
            f" {self._file_bytes}; fetch it again"
        )

    def _wrong(self, what: str) -> ModelError:
        return NotACheckpoint(f"{self._path}: {what:.300}; is the file damaged?")
