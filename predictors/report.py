"""Errors of predictors and use of windows: `activity.json`, and a table of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashllm.errors import LayoutError, ModelNotFound

from .window_counter import WINDOWS, WindowUse

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
class Judgement:
    """The whole model with all layers predicted, on the same held-out contexts, and the targets.

    `false_negatives_set` is the value that thresholds were set for: the target, or the part of it
    that the perplexity required.
    """

    perplexity_dense: float
    perplexity_predicted: float
    false_negatives_target: float
    false_positives_target: float
    perplexity_ratio_target: float
    false_negatives_set: float

    @property
    def ratio(self) -> float:
        """Perplexity with predicted neurons over that with all."""
        return self.perplexity_predicted / self.perplexity_dense


@dataclass(frozen=True, slots=True)
class Report:
    """All layers' errors, and how many neurons each window of tokens used."""

    calibration_tokens: int
    heldout_tokens: int
    layers: tuple[LayerReport, ...]
    predicted: tuple[WindowUse, ...]
    oracle: tuple[WindowUse, ...]
    judgement: Judgement | None = None
    """Absent from files of older versions, and for predictors that were not trained here."""

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
            **_judged(self.judgement),
        }

    def to_bytes(self) -> bytes:
        """The file's content, the same for the same report."""
        return (json.dumps(self.to_json(), indent=1) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of a model that needs no predictors: sparsity by layer, and use of windows."""

    calibration_tokens: int
    sparsity: tuple[float, ...]
    oracle: tuple[WindowUse, ...]
    gate: tuple[WindowUse, ...] = ()
    """Use of what the gate lets through, where up may set some of that to zero as well."""

    def to_json(self) -> dict[str, Any]:
        """The object that `activity.json` holds."""
        return {
            "calibration_tokens": self.calibration_tokens,
            "windows": list(WINDOWS),
            "oracle": _by_window(self.oracle),
            **({"gate": _by_window(self.gate)} if self.gate else {}),
            "layers": [{"sparsity": share} for share in self.sparsity],
            "mean": {"sparsity": float(np.mean(self.sparsity))},
        }

    def to_bytes(self) -> bytes:
        """The file's content, the same for the same activity."""
        return (json.dumps(self.to_json(), indent=1) + "\n").encode()


def read_report(directory: Path) -> Report:
    """The report next to a model's predictors; `ModelNotFound` or `LayoutError` without one."""
    path = directory / FILE_NAME
    if not directory.is_dir():
        raise ModelNotFound(f"{directory}: no such directory")
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
        if "predicted" not in values:
            raise ValueError("it is of a model without predictors")
        layers = tuple(LayerReport(**layer) for layer in values["layers"])
        return Report(
            int(values["calibration_tokens"]),
            int(values["heldout_tokens"]),
            layers,
            _by_layer(values["predicted"], len(layers)),
            _by_layer(values["oracle"], len(layers)),
            _judgement(values),
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
        "false negatives per active neuron, false positives per inactive one; the last line is the"
        " mean of the layers, each counting alike"
    )
    judged = report.judgement
    if judged is not None:
        lines.append(
            f"perplexity on held-out tokens: {judged.perplexity_dense:.3f} with all neurons, "
            f"{judged.perplexity_predicted:.3f} with predicted ones ({judged.ratio:.4f} of it)"
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


def _judged(judgement: Judgement | None) -> dict[str, Any]:
    if judgement is None:
        return {}
    return {
        "perplexity_dense": judgement.perplexity_dense,
        "perplexity_predicted": judgement.perplexity_predicted,
        "targets": {
            "false_negatives": judgement.false_negatives_target,
            "false_positives": judgement.false_positives_target,
            "perplexity_ratio": judgement.perplexity_ratio_target,
            "false_negatives_set": judgement.false_negatives_set,
        },
    }


def _judgement(values: dict[str, Any]) -> Judgement | None:
    if "perplexity_predicted" not in values:
        return None
    targets = values["targets"]
    return Judgement(
        float(values["perplexity_dense"]),
        float(values["perplexity_predicted"]),
        float(targets["false_negatives"]),
        float(targets["false_positives"]),
        float(targets["perplexity_ratio"]),
        float(targets["false_negatives_set"]),
    )


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
