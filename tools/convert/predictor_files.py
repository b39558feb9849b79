"""Predictors beside a converted model: are they those of this model, and copying them in."""

from __future__ import annotations

import shutil
from pathlib import Path

from flashllm.errors import LayoutError, UsageError
from flashllm.flash.layout import read_tensor_index
from flashllm.flash.manifest import ACTIVITY_FILE, PREDICTORS_FILE
from flashllm.flash.strict_json import parse_object
from flashllm.spec import ModelSpec

ACTIVITY_BYTES_MAX = 64 << 20


def check_predictors(path: Path, spec: ModelSpec) -> None:
    """`LayoutError` unless the file holds a predictor of the right shape for every layer."""
    index = read_tensor_index(path)
    wanted = {f"layers.{i}.{leaf}" for i in range(spec.n_layers) for leaf in _LEAVES}
    if set(index) != wanted:
        odd = sorted(set(index) ^ wanted)
        raise LayoutError(
            f"{path}: not the predictors of this model: {odd[0]} is missing or not expected "
            f"({len(odd)} such tensors)"
        )
    for layer in range(spec.n_layers):
        rank = max(index[f"layers.{layer}.down"].shape[:1], default=0)
        for leaf, (dtypes, shape) in _layer_tensors(spec, rank).items():
            record = index[f"layers.{layer}.{leaf}"]
            if record.dtype not in dtypes or record.shape != shape or 0 in shape:
                raise LayoutError(
                    f"{path}: layers.{layer}.{leaf} is {record.dtype} {list(record.shape)}; "
                    f"this model needs {dtypes[0]} {list(shape)}"
                )


_LEAVES = ("down", "up", "bias", "threshold")


def _layer_tensors(
    spec: ModelSpec, rank: int
) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Accepted encodings and shape of the tensors of one layer's predictor."""
    return {
        "down": (("f16", "f32"), (rank, spec.d_model)),
        "up": (("f16", "f32"), (spec.d_ffn, rank)),
        "bias": (("f32",), (spec.d_ffn,)),
        "threshold": (("f32",), (1,)),
    }


def check_activity(path: Path, spec: ModelSpec) -> None:
    """`LayoutError` unless the record of activity is one of a model with as many layers."""
    if path.stat().st_size > ACTIVITY_BYTES_MAX:
        raise LayoutError(f"{path}: larger than {ACTIVITY_BYTES_MAX} bytes")
    layers = parse_object(path.read_bytes(), path, LayoutError).get("layers")
    if not isinstance(layers, list) or len(layers) != spec.n_layers:
        raise LayoutError(f"{path}: does not describe {spec.n_layers} layers")


def copy_predictors(predictors: Path, directory: Path, spec: ModelSpec) -> None:
    """Copies `predictors` and the activity.json beside it, checked against the model."""
    activity = predictors.parent / ACTIVITY_FILE
    for path in (predictors, activity):
        if not path.is_file():
            raise UsageError(
                f"{path}: no such file; --predictors takes none, train, or the path of a "
                f"predictors.safetensors with its {ACTIVITY_FILE} beside it"
            )
    check_predictors(predictors, spec)
    check_activity(activity, spec)
    shutil.copyfile(predictors, directory / PREDICTORS_FILE)
    shutil.copyfile(activity, directory / ACTIVITY_FILE)
