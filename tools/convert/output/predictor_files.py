"""Checks whether predictors belong to a model, and copies them in."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np

from flashllm.dtypes import GROUP_BYTES, PREDICTOR_MATRIX_DTYPES, row_bytes
from flashllm.errors import LayoutError, UsageError
from flashllm.flash.file_names import ACTIVITY_FILE, PREDICTORS_FILE
from flashllm.flash.raw_tensor import all_finite
from flashllm.flash.safetensors_file import TensorRecord, pack_tensor_header, read_tensor_index
from flashllm.flash.tensor_table import encoding_of, predictor_columns, stored_as
from flashllm.spec import ModelSpec
from flashllm.system.atomic_file import replacing
from flashllm.untrusted.strict_json import parse_object

from ..source.encoding import check_scales, encode, largest_scale
from ..source.files import BLOCK_BYTES
from .destination import OutputFile

ACTIVITY_BYTES_MAX = 64 << 20


def check_predictors(path: Path, spec: ModelSpec) -> None:
    """`LayoutError` unless the file holds a predictor of the right shape for every layer.

    down [rank, d_model] and up [d_ffn, rank] in f16, f32, int8 or int4; bias [d_ffn], threshold [1]
    in f32; hidden_relu and before_norm [1] in f32, which are 0 or 1, may be absent for 0.
    """
    index = read_tensor_index(path)
    wanted = {f"layers.{i}.{leaf}" for i in range(spec.n_layers) for leaf in _LEAVES}
    optional = {f"layers.{i}.{leaf}" for i in range(spec.n_layers) for leaf in _SWITCHES}
    if set(index) - optional != wanted:
        odd = sorted((set(index) - optional) ^ wanted)
        raise LayoutError(
            f"{path}: not the predictors of this model: {odd[0]} is missing or not expected "
            f"({len(odd)} such tensors)"
        )
    for layer in range(spec.n_layers):
        rank = max(index[f"layers.{layer}.down"].shape[:1], default=0)
        for leaf, (dtypes, shape) in _layer_tensors(spec, rank).items():
            record = index.get(f"layers.{layer}.{leaf}")
            if record is None:
                continue
            encoding = encoding_of(record, shape[-1])
            stored = stored_as(encoding, shape) if encoding in dtypes else None
            if stored != (record.dtype, record.shape) or 0 in shape:
                needed = ["rank above 0" if size == 0 else size for size in shape]
                raise LayoutError(
                    f"{path}: layers.{layer}.{leaf} is {record.dtype} {list(record.shape)}; "
                    f"this model needs {dtypes[0]} [{', '.join(map(str, needed))}]"
                )
    _check_switches(path, {name: index[name] for name in sorted(optional & set(index))})
    _check_finite(path, index, predictor_columns(index, spec))


_LEAVES = ("down", "up", "bias", "threshold")
_SWITCHES = ("hidden_relu", "before_norm")


def _check_switches(path: Path, records: dict[str, TensorRecord]) -> None:
    """`LayoutError` unless the switches of the layers are 0 or 1."""
    with open(path, "rb") as file:
        for name, record in records.items():
            file.seek(record.offset)
            (value,) = struct.unpack("<f", file.read(4))
            if value not in (0.0, 1.0):
                raise LayoutError(f"{path}: {name} is {value}; expected 0 or 1")


def _check_finite(path: Path, index: dict[str, TensorRecord], columns: dict[str, int]) -> None:
    """`LayoutError` for a NaN or an infinity, with which neurons would be left out in silence."""
    with open(path, "rb") as file:
        for name, record in index.items():
            file.seek(record.offset)
            width = columns.get(name, 1)
            encoding = encoding_of(record, width)
            row = row_bytes(encoding, width)
            block_bytes = max(BLOCK_BYTES // row, 1) * row
            for start in range(0, record.nbytes, block_bytes):
                raw = file.read(min(block_bytes, record.nbytes - start))
                if not all_finite(np.frombuffer(raw, np.uint8), encoding, width):
                    raise LayoutError(f"{path}: {name} holds NaN or infinity; train it again")


def _layer_tensors(
    spec: ModelSpec, rank: int
) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Accepted encodings and shape of the tensors of one layer's predictor."""
    return {
        "down": (PREDICTOR_MATRIX_DTYPES, (rank, spec.d_model)),
        "up": (PREDICTOR_MATRIX_DTYPES, (spec.d_ffn, rank)),
        "bias": (("f32",), (spec.d_ffn,)),
        "threshold": (("f32",), (1,)),
        **dict.fromkeys(_SWITCHES, (("f32",), (1,))),
    }


def check_activity(path: Path, spec: ModelSpec) -> None:
    """`LayoutError` unless the record of activity is one of a model with as many layers.

    A recording without predictors has no `layers`: then the windows of the oracle must have them.
    """
    if path.stat().st_size > ACTIVITY_BYTES_MAX:
        raise LayoutError(f"{path}: larger than {ACTIVITY_BYTES_MAX} bytes")
    values = parse_object(path.read_bytes(), path, LayoutError)
    described = [values["layers"]] if "layers" in values else _windows(values.get("oracle"))
    if not described or not all(
        isinstance(layers, list) and len(layers) == spec.n_layers for layers in described
    ):
        raise LayoutError(f"{path}: does not describe {spec.n_layers} layers")


def _windows(use: object) -> list[Any]:
    """What each window of tokens needed, one value a layer."""
    rows = use.get("slots_needed") if isinstance(use, dict) else None
    return rows if isinstance(rows, list) else []


def copy_predictors(predictors: Path, directory: Path, spec: ModelSpec) -> None:
    """Copies `predictors` and the activity.json beside it, checked against the model.

    Published predictors come without a record of activity; if there is none next to them, none is
    copied, and the plan uses its own estimate.
    """
    if not predictors.is_file():
        raise UsageError(
            f"{predictors}: no such file; --predictors takes none, train, the path of a "
            f"predictors.safetensors, or a folder of model_0.pt, model_1.pt, ..."
        )
    check_predictors(predictors, spec)
    activity = predictors.parent / ACTIVITY_FILE
    if activity.is_file():
        check_activity(activity, spec)
        shutil.copyfile(activity, directory / ACTIVITY_FILE)
    shutil.copyfile(predictors, directory / PREDICTORS_FILE)


def encode_predictors(path: Path, spec: ModelSpec, dtype: str) -> None:
    """Writes the predictors in `path` again, their matrices in another encoding.

    `UsageError` where these were rounded to 8 or 4 bits before, which cannot be undone.
    """
    index = read_tensor_index(path)
    widths = predictor_columns(index, spec)
    rounded = {encoding_of(index[name], widths[name]) for name in widths} & set(GROUP_BYTES)
    if rounded == {dtype}:
        return
    if rounded:
        raise UsageError(
            f"--predictor-dtype {dtype}: the predictors are in {rounded.pop()} already; leave it"
            " out"
        )
    # What is f32 comes first: behind rows of bytes it would lie at odd places.
    names = sorted(index, key=lambda name: (name in widths, index[name].offset))
    layout = [
        (name, *(stored_as(dtype, shape) if name in widths else (index[name].dtype, shape)))
        for name in names
        for shape in [index[name].shape]
    ]
    with replacing(path) as part, open(path, "rb") as source, OutputFile(part) as file:
        file.write(pack_tensor_header(layout))
        for name in names:
            record = index[name]
            source.seek(record.offset)
            raw = np.frombuffer(source.read(record.nbytes), np.uint8)
            if name in widths:
                raw = encode(raw, record.dtype, dtype, name, widths[name])
                if dtype in GROUP_BYTES:
                    rows = raw.reshape(-1, row_bytes(dtype, widths[name]))
                    largest = largest_scale(rows, widths[name], dtype)
                    check_scales(largest, dtype, name)
            file.write(raw.data)
