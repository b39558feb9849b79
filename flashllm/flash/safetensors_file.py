"""Reads and writes the header of a safetensors file, strictly.

Callers read the tensors themselves as plain ranges of the file. Everything in a header is bounded
and checked against the size of the file before anything is allocated from it. Format: 8 bytes
little-endian length, JSON, data (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashllm.errors import LayoutError, ModelError, ModelTruncated
from flashllm.flash.opening_errors import opening_errors
from flashllm.untrusted.strict_json import parse_object

PREFIX_BYTES = 8
"""The length of the header, before it."""
HEADER_BYTES_MAX = 32 << 20
"""The format allows 100 MB; real ones have some MB, and parsing costs several times their size."""
TENSORS_MAX = 100_000
VALUES_MAX = 20 * TENSORS_MAX
"""Keys and values of a header, of which a tensor of rank 8 takes 18."""
NAME_BYTES_MAX = 512
RANK_MAX = 8
DIMENSION_MAX = 1 << 40
DATA_ALIGNMENT = 4096

ELEMENT_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """Where one tensor lies: `dtype` in lower case ("f32"), `offset` absolute in its file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_tensor_index(path: Path, error: type[ModelError] = LayoutError) -> dict[str, TensorRecord]:
    """Name -> record of every tensor in the file, in the order of their offsets.

    `error` for an inconsistent header, `ModelTruncated` if the file ends before its last tensor.
    """
    with opening_errors(path), open(path, "rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        raw = file.read(read_header_bytes(file.read(PREFIX_BYTES), file_bytes, path, error))
    return parse_tensor_index(raw, file_bytes, path, error)


def read_header_bytes(
    prefix: bytes, file_bytes: int, path: Path, error: type[ModelError] = LayoutError
) -> int:
    """Bytes of the header of a file of `file_bytes`, by its first PREFIX_BYTES; errors as above."""
    if len(prefix) < PREFIX_BYTES:
        raise ModelTruncated(f"{path}: {file_bytes} bytes are too few for a safetensors file")
    header_bytes = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if not 2 <= header_bytes <= HEADER_BYTES_MAX:
        raise error(f"{path}: a header of {header_bytes} bytes; this is no safetensors file")
    if header_bytes > file_bytes - PREFIX_BYTES:
        raise ModelTruncated(f"{path}: ends inside its header of {header_bytes} bytes")
    return header_bytes


def parse_tensor_index(
    raw: bytes, file_bytes: int, path: Path, error: type[ModelError] = LayoutError
) -> dict[str, TensorRecord]:
    """Like `read_tensor_index`, from the header `raw` (what follows the prefix) alone."""
    if raw[:1] != b"{":
        raise error(f"{path}: the header does not start with an object")
    values = parse_object(raw, path, error, values_max=VALUES_MAX)
    values.pop("__metadata__", None)
    if len(values) > TENSORS_MAX:
        raise error(f"{path}: {len(values)} tensors; at most {TENSORS_MAX} are accepted")
    data_start = PREFIX_BYTES + len(raw)
    records = {
        name: _record(name, entry, data_start, path, error) for name, entry in values.items()
    }
    ordered = dict(sorted(records.items(), key=lambda item: (item[1].offset, item[1].nbytes)))
    _check_contiguous(ordered, data_start, file_bytes, path, error)
    return ordered


def _record(
    name: str, entry: object, data_start: int, path: Path, error: type[ModelError]
) -> TensorRecord:
    """One entry of the header, checked in itself."""
    # JSON can contain lone surrogates, which cannot be printed.
    if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
        raise error(f"{path}: a tensor's name is no text: {name!a}")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise error(f"{path}: a tensor's name is longer than {NAME_BYTES_MAX} bytes")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise error(f"{path}: tensor {name}: expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
        raise error(f"{path}: tensor {name}: unknown type {dtype!r}")
    if not _whole_numbers(shape, DIMENSION_MAX) or len(shape) > RANK_MAX:
        raise error(f"{path}: tensor {name}: bad shape {shape!r}")
    if not _whole_numbers(offsets, 1 << 62) or len(offsets) != 2:
        raise error(f"{path}: tensor {name}: bad data_offsets {offsets!r}")
    nbytes = math.prod(shape) * ELEMENT_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        raise error(
            f"{path}: tensor {name}: {dtype} {shape} are {nbytes} bytes, "
            f"but data_offsets {offsets} span {offsets[1] - offsets[0]}"
        )
    return TensorRecord(dtype.lower(), tuple(shape), data_start + offsets[0], nbytes)


def _whole_numbers(values: object, limit: int) -> bool:
    """Whether `values` is a list of whole numbers of 0 to `limit` (true and 1.0 are none)."""
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= limit for v in values)


def _check_contiguous(
    ordered: Mapping[str, TensorRecord],
    data_start: int,
    file_bytes: int,
    path: Path,
    error: type[ModelError],
) -> None:
    """No hole, no overlap, and the file ends where its last tensor does."""
    position = data_start
    for name, record in ordered.items():
        if record.offset != position:
            raise error(
                f"{path}: tensor {name} starts at byte {record.offset}, "
                f"but the one before it ends at {position}"
            )
        position += record.nbytes
    if position > file_bytes:
        raise ModelTruncated(
            f"{path}: {file_bytes} bytes, but its tensors reach to {position}; fetch the file again"
        )
    if position < file_bytes:
        raise error(f"{path}: {file_bytes - position} bytes follow its last tensor")


def pack_tensor_header(
    tensors: Sequence[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Length and JSON of a file with these (name, dtype tag, shape), laid out in this order.

    Spaces pad the header so that the data start at a multiple of 4096, for direct reads.
    """
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    for name, dtype, shape in tensors:
        nbytes = math.prod(shape) * ELEMENT_BYTES[dtype.upper()]
        entries[name] = {
            "dtype": dtype.upper(),
            "shape": list(shape),
            "data_offsets": [position, position + nbytes],
        }
        position += nbytes
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-(8 + len(raw)) % DATA_ALIGNMENT)
    return len(raw).to_bytes(8, "little") + raw
