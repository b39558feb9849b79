"""The two files that a runtime loads: `predictors.safetensors` and `activity.json`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save

from flashllm.errors import CannotCreate

from .lowrank import LowRank
from .report import FILE_NAME as ACTIVITY_FILE
from .report import Report

PREDICTORS_FILE = "predictors.safetensors"


def write_predictors(
    output: Path, predictors: Sequence[LowRank], thresholds: Sequence[float], report: Report
) -> None:
    """Write both files to the directory `output`, or neither."""
    contents = {
        PREDICTORS_FILE: save(predictor_tensors(predictors, thresholds)),
        ACTIVITY_FILE: report.to_bytes(),
    }
    parts = {name: output / f".{name}.part" for name in contents}
    try:
        for name, content in contents.items():
            _write(parts[name], content)
        # The tensors last: they are what makes the runtime look for predictors.
        for name in (ACTIVITY_FILE, PREDICTORS_FILE):
            parts[name].replace(output / name)
    except OSError as error:
        raise CannotCreate(f"{output}: cannot write the predictors: {error.strerror}") from error
    finally:
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def predictor_tensors(
    predictors: Sequence[LowRank], thresholds: Sequence[float]
) -> dict[str, torch.Tensor]:
    """The tensors by name: down and up in float16, bias and threshold in float32."""
    tensors: dict[str, torch.Tensor] = {}
    for layer, (predictor, threshold) in enumerate(zip(predictors, thresholds, strict=True)):
        tensors[f"layers.{layer}.down"] = predictor.down.contiguous()
        tensors[f"layers.{layer}.up"] = predictor.up.contiguous()
        tensors[f"layers.{layer}.bias"] = predictor.bias.contiguous()
        tensors[f"layers.{layer}.threshold"] = torch.tensor([threshold], dtype=torch.float32)
    return tensors


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
