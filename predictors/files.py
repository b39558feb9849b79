"""The two files that a runtime loads: `predictors.safetensors` and `activity.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save

from flashllm.system.resumable_file import write_file

from .lowrank import LowRank
from .report import FILE_NAME as ACTIVITY_FILE
from .report import Activity, Report

PREDICTORS_FILE = "predictors.safetensors"


def write_predictors(
    output: Path, predictors: Sequence[LowRank], thresholds: Sequence[float], report: Report
) -> None:
    """Write both files to the directory `output`, each whole or not at all."""
    # The tensors last: they are what makes the runtime look for predictors.
    write_file(output / ACTIVITY_FILE, report.to_bytes())
    write_file(output / PREDICTORS_FILE, save(predictor_tensors(predictors, thresholds)))


def write_activity(output: Path, report: Report | Activity) -> None:
    """Write `activity.json` alone."""
    write_file(output / ACTIVITY_FILE, report.to_bytes())


def predictor_tensors(
    predictors: Sequence[LowRank], thresholds: Sequence[float]
) -> dict[str, torch.Tensor]:
    """The tensors by name: down and up as the predictor says, bias and threshold in float32."""
    tensors: dict[str, torch.Tensor] = {}
    for layer, (predictor, threshold) in enumerate(zip(predictors, thresholds, strict=True)):
        tensors[f"layers.{layer}.down"] = predictor.stored(predictor.down)
        tensors[f"layers.{layer}.up"] = predictor.stored(predictor.up)
        tensors[f"layers.{layer}.bias"] = predictor.bias.contiguous()
        tensors[f"layers.{layer}.threshold"] = torch.tensor([threshold], dtype=torch.float32)
    return tensors
