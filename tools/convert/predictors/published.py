"""Converts published predictors to this project's `predictors.safetensors`.

PowerInfer's form: a folder with one `model_{layer}.pt` a layer, each a dictionary of `fc1.weight`
[rank, d_model] and `fc2.weight` [d_ffn, rank] without biases and with relu between, and perhaps a
`config.json` with `sparse_threshold`; a neuron is active where its score exceeds that. Their input
is the input of the feed-forward layer's norm: so they were trained, and so PowerInfer runs them
(https://github.com/SJTU-IPADS/PowerInfer). One layer at a time is in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import NotACheckpoint, TensorMismatch, UsageError
from flashllm.flash.file_names import PREDICTORS_FILE
from flashllm.flash.safetensors_file import pack_tensor_header
from flashllm.spec import MAX_WIDTH, ModelSpec
from flashllm.system.atomic_file import replacing
from flashllm.untrusted.strict_json import parse_object

from ..output.destination import write_error
from ..source.encoding import encode
from ..source.files import read_small
from ..source.pickled import PickledShard, open_pickles

FIRST_FILE = "model_0.pt"
CONFIG_FILE = "config.json"
CONFIG_BYTES_MAX = 1 << 20
_FLOAT16_MAX = 65504.0
_LEAVES = 6
_FLOAT32_MAX = float(np.finfo(np.float32).max)

Matrix = NDArray[np.float32]
Layout = list[tuple[str, str, tuple[int, ...]]]


def import_published(source: Path, spec: ModelSpec, directory: Path) -> None:
    """Write `predictors.safetensors` to `directory` from the folder `source`.

    `UsageError` for a folder that is none or holds other layers than the model,
    `TensorMismatch` for tensors that are not those of its layers, `NotACheckpoint` for a file that
    cannot be read as plain tensors. Nothing is left in `directory` then.
    """
    if not source.is_dir():
        raise UsageError(f"{source}: no such folder of predictors (model_0.pt, model_1.pt, ...)")
    wanted = [f"model_{layer}.pt" for layer in range(spec.n_layers)]
    found = {path.name for path in source.glob("model_*.pt")}
    odd = sorted(found.symmetric_difference(wanted), key=lambda name: (len(name), name))
    if odd:
        problem = "does not belong to a layer of the model" if odd[0] in found else "missing"
        raise UsageError(
            f"{source / odd[0]}: {problem}; {spec.n_layers} layers need model_0.pt to {wanted[-1]} "
            f"({len(odd)} such files)"
        )
    shards = open_pickles(source, wanted)
    try:
        layers = (_layer(source, name, shard, spec) for name, shard in shards.items())
        write_published(layers, _threshold(source), spec, directory)
    finally:
        for shard in shards.values():
            shard.close()


def write_published(
    layers: Iterable[tuple[Matrix, Matrix]], threshold: float, spec: ModelSpec, directory: Path
) -> None:
    """Write `predictors.safetensors` from fc1 [rank, d_model] and fc2 [d_ffn, rank] of each layer.

    Relu lies between the two, and they read before the norm; a score above `threshold` says active.
    Consumes one layer at a time.
    Stored as f16 where all values fit, else as f32. `UsageError` for a model whose activation is
    never zero, `TensorMismatch` for matrices that are not the model's; no file is left then.
    """
    if not spec.sparse:
        raise UsageError(
            f"predictors are of no use: the activation of this model, {spec.activation}, is never "
            "zero; convert it without"
        )
    try:
        with replacing(directory / PREDICTORS_FILE) as part, part.open("wb") as file:
            header_bytes = _header_bytes_max(spec)
            file.seek(header_bytes)
            layout: Layout = []
            for layer, (down, up) in enumerate(layers):
                _check(layer, down, up, spec)
                for leaf, dtype, values in _leaves(down, up, threshold):
                    layout.append((f"layers.{layer}.{leaf}", dtype, values.shape))
                    file.write(values.data)
            if len(layout) != spec.n_layers * _LEAVES:
                raise TensorMismatch(
                    f"predictors of {len(layout) // _LEAVES} layers; the model has {spec.n_layers}"
                )
            file.seek(0)
            file.write(_padded_header(layout, header_bytes))
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise write_error(problem, directory / PREDICTORS_FILE) from problem


def _threshold(source: Path) -> float:
    """`sparse_threshold` of the folder's config.json; 0 where it says nothing."""
    path = source / CONFIG_FILE
    if not os.path.lexists(path):
        return 0.0
    raw = read_small(source, CONFIG_FILE, CONFIG_BYTES_MAX)
    value = parse_object(raw, path, NotACheckpoint).get("sparse_threshold")
    if value is None:
        return 0.0
    if type(value) not in (int, float) or not abs(value) <= _FLOAT32_MAX:
        raise UsageError(f"{path}: sparse_threshold is {str(value)[:80]}; expected a number")
    return float(value)


def _layer(source: Path, name: str, shard: PickledShard, spec: ModelSpec) -> tuple[Matrix, Matrix]:
    """fc1 and fc2 of one file."""
    tensors = {tensor.name: tensor for tensor in shard.tensors()}
    odd = sorted(set(tensors) ^ {"fc1.weight", "fc2.weight"})
    if odd:
        problem = "is not expected" if odd[0] in tensors else "is missing"
        raise TensorMismatch(
            f"{source / name}: {odd[0]} {problem}; a predictor is fc1.weight and fc2.weight, "
            "without biases"
        )
    rank = max(tensors["fc1.weight"].shape[:1], default=0)
    shapes = {"fc1.weight": (rank, spec.d_model), "fc2.weight": (spec.d_ffn, rank)}
    values = []
    for key, shape in shapes.items():
        tensor = tensors[key]
        if tensor.shape != shape or not 0 < rank <= MAX_WIDTH:
            expected = str(list(shape)) if rank else f"[rank, {spec.d_model}]"
            raise TensorMismatch(
                f"{source / name}: {key} is {list(tensor.shape)}; this model needs {expected}"
            )
        if tensor.dtype not in ("f32", "f16", "bf16"):
            raise TensorMismatch(f"{source / name}: {key} is of type {tensor.dtype}")
        raw = np.empty(tensor.nbytes, dtype=np.uint8)
        shard.read_into(raw.data, key, 0)
        decoded = encode(raw, tensor.dtype, "f32", f"{key} of {source / name}")
        values.append(decoded.view(np.float32).reshape(shape))
    shard.check_unchanged()
    return values[0], values[1]


def _check(layer: int, down: Matrix, up: Matrix, spec: ModelSpec) -> None:
    """`TensorMismatch` unless the matrices are finite and of this model."""
    rank = max(down.shape[:1], default=0)
    shapes = {"fc1": (down, (rank, spec.d_model)), "fc2": (up, (spec.d_ffn, rank))}
    for name, (values, shape) in shapes.items():
        if values.shape != shape or not 0 < rank <= MAX_WIDTH:
            raise TensorMismatch(
                f"predictor of layer {layer}: {name} is {list(values.shape)}; this model needs "
                f"{list(shape)}"
            )
        if not np.isfinite(values).all():
            raise TensorMismatch(f"predictor of layer {layer}: {name} holds NaN or infinity")


def _leaves(
    down: Matrix, up: Matrix, threshold: float
) -> Iterator[tuple[str, str, NDArray[np.floating[Any]]]]:
    """What is stored of one layer: leaf, encoding, values; a multiple of 4 bytes in all."""
    zeros = np.zeros(len(up), dtype=np.float32)
    yield "bias", "f32", zeros
    yield "threshold", "f32", np.array([threshold], dtype=np.float32)
    yield "hidden_relu", "f32", np.ones(1, dtype=np.float32)
    yield "before_norm", "f32", np.ones(1, dtype=np.float32)
    largest = max(float(np.abs(down).max()), float(np.abs(up).max()))
    # Two odd counts of f16 would leave the next layer's f32 at an odd place.
    half = largest <= _FLOAT16_MAX and (down.size + up.size) % 2 == 0
    for leaf, values in (("down", down), ("up", up)):
        dtype = np.dtype("<f2" if half else "<f4")
        yield leaf, "f16" if half else "f32", np.ascontiguousarray(values, dtype=dtype)


def _header_bytes_max(spec: ModelSpec) -> int:
    """Bytes that the header takes at most, whatever ranks the layers turn out to have."""
    shapes = {
        "bias": (spec.d_ffn,),
        "threshold": (1,),
        "hidden_relu": (1,),
        "before_norm": (1,),
        "down": (MAX_WIDTH, spec.d_model),
        "up": (spec.d_ffn, MAX_WIDTH),
    }
    layout = [
        (f"layers.{layer}.{leaf}", "f32", shape)
        for layer in range(spec.n_layers)
        for leaf, shape in shapes.items()
    ]
    return len(pack_tensor_header(layout))


def _padded_header(layout: Layout, header_bytes: int) -> bytes:
    """The header of a file whose data start at `header_bytes`."""
    header = pack_tensor_header(layout)
    assert len(header) <= header_bytes
    return (header_bytes - 8).to_bytes(8, "little") + header[8:].ljust(header_bytes - 8, b" ")
