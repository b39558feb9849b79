"""The skewing matrices of a model, in a file beside its predictors: `skewing.safetensors`.

It is made after a model was converted, from a text of the user's, so that the manifest does not
name it: it names the weights that it belongs to, and has a checksum of each tensor. What is
damaged, or of another model or version, is not used: without it answers are no less right, and
a little more is fetched for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import FlashllmError, LayoutError
from flashllm.flash.checksums import TensorHash
from flashllm.flash.file_names import RESIDENT_FILE, SKEWING_FILE
from flashllm.flash.manifest import read_manifest
from flashllm.flash.opening_errors import opening_errors
from flashllm.flash.safetensors_file import (
    PREFIX_BYTES,
    pack_tensor_header,
    parse_tensor_index,
    read_header_bytes,
)
from flashllm.spec import ModelSpec
from flashllm.system.resumable_file import write_file
from flashllm.untrusted.strict_json import parse_object

VERSION = "1"
_ORTHOGONAL_WITHIN = 1e-3
Layers = Sequence[NDArray[np.float32]]
"""Of each layer [kv_heads, head_dim, head_dim]."""


def write_skewing(directory: Path, layers: Layers) -> Path:
    """Writes the file of a converted model, whole or not at all; its path. `CannotCreate`."""
    names = [f"layers.{index}.skewing" for index in range(len(layers))]
    arrays = [np.ascontiguousarray(layer, "<f4") for layer in layers]
    metadata = {"version": VERSION, "weights": _weights_digest(directory)}
    metadata |= {
        f"crc32c.{name}": _checksum(name, array) for name, array in zip(names, arrays, strict=True)
    }
    tensors = [(name, "F32", array.shape) for name, array in zip(names, arrays, strict=True)]
    path = directory / SKEWING_FILE
    header = pack_tensor_header(tensors, metadata)
    write_file(path, header + b"".join(array.tobytes() for array in arrays))
    return path


def read_skewing(directory: Path, spec: ModelSpec) -> list[NDArray[np.float32]] | None:
    """The matrices of each layer; None where there is no such file.

    `FlashllmError` for a file that is damaged or belongs to other weights.
    """
    path = directory / SKEWING_FILE
    if not path.exists():
        return None
    shape = (spec.n_kv_heads, spec.head_dim, spec.head_dim)
    names = [f"layers.{index}.skewing" for index in range(spec.n_layers)]
    expected = len(names) * int(np.prod(shape)) * 4
    with opening_errors(path):
        if path.stat().st_size > expected + (1 << 20):
            raise LayoutError(f"{path}: larger than the matrices of this model")
        raw = path.read_bytes()
    header_bytes = read_header_bytes(raw[:PREFIX_BYTES], len(raw), path)
    header = raw[PREFIX_BYTES : PREFIX_BYTES + header_bytes]
    index = parse_tensor_index(header, len(raw), path)
    metadata = _metadata(header, path)
    if metadata.get("version") != VERSION:
        raise LayoutError(f"{path}: version {metadata.get('version')!r}; expected {VERSION}")
    if metadata.get("weights") != _weights_digest(directory):
        raise LayoutError(f"{path}: belongs to other weights than those of this model")
    found = []
    for name in names:
        record = index.get(name)
        if (
            record is None
            or (record.dtype, record.shape) != ("f32", shape)
            or len(index) != len(names)
        ):
            raise LayoutError(f"{path}: {name} is not of the shape of this model")
        array = np.frombuffer(raw, "<f4", int(np.prod(shape)), record.offset).reshape(shape)
        if metadata.get(f"crc32c.{name}") != _checksum(name, array):
            raise LayoutError(f"{path}, tensor {name} at offset {record.offset}: damaged")
        with np.errstate(all="ignore"):  # what is not finite is not orthogonal
            products = array.transpose(0, 2, 1) @ array
        if not np.allclose(products, np.eye(shape[1]), atol=_ORTHOGONAL_WITHIN):
            raise LayoutError(f"{path}: {name} is not orthogonal")
        found.append(array.astype(np.float32))
    return found


def usable_skewing(
    directory: Path, spec: ModelSpec
) -> tuple[list[NDArray[np.float32]] | None, str]:
    """The matrices, or None and a sentence on why there are none to use."""
    remedy = f"`flashllm calibrate {directory} --text FILE` makes one"
    try:
        found = read_skewing(directory, spec)
    except FlashllmError as error:
        return None, f"keys and values are chosen without skewing ({error}); {remedy}"
    if found is None:
        return None, f"keys and values are chosen without skewing: there is no file of it; {remedy}"
    return found, ""


def _weights_digest(directory: Path) -> str:
    """The SHA-256 of the resident weights, among them those of attention."""
    return read_manifest(directory).files[RESIDENT_FILE].sha256


def _checksum(name: str, array: NDArray[np.float32]) -> str:
    found = TensorHash(name)
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return found.digest().hex()


def _metadata(header: bytes, path: Path) -> dict[str, Any]:
    metadata = parse_object(header, path, LayoutError).get("__metadata__")
    if not isinstance(metadata, dict):
        raise LayoutError(f"{path}: has no metadata")
    return metadata
