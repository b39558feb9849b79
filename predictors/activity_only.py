"""Measures a model's activity on a text without training: for exact selectors and imports.

Nothing is recorded; only counts and the last few tokens are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import Interrupted, UsageError
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.store import Store
from flashllm.large_arrays import Floats
from flashllm.progress import Progress, SilentProgress

from .calibration_texts import Context, find_calibration
from .files import write_activity
from .layer import ErrorCounter
from .model import ConvertedModel
from .record import Tap, TappedDecoder
from .report import Activity, Report
from .window_counter import WindowCounter, count_ones

TOKENS_MAX = 50_000


def measure_activity(
    directory: Path,
    calibration: Path | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    *,
    output: Path | None = None,
    tokens_max: int = TOKENS_MAX,
) -> Activity:
    """Writes a model's sparsity on a text, and the use of windows, to `activity.json`.

    For a model whose selector is exact. The file goes to `output`, or to `directory`. `UsageError`
    for an unsuitable text or a model that is never sparse; `Interrupted`.
    """
    progress = progress or SilentProgress()
    model = ConvertedModel(directory)
    _check_sparse(directory, model)
    text = find_calibration(directory, calibration)
    n_layers, d_ffn = model.spec.n_layers, model.spec.d_ffn
    counters = [WindowCounter(d_ffn) for _ in range(n_layers)]
    used = [0] * n_layers
    # Where a gate decides, neurons are not zero if it is open.
    gate_reads_more = model.spec.gate == "resident" and model.spec.activation == "drelu"
    of_gate = [WindowCounter(d_ffn) for _ in range(n_layers)] if gate_reads_more else []
    try:
        contexts = model.contexts(text, tokens_max, seed, progress)
        with model.open(contexts) as decoder:

            def tap(layer: int, inputs: Floats, margin: Floats) -> None:
                bits = _packed(margin > 0)
                counters[layer].add(bits)
                used[layer] += count_ones(bits)
                if gate_reads_more:
                    of_gate[layer].add(_packed(decoder.gate_opens(layer, inputs)))

            _run(decoder, contexts, tap, model, progress)
    except KeyboardInterrupt:
        raise _interrupted() from None
    tokens = sum(map(len, contexts))
    activity = Activity(
        tokens,
        tuple(1 - count / (tokens * d_ffn) for count in used),
        tuple(counter.use() for counter in counters),
        tuple(counter.use() for counter in of_gate),
    )
    write_activity(output or directory, activity)
    return activity


def measure_predictors(
    directory: Path,
    calibration: Path | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    *,
    output: Path | None = None,
    tokens_max: int = TOKENS_MAX,
) -> Report:
    """Writes the errors of a model's predictors on a text to `activity.json`.

    For imported predictors; the input of each layer is that of the dense model. The file goes to
    `output`, or to `directory`. Raises what `measure_activity` raises.
    """
    progress = progress or SilentProgress()
    model = ConvertedModel(directory)
    _check_sparse(directory, model)
    text = find_calibration(directory, calibration)
    n_layers, d_ffn = model.spec.n_layers, model.spec.d_ffn
    predicted_use = [WindowCounter(d_ffn) for _ in range(n_layers)]
    oracle_use = [WindowCounter(d_ffn) for _ in range(n_layers)]
    errors = [ErrorCounter(d_ffn) for _ in range(n_layers)]
    try:
        contexts = model.contexts(text, tokens_max, seed, progress)
        with model.open(contexts, "predicted") as decoder:

            def tap(layer: int, inputs: Floats, margin: Floats) -> None:
                flags = np.zeros(margin.shape, np.bool_)
                for row, x in zip(flags, np.ascontiguousarray(inputs), strict=True):
                    row[decoder.choose(layer, x)] = True
                predicted = np.packbits(flags, axis=1, bitorder="little")
                active = _packed(margin > 0)
                predicted_use[layer].add(predicted)
                oracle_use[layer].add(active)
                errors[layer].add(active, predicted)

            _run(decoder, contexts, tap, model, progress)
    except KeyboardInterrupt:
        raise _interrupted() from None
    tokens = sum(map(len, contexts))
    about = _ranks_and_thresholds(directory, n_layers)
    report = Report(
        tokens,
        tokens,
        tuple(error.report(*pair) for error, pair in zip(errors, about, strict=True)),
        tuple(counter.use() for counter in predicted_use),
        tuple(counter.use() for counter in oracle_use),
    )
    write_activity(output or directory, report)
    return report


def _packed(flags: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Bits [tokens, bytes] of booleans [tokens, d_ffn]."""
    return np.packbits(flags, axis=1, bitorder="little")


def _run(
    decoder: TappedDecoder,
    contexts: Sequence[Context],
    tap: Tap,
    model: ConvertedModel,
    progress: Progress,
) -> None:
    """Computes every context with all neurons."""
    token_bytes = model.spec.n_layers * 2 * model.spec.d_model
    progress.start("measuring activity", sum(map(len, contexts)) * token_bytes)
    for ids in contexts:
        decoder.prefill(ids, tap=tap)
        progress.advance(len(ids) * token_bytes)
    progress.finish()


def _ranks_and_thresholds(directory: Path, n_layers: int) -> list[tuple[int, float]]:
    with Store(directory) as store:
        tensors: dict[str, RawTensor] | None = store.load_predictors(direct=True)
    assert tensors is not None, "opened with them"
    return [
        (
            tensors[f"layers.{layer}.down"].shape[0],
            float(tensors[f"layers.{layer}.threshold"].floats()[0]),
        )
        for layer in range(n_layers)
    ]


def _check_sparse(directory: Path, model: ConvertedModel) -> None:
    if model.spec.experts is not None:
        raise UsageError(f"{directory}: a token needs the same number of experts always")
    if not model.spec.sparse:
        raise UsageError(
            f"{directory}: its activation is {model.spec.activation}, which is zero for no neuron; "
            "there is no activity to measure, it runs with --select all"
        )


def _interrupted() -> Interrupted:
    return Interrupted(
        "measuring stopped; nothing was written, run the same command to start again"
    )
