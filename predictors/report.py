"""What a predictor gets wrong and what its windows hold: `activity.json`, and a table of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashllm.errors import LayoutError, ModelNotFound

from .activity import WINDOWS, WindowUse

FILE_NAME = "activity.json"
FILE_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class LayerReport:
    """Errors of one layer on tokens that neither training nor calibration saw.

    `false_negatives` per neuron that was active, `false_positives` per neuron that was not;
    `sparsity` is the share of inactive neurons, `active_predicted` that of predicted ones.
    """

    rank: int
    threshold: float
    false_negatives: float
    false_positives: float
    sparsity: float
    active_predicted: float


@dataclass(frozen=True, slots=True)
class Report:
    """All layers' errors, and how many neurons each window of tokens used."""

    calibration_tokens: int
    heldout_tokens: int
    layers: tuple[LayerReport, ...]
    predicted: tuple[WindowUse, ...]
    oracle: tuple[WindowUse, ...]

    @property
    def mean(self) -> dict[str, float]:
        """Each column of the layers' table, averaged over the layers."""
        rows = [dataclasses.asdict(layer) for layer in self.layers]
        names = ("false_negatives", "false_positives", "sparsity", "active_predicted")
        return {name: float(np.mean([row[name] for row in rows])) for name in names}

    def to_json(self) -> dict[str, Any]:
        """The object that `activity.json` holds."""
        return {
            "calibration_tokens": self.calibration_tokens,
            "heldout_tokens": self.heldout_tokens,
            "windows": list(WINDOWS),
            "predicted": _by_window(self.predicted),
            "oracle": _by_window(self.oracle),
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "mean": self.mean,
        }

    def to_bytes(self) -> bytes:
        """The file's content, the same for the same report."""
        return (json.dumps(self.to_json(), indent=1) + "\n").encode()


def read_report(directory: Path) -> Report:
    """The report beside a model's predictors; `ModelNotFound` or `LayoutError` without one."""
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise ModelNotFound(
            f"{path}: no report of predictors ({error.strerror}); "
            "convert the model with --predictors train"
        ) from error
    try:
        values = json.loads(raw)
        if values["windows"] != list(WINDOWS):
            raise ValueError("windows of another version")
        layers = tuple(LayerReport(**layer) for layer in values["layers"])
        return Report(
            int(values["calibration_tokens"]),
            int(values["heldout_tokens"]),
            layers,
            _by_layer(values["predicted"], len(layers)),
            _by_layer(values["oracle"], len(layers)),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise LayoutError(
            f"{path}: not a report of predictors ({error}); train them again"
        ) from error


def table(report: Report) -> str:
    """The report as text: one line a layer, the mean last, percentages."""
    lines = ["layer  rank  threshold  false neg.  false pos.  sparsity  predicted"]
    for number, layer in enumerate(report.layers):
        head = f"{number:>5}  {layer.rank:>4}  {layer.threshold:>9.2f}"
        lines.append(f"{head}  {_percentages(dataclasses.asdict(layer))}")
    lines.append(f"{'mean':>5}  {'':>4}  {'':>9}  {_percentages(report.mean)}")
    lines.append(
        f"{report.heldout_tokens:,} held-out tokens of {report.calibration_tokens:,}; "
        "false negatives per active neuron, false positives per inactive one"
    )
    lines.append(
        "neurons that a window of tokens uses, mean of the layers, on average and at most:"
    )
    for index, window in enumerate(WINDOWS):
        lines.append(
            f"{window:>5}  predicted {_use(report.predicted, index)}"
            f"  oracle {_use(report.oracle, index)}"
        )
    return "\n".join(lines)


def _percentages(values: dict[str, float]) -> str:
    return (
        f"{values['false_negatives']:>9.2%}   {values['false_positives']:>9.2%}  "
        f"{values['sparsity']:>8.2%}  {values['active_predicted']:>8.2%}"
    )


def _use(layers: Sequence[WindowUse], index: int) -> str:
    mean = np.mean([use.s_agg[index] for use in layers])
    most = np.mean([use.slots_needed[index] for use in layers])
    return f"{mean:>8.1f} {most:>8.1f}"


def _by_window(layers: Sequence[WindowUse]) -> dict[str, Any]:
    """One list a window, in it one value a layer."""
    return {
        "slots_needed": [list(row) for row in zip(*(u.slots_needed for u in layers), strict=True)],
        "s_agg": [list(row) for row in zip(*(u.s_agg for u in layers), strict=True)],
    }


def _by_layer(values: dict[str, Any], n_layers: int) -> tuple[WindowUse, ...]:
    return tuple(
        WindowUse(
            [int(row[layer]) for row in values["slots_needed"]],
            [float(row[layer]) for row in values["s_agg"]],
        )
        for layer in range(n_layers)
    )
