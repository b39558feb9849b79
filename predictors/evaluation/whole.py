"""Computes a text in every mode, and measures everything on the way.

Each passage is computed dense, then with the neurons that are really nonzero, then with those that
the selector selects; its errors affect all later layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.large_arrays import Floats
from flashllm.progress import Progress

from ..calibration_texts import ContextLimits
from .friends import FriendMeter, sample_size
from .likelihood import DensePassage, LikelihoodMeter
from .model import Decoder, EvaluatedModel
from .selection import SelectionMeter
from .texts import Passage, Text, TextSettings, read_passages
from .windows import WindowMeter, windows_json


def evaluate_text(
    model: EvaluatedModel, path: Path, settings: TextSettings, progress: Progress
) -> dict[str, Any]:
    """Everything about a model on a text, as plain values.

    Raises `UsageError` for a text that cannot be used, `ReadFailed` where the model cannot be read.
    """
    spec, decoder = model.decoder.spec, model.decoder
    limits = ContextLimits(spec.vocab_size, decoder.context_tokens, settings.tokens, spec.bos_id)
    text = read_passages(path, model.tokenizer, limits, settings, progress)
    modes = model.modes
    likelihoods = {name: LikelihoodMeter() for name in modes}
    windows = {
        name: _Windows(decoder) for name, mode in modes.items() if mode not in ("dense", "decoded")
    }
    dense = _DenseTap(decoder, model.selector is not None, settings.seed) if windows else None
    progress.start("evaluating the text", text.tokens * len(modes))
    for passage in text.passages:
        reference = DensePassage(spec.vocab_size)
        for name, mode in modes.items():
            tap, chosen = (dense, None) if name == "dense" else (None, windows.get(name))
            for hook in (tap, chosen):
                if hook is not None:
                    hook.begin(passage)
            blocks = decoder.logits_blocks(passage.ids, mode=mode, tap=tap, chosen=chosen)
            count_blocks(blocks, passage, likelihoods[name], reference)
            progress.advance(len(passage.ids))
    progress.finish()
    report = _about(text, settings, likelihoods)
    if dense is not None:
        report |= dense.to_json()
        report["windows"] = {
            name: windows_json(found.meters, spec.d_ffn, model.stride_bytes)
            for name, found in windows.items()
        }
    return report


def count_blocks(
    blocks: Iterator[NDArray[np.float32]],
    passage: Passage,
    meter: LikelihoodMeter,
    reference: DensePassage,
) -> None:
    """Row i speaks of token i + 1; the last row of a passage of none."""
    ids = np.asarray(passage.ids, np.int64)
    done = 0
    for number, logits in enumerate(blocks):
        rows = np.arange(done, min(done + len(logits), len(ids) - 1))
        rows = rows[passage.counted[rows + 1]]
        meter.add(logits[rows - done], ids[rows + 1], reference, number)
        done += len(logits)


def _about(
    text: Text, settings: TextSettings, likelihoods: dict[str, LikelihoodMeter]
) -> dict[str, Any]:
    dense = likelihoods["dense"]
    return {
        "file": str(text.file.path),
        "sha256": text.file.sha256,
        "passages": len(text.passages),
        "tokens": text.tokens,
        "tokens_counted": text.counted,
        "tokens_scored": dense.tokens,
        "divergence_tokens": dense.divergence_tokens,
        "settings": settings.to_json(),
        "modes": {name: meter.to_json() for name, meter in likelihoods.items()},
    }


class _Counted:
    """Which tokens of the running passage count, as its layers come by chunk by chunk."""

    def __init__(self, n_layers: int) -> None:
        self._done = [0] * n_layers
        self._counted: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def begin(self, passage: Passage) -> None:
        """The passage that comes next."""
        self._done = [0] * len(self._done)
        self._counted = passage.counted

    def next(self, layer: int, tokens: int) -> NDArray[np.bool_]:
        """For the next tokens of a layer."""
        first = self._done[layer]
        self._done[layer] = first + tokens
        return self._counted[first : first + tokens]


class _DenseTap:
    """Sees the dense run's inputs and margins: errors of the selector, margins, friends."""

    def __init__(self, decoder: Decoder, has_selector: bool, seed: int) -> None:
        spec = decoder.spec
        self._decoder = decoder
        self._has_selector = has_selector
        self._position = _Counted(spec.n_layers)
        self._selection = [SelectionMeter() for _ in range(spec.n_layers)]
        sample = sample_size(spec.n_layers, spec.d_ffn)
        self._friends = [
            FriendMeter(spec.d_ffn, sample, (seed, layer)) for layer in range(spec.n_layers)
        ]

    def begin(self, passage: Passage) -> None:
        """The passage that comes next."""
        self._position.begin(passage)

    def __call__(self, layer: int, ffn_input: Floats, margin: Floats) -> None:
        counted = self._position.next(layer, len(margin))
        if not counted.any():
            return
        margins = margin[counted]
        chosen = None
        if self._has_selector:
            inputs = ffn_input[counted]
            chosen = np.zeros(margins.shape, np.bool_)
            for flags, x in zip(chosen, inputs, strict=True):
                flags[self._decoder.choose(layer, x)] = True
        self._selection[layer].add(margins, chosen)
        self._friends[layer].add(margins > 0)

    def to_json(self) -> dict[str, Any]:
        """Layer by layer, and the mean of the layers."""
        layers = [meter.to_json(self._has_selector) for meter in self._selection]
        margins = [
            {
                "active": meter.margins.to_json(),
                "false_negatives": meter.missed_margins.to_json() if self._has_selector else None,
            }
            for meter in self._selection
        ]
        return {
            "layers": layers,
            "mean": {name: float(np.mean([row[name] for row in layers])) for name in layers[0]},
            "margins": margins,
            "friends": [meter.to_json() for meter in self._friends],
        }


class _Windows:
    """Sees what each token of a selected run uses."""

    def __init__(self, decoder: Decoder) -> None:
        spec = decoder.spec
        self._position = _Counted(spec.n_layers)
        self.meters = [WindowMeter(spec.d_ffn) for _ in range(spec.n_layers)]

    def begin(self, passage: Passage) -> None:
        """The passage that comes next."""
        self._position.begin(passage)

    def __call__(self, layer: int, used: Sequence[NDArray[np.int32]]) -> None:
        self.meters[layer].add_all(used, self._position.next(layer, len(used)))
