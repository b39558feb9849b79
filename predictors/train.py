"""From a converted model and a text to predictors: record, fit, calibrate, measure, write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from flashllm.errors import CannotCreate, Interrupted
from flashllm.spec import ModelSpec

from .activity import WindowUse, window_use
from .calibrate import FALSE_NEGATIVE_TARGET, ScoreHistogram, choose_thresholds
from .calibration import Context, ContextLimits, find_calibration, read_contexts
from .files import write_predictors
from .fit import BATCH_TOKENS, LayerData, add_scores, fit, passes_over
from .lowrank import LowRank, initial_parameters, rank_of_layer
from .progress import Progress, SilentProgress
from .record import (
    Recording,
    Shape,
    Split,
    TappedDecoder,
    record_contexts,
    split_contexts,
)
from .report import LayerReport, Report
from .weights import UpProjections

TOKENS_MAX = 300_000
# A layer of about a minute's work: below it, threads gain little, and where other programs keep
# the cores busy they wait for each other (measured: two took eight times as long as one).
OPERATIONS_OF_ONE_THREAD = 3e12
ONES_OF_BYTE = np.array([number.bit_count() for number in range(256)], np.uint8)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished recording with the split of its tokens."""

    recording: Recording
    split: Split

    def layer(self, layer: int) -> LayerData:
        """What was recorded of a layer."""
        recording = self.recording
        return LayerData(recording.inputs(layer), recording.active(layer), recording.shape.d_ffn)


def train_predictors(
    directory: Path,
    output: Path,
    calibration: Path | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    *,
    tokens_max: int = TOKENS_MAX,
    false_negative_target: float = FALSE_NEGATIVE_TARGET,
) -> Report:
    """Train the predictors of the converted model in `directory` and write them to `output`.

    The same model, text and seed give the same bytes on the same machine. At most `tokens_max`
    tokens of the text are used. Raises `UsageError` for a text that will not do,
    `NotEnoughSpace`, and `Interrupted` on Ctrl-C; nothing is left in `output` then.
    """
    # Above the runtime: what only wants the types or the report should not load it.
    from flashllm.engine import open_decoder
    from flashllm.tokenizer import load_tokenizer

    progress = progress or SilentProgress()
    text = find_calibration(directory, calibration)
    try:
        _make_directory(output)
        with closing(UpProjections(directory)) as projections:
            with open_decoder(directory) as decoder:
                tokenizer, spec = load_tokenizer(directory), decoder.spec
                bos_id = tokenizer.bos_id if tokenizer is not None else spec.bos_id
                limits = ContextLimits(spec.vocab_size, decoder.context, tokens_max, bos_id)
                contexts = read_contexts(text, tokenizer, limits, seed, progress)
                recorded = record(decoder, spec, contexts, output, progress)
            del decoder  # its weights would only take memory from training
            with closing(recorded.recording), _threads(recorded):
                predictors, thresholds, report = train_on(
                    recorded, projections.layer, progress, seed, false_negative_target
                )
        write_predictors(output, predictors, thresholds, report)
    except KeyboardInterrupt:
        raise Interrupted("training of predictors stopped; nothing was kept") from None
    return report


def record(
    decoder: TappedDecoder,
    spec: ModelSpec,
    contexts: Sequence[Context],
    directory: Path,
    progress: Progress,
) -> Recorded:
    """Record all contexts on the disk of `directory`; close the recording after use."""
    lengths = [len(context) for context in contexts]
    split = split_contexts(lengths)
    shape = Shape(spec.n_layers, spec.d_model, spec.d_ffn, sum(lengths))
    recording = Recording(directory, shape, len(split.train))
    try:
        record_contexts(decoder, contexts, recording, progress)
    except BaseException:
        recording.close()
        raise
    return Recorded(recording, split)


def train_on(
    recorded: Recorded,
    up_projection: Callable[[int], torch.Tensor],
    progress: Progress,
    seed: int = 0,
    false_negative_target: float = FALSE_NEGATIVE_TARGET,
) -> tuple[list[LowRank], list[float], Report]:
    """Predictors, thresholds and report from a recording and the true up-projections."""
    shape = recorded.recording.shape
    predictors: list[LowRank] = []
    histograms: list[ScoreHistogram] = []
    seen = passes_over(len(recorded.split.train)) * len(recorded.split.train)
    progress.start("training predictors", shape.n_layers * seen * shape.token_bytes)
    for layer in range(shape.n_layers):
        data = recorded.layer(layer)
        tune = data.part(recorded.split.tune)
        predictors.append(
            fit(
                initial_parameters(
                    up_projection(layer),
                    data.part(recorded.split.train).inputs,
                    recorded.recording.mean_pre_activation(layer),
                    rank_of_layer(shape.n_layers, shape.d_model, layer),
                    seed + layer,
                ),
                data.part(recorded.split.train),
                tune,
                false_negative_target,
                seed + layer,
                lambda tokens: progress.advance(tokens * shape.token_bytes),
            )
        )
        histograms.append(ScoreHistogram())
        add_scores(histograms[-1], predictors[-1], tune)
    progress.finish()
    thresholds = choose_thresholds(histograms, false_negative_target)
    return predictors, thresholds, measure(recorded, predictors, thresholds, progress)


def measure(
    recorded: Recorded,
    predictors: Sequence[LowRank],
    thresholds: Sequence[float],
    progress: Progress,
) -> Report:
    """Errors on the tokens kept for reporting, and the use of windows over all tokens."""
    shape = recorded.recording.shape
    layers: list[LayerReport] = []
    uses: tuple[list[WindowUse], list[WindowUse]] = ([], [])
    progress.start("measuring predictors", shape.bytes_needed)
    for layer, (predictor, threshold) in enumerate(zip(predictors, thresholds, strict=True)):
        data = recorded.layer(layer)
        predicted = _predicted_bits(data, predictor, threshold)
        part = recorded.split.report
        layers.append(
            layer_report(
                data.active[part.start : part.stop],
                predicted[part.start : part.stop],
                shape.d_ffn,
                predictor.rank,
                threshold,
            )
        )
        uses[0].append(window_use(predicted, shape.d_ffn))
        uses[1].append(window_use(data.active, shape.d_ffn))
        progress.advance(shape.tokens * shape.token_bytes)
    progress.finish()
    return Report(
        shape.tokens, len(recorded.split.report), tuple(layers), tuple(uses[0]), tuple(uses[1])
    )


def layer_report(
    active: NDArray[np.uint8],
    predicted: NDArray[np.uint8],
    d_ffn: int,
    rank: int,
    threshold: float,
) -> LayerReport:
    """Errors of packed bits `predicted` against packed bits `active`, both [tokens, bytes]."""
    total = len(active) * d_ffn
    actives, predicteds, hits = (
        int(ONES_OF_BYTE[bits].sum(dtype=np.int64))
        for bits in (active, predicted, active & predicted)
    )
    return LayerReport(
        rank=rank,
        threshold=threshold,
        false_negatives=(actives - hits) / max(1, actives),
        false_positives=(predicteds - hits) / max(1, total - actives),
        sparsity=1 - actives / total,
        active_predicted=predicteds / total,
    )


@torch.no_grad()
def _predicted_bits(data: LayerData, predictor: LowRank, threshold: float) -> NDArray[np.uint8]:
    """Packed bits [tokens, bytes] of the neurons predicted to be active."""
    bits = np.empty(data.active.shape, np.uint8)
    for start in range(0, len(data), BATCH_TOKENS):
        where = slice(start, start + BATCH_TOKENS)
        scores = predictor.scores(torch.from_numpy(data.inputs[where].astype(np.float32)))
        bits[where] = np.packbits((scores > threshold).numpy(), axis=1, bitorder="little")
    return bits


def _make_directory(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotCreate(f"{output}: cannot write here: {error.strerror}") from error


def operations_of_layer(shape: Shape, train_tokens: int) -> float:
    """Multiplications and additions of training one layer of the usual rank."""
    rank = rank_of_layer(shape.n_layers, shape.d_model, 0)
    seen = train_tokens * passes_over(train_tokens)
    return 6.0 * rank * (shape.d_model + shape.d_ffn) * seen


@contextmanager
def _threads(recorded: Recorded) -> Iterator[None]:
    """One thread where there is little to do, for the time of training."""
    before = torch.get_num_threads()
    if operations_of_layer(recorded.recording.shape, len(recorded.split.train)) < (
        OPERATIONS_OF_ONE_THREAD
    ):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
