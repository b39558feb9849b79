"""Learns from a text how a model's neurons should be ordered on flash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import Interrupted, UsageError
from flashllm.flash.file_names import PREDICTORS_FILE
from flashllm.flash.manifest import read_manifest
from flashllm.flash.neuron_order import NeuronOrder
from flashllm.options import Select
from flashllm.progress import Progress, SilentProgress
from flashllm.spec import ModelSpec

from .calibration_texts import TOKENS_MIN, Context, find_calibration
from .coactivation import Bits, loads, order_of
from .model import ConvertedModel

TOKENS_MAX = 2_048
"""On the demo, from so many, reading should take 11 % less time; from 8,000 it is 13 %."""
BITS_BYTES_MAX = 256 << 20
"""Of what is recorded of all layers; with more layers fewer tokens are."""


@dataclass(frozen=True, slots=True)
class UseTrace:
    """Which neurons each token of a text used: of each layer packed bits [tokens, bytes]."""

    layers: tuple[Bits, ...]
    starts: tuple[int, ...]
    """Where each context begins."""
    d_ffn: int

    @property
    def tokens(self) -> int:
        """Tokens of all contexts."""
        return len(self.layers[0])

    def used(self, layer: int) -> NDArray[np.bool_]:
        """What a layer's tokens used, [tokens, d_ffn]."""
        bits = np.unpackbits(self.layers[layer], axis=1, count=self.d_ffn, bitorder="little")
        return bits.view(np.bool_)


def learn_order(
    directory: Path,
    calibration: Path | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> NeuronOrder:
    """The best order of a converted model's neurons for a text.

    Counts the neurons that the model's selector selects, since those are read. `UsageError` for an
    unsuitable text or a model that always reads all neurons; `Interrupted`.
    """
    progress = progress or SilentProgress()
    trace = record_use(directory, find_calibration(directory, calibration), progress, seed)
    n_layers = len(trace.layers)
    neurons = np.empty((n_layers, trace.d_ffn), dtype=np.int32)
    rates = np.empty((n_layers, trace.d_ffn), dtype=np.float32)
    try:
        progress.start("ordering neurons", sum(bits.nbytes for bits in trace.layers))
        for layer in range(n_layers):
            used = trace.used(layer)
            by_id = used.mean(axis=0, dtype=np.float64).astype(np.float32)
            neurons[layer] = order_of(by_id, loads(used, trace.starts))
            rates[layer] = by_id[neurons[layer]]
            progress.advance(trace.layers[layer].nbytes)
        progress.finish()
    except KeyboardInterrupt:
        raise _interrupted() from None
    return NeuronOrder(neurons, rates)


def record_use(
    directory: Path,
    text: Path,
    progress: Progress,
    seed: int = 0,
    tokens_max: int | None = None,
) -> UseTrace:
    """The neurons that a converted model's selector selects for each token of a text.

    Each token computes the selected neurons only, so that omissions affect later layers.
    `tokens_max` is as many as fit in BITS_BYTES_MAX without it. Errors as of `learn_order`.
    """
    model = ConvertedModel(directory)
    select = selector_of(directory, model.spec)
    if tokens_max is None:
        token_bytes = model.spec.n_layers * (-(-model.spec.d_ffn // 8))
        tokens_max = max(TOKENS_MIN, min(TOKENS_MAX, BITS_BYTES_MAX // token_bytes))
    try:
        # So few tokens are enough here: nothing is to be warned of.
        contexts = model.contexts(text, tokens_max, seed, SilentProgress())
        return _recorded(model, contexts, select, progress)
    except KeyboardInterrupt:
        raise _interrupted() from None


def selector_of(directory: Path, spec: ModelSpec) -> Select:
    """By what the model's neurons are chosen; `UsageError` where all of them always are."""
    if PREDICTORS_FILE in read_manifest(directory).files:
        return "predicted"
    if spec.sparse and spec.gate == "resident":
        return "gate"
    if spec.experts is not None:
        raise UsageError(f"{directory}: experts are read one by one, wherever they lie")
    raise UsageError(
        f"{directory}: nothing chooses among its neurons, so all are read whatever their order; "
        + ("give it --predictors" if spec.sparse else f"{spec.activation} is zero for none")
    )


def _recorded(
    model: ConvertedModel, contexts: Sequence[Context], select: Select, progress: Progress
) -> UseTrace:
    spec = model.spec
    layers: list[list[Bits]] = [[] for _ in range(spec.n_layers)]

    def chosen(layer: int, named: Sequence[NDArray[np.int32]]) -> None:
        flags = np.zeros((len(named), spec.d_ffn), dtype=np.bool_)
        for row, ids in zip(flags, named, strict=True):
            row[ids] = True
        layers[layer].append(np.packbits(flags, axis=1, bitorder="little"))

    token_bytes = spec.n_layers * (-(-spec.d_ffn // 8))
    progress.start("recording which neurons are read", token_bytes * sum(map(len, contexts)))
    with model.open(contexts, select) as decoder:
        for ids in contexts:
            for logits in decoder.logits_blocks(ids, "selected", chosen=chosen):
                progress.advance(token_bytes * len(logits))
    progress.finish()
    starts = np.cumsum([0, *map(len, contexts[:-1])])
    return UseTrace(tuple(map(np.concatenate, layers)), tuple(starts.tolist()), spec.d_ffn)


def _interrupted() -> Interrupted:
    return Interrupted("ordering stopped; nothing was written, run the same command to start again")
