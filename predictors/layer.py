"""Trains one layer from its recording: prices, rank, training, thresholds, errors.

Tokens are divided: `train` for gradients; `tune` for the rank, for when to stop and for thresholds;
`report` for the reported errors only, which decide nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from flashllm.errors import LayoutError

from .fit import add_scores, fit, passes_over
from .lowrank import LowRank, Start
from .rank import choose_rank, ladder, trial_tokens
from .recorded_rows import LayerData
from .report import LayerReport
from .split import Split
from .targets import Prices, Targets
from .thresholds import ScoreHistogram, choose_threshold
from .window_counter import WindowCounter, WindowUse, count_ones

ORACLE_PASSES = MEASURING_PASSES = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The threshold for one target of false negatives, with its errors and use."""

    threshold: float
    errors: LayerReport
    use: WindowUse
    """Of predicted neurons, over all recorded tokens."""


@dataclass(frozen=True, slots=True)
class TrainedLayer:
    """A predictor with a choice for each round of `Targets.rounds`."""

    predictor: LowRank
    choices: tuple[Choice, ...]
    oracle: WindowUse

    def to_bytes(self) -> bytes:
        """The content of the file that keeps the layer while others are trained."""
        about = {
            "choices": [dataclasses.asdict(choice) for choice in self.choices],
            "oracle": dataclasses.asdict(self.oracle),
            "dtype": self.predictor.dtype,
        }
        raw = np.frombuffer(json.dumps(about).encode(), np.uint8).copy()
        part = self.predictor
        tensors = {"down": part.down, "up": part.up, "bias": part.bias}
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        return save({**tensors, "about": torch.from_numpy(raw)})

    @classmethod
    def from_bytes(cls, content: bytes) -> TrainedLayer:
        """The inverse of `to_bytes`; `LayoutError` for anything else."""
        try:
            tensors = load(content)
            about = json.loads(tensors["about"].numpy().tobytes())
            choices = tuple(
                Choice(one["threshold"], LayerReport(**one["errors"]), WindowUse(**one["use"]))
                for one in about["choices"]
            )
            predictor = LowRank(tensors["down"], tensors["up"], tensors["bias"], about["dtype"])
            return cls(predictor, choices, WindowUse(**about["oracle"]))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise LayoutError(f"not a trained layer: {error}") from error


def layer_tokens(split: Split, d_model: int, d_ffn: int) -> int:
    """Tokens that training a layer sees, at all its stages together."""
    train, everything = len(split.train), split.report.stop
    passes = ORACLE_PASSES + MEASURING_PASSES
    return trial_tokens(train, d_model, d_ffn) + passes_over(train) * train + passes * everything


def train_layer(
    data: LayerData,
    split: Split,
    up_projection: Callable[[], torch.Tensor],
    mean_margin: torch.Tensor,
    bundle_bytes: int,
    targets: Targets,
    seed: int,
    advance: Callable[[int], None],
    dtype: str = "f16",
) -> TrainedLayer:
    """The predictor of a layer. Calls `advance` with tokens seen, in all `layer_tokens`.

    Its matrices are stored in `dtype`; thresholds and errors are those of what is stored.
    """
    train, tune = data.part(split.train), data.part(split.tune)
    oracle, of_tune = _oracle_use(data, split.tune, advance)
    prices = Prices.of(of_tune, bundle_bytes)
    highest = ladder(data.shape.d_model, data.shape.d_ffn)[-1]
    start = Start(up_projection(), train, mean_margin, highest, seed)
    rank = choose_rank(start, train, tune, targets, prices, seed, advance)
    parameters = start.parameters(rank)
    del start
    predictor = fit(parameters, train, tune, targets.false_negatives, seed, advance)
    predictor = dataclasses.replace(predictor, dtype=dtype)
    as_run = predictor.as_run()
    histogram = ScoreHistogram()
    add_scores(histogram, as_run, tune)
    thresholds = [
        choose_threshold(histogram, target, targets.false_positives, prices)
        for target in targets.rounds
    ]
    choices = measure(data, split.report, as_run, thresholds, advance)
    return TrainedLayer(predictor, choices, oracle)


@torch.no_grad()
def measure(
    data: LayerData,
    report: range,
    predictor: LowRank,
    thresholds: Sequence[float],
    advance: Callable[[int], None],
) -> tuple[Choice, ...]:
    """For each threshold the errors on the tokens `report`, and the use of windows over all."""
    counters = [WindowCounter(data.shape.d_ffn) for _ in thresholds]
    errors = [ErrorCounter(data.shape.d_ffn) for _ in thresholds]
    place = 0
    for inputs, active in data.chunks():
        scores = predictor.scores(inputs)
        reported = _overlap(report, place)
        for threshold, counter, error in zip(thresholds, counters, errors, strict=True):
            predicted = np.packbits((scores > threshold).numpy(), axis=1, bitorder="little")
            counter.add(predicted)
            error.add(active[reported], predicted[reported])
        place += len(inputs)
        advance(len(inputs))
    return tuple(
        Choice(threshold, error.report(predictor.rank, threshold), counter.use())
        for threshold, error, counter in zip(thresholds, errors, counters, strict=True)
    )


class ErrorCounter:
    """Errors of predicted against active neurons, both as packed bits."""

    def __init__(self, d_ffn: int) -> None:
        self._d_ffn = d_ffn
        self._total = self._active = self._predicted = self._hits = 0

    def add(self, active: NDArray[np.uint8], predicted: NDArray[np.uint8]) -> None:
        """Tokens [tokens, bytes]."""
        self._total += len(active) * self._d_ffn
        self._active += count_ones(active)
        self._predicted += count_ones(predicted)
        self._hits += count_ones(active & predicted)

    def report(self, rank: int, threshold: float) -> LayerReport:
        """What was counted, as shares."""
        inactive, total = self._total - self._active, max(1, self._total)
        return LayerReport(
            rank=rank,
            threshold=threshold,
            false_negatives=(self._active - self._hits) / max(1, self._active),
            false_positives=(self._predicted - self._hits) / max(1, inactive),
            sparsity=1 - self._active / total,
            active_predicted=self._predicted / total,
        )


def _oracle_use(
    data: LayerData, tune: range, advance: Callable[[int], None]
) -> tuple[WindowUse, WindowUse]:
    """Use of windows by active neurons: over all tokens, and over those for tuning."""
    everything, tuning = WindowCounter(data.shape.d_ffn), WindowCounter(data.shape.d_ffn)
    place = 0
    for inputs, active in data.chunks():
        everything.add(active)
        tuning.add(active[_overlap(tune, place)])
        place += len(inputs)
        advance(len(inputs))
    return everything.use(), tuning.use()


def _overlap(tokens: range, place: int) -> slice:
    """Where a run of tokens lies in a piece that begins at `place`."""
    return slice(max(0, tokens.start - place), max(0, tokens.stop - place))
