"""Predictors judged in the loop: perplexity of the whole model with all layers predicted.

Errors of layers do not simply add up: what one layer leaves out changes the next one's input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from flashllm.errors import UsageError
from flashllm.flash.raw_tensor import RawTensor
from flashllm.progress import Progress

from .files import predictor_tensors
from .layer import TrainedLayer
from .lowrank import LowRank
from .report import Judgement
from .targets import Targets

# Both perplexities are of the same tokens, so few suffice for their ratio.
JUDGED_TOKENS_MAX = 16_384
# Worse than any model; beyond it a float would overflow.
NATS_MAX = 700.0

Mode = Literal["dense", "selected"]
UsePredictors = Callable[[Mapping[str, RawTensor]], None]


class ScoringDecoder(Protocol):
    """The part of a decoder that is needed here: logits of a text with all or selected neurons."""

    def logits_blocks(self, ids: Sequence[int], mode: Mode) -> Iterator[NDArray[np.float32]]:
        """Logits [rows, vocab] after each token, block by block."""


def judge(
    decoder: ScoringDecoder,
    use: UsePredictors,
    layers: Sequence[TrainedLayer],
    tune: Sequence[Sequence[int]],
    report: Sequence[Sequence[int]],
    targets: Targets,
    token_bytes: int,
    progress: Progress,
) -> tuple[int, Judgement]:
    """The loosest round whose perplexity on the contexts `tune` is good enough, and its result.

    The contexts `report` decide nothing. `use` makes the decoder select by predictors. If no round
    is good enough, the one of least perplexity is taken, with a warning. Progress counts
    `token_bytes` per token.
    """

    def score(contexts: Sequence[Sequence[int]], mode: Mode, phase: str) -> float:
        part = bounded(contexts)
        tokens = sum(map(len, part))
        progress.start(f"perplexity {phase}", tokens * token_bytes)
        found = perplexity(decoder, part, mode, lambda n: progress.advance(n * token_bytes))
        progress.finish()
        return found

    dense = score(tune, "dense", "with all neurons")
    ratios: list[float] = []
    for number in range(len(targets.rounds)):
        use(raw_tensors(layers, number))
        phase = f"with predicted neurons, round {number + 1} of at most {len(targets.rounds)}"
        ratios.append(score(tune, "selected", phase) / dense)
        if ratios[-1] <= targets.perplexity_ratio:
            break
    chosen = min(range(len(ratios)), key=lambda number: ratios[number])
    if ratios[-1] <= targets.perplexity_ratio:
        chosen = len(ratios) - 1
    else:
        progress.warn(
            f"perplexity with predicted neurons is {ratios[chosen]:.3f} of that with all, above "
            f"the target of {targets.perplexity_ratio}; a longer calibration text helps most"
        )
    use(raw_tensors(layers, chosen))
    return chosen, Judgement(
        perplexity_dense=score(report, "dense", "with all neurons, for the report"),
        perplexity_predicted=score(report, "selected", "with predicted neurons, for the report"),
        false_negatives_target=targets.false_negatives,
        false_positives_target=targets.false_positives,
        perplexity_ratio_target=targets.perplexity_ratio,
        false_negatives_set=targets.rounds[chosen],
    )


def bounded(contexts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The first contexts of two tokens and more, as many as `JUDGED_TOKENS_MAX` has room for.

    At least one; `UsageError` where there is none.
    """
    usable = [ids for ids in contexts if len(ids) > 1]
    if not usable:
        raise UsageError("the calibration text is cut into single tokens; give longer lines")
    ends = itertools.accumulate(map(len, usable))
    count = sum(end <= JUDGED_TOKENS_MAX for end in ends)
    return usable[: max(1, count)]


def perplexity(
    decoder: ScoringDecoder,
    contexts: Sequence[Sequence[int]],
    mode: Mode,
    advance: Callable[[int], None],
) -> float:
    """Perplexity over the tokens of all contexts, the first of each apart."""
    nats, tokens = 0.0, 0
    for ids in contexts:
        first = 0
        for logits in decoder.logits_blocks(ids, mode):
            following = torch.tensor(ids[first + 1 : first + 1 + len(logits)])
            rows = torch.from_numpy(logits[: len(following)])
            if len(following):
                nats += float(_nats(rows, following))
            tokens += len(following)
            first += len(logits)
        advance(len(ids))
    return math.exp(min(nats / tokens, NATS_MAX))


def raw_tensors(layers: Sequence[TrainedLayer], number: int) -> dict[str, RawTensor]:
    """The tensors of a round, as the runtime would read them."""
    predictors: list[LowRank] = [layer.predictor for layer in layers]
    thresholds = [layer.choices[number].threshold for layer in layers]
    names = {torch.float16: "f16", torch.float32: "f32"}
    found: dict[str, RawTensor] = {}
    for name, tensor in predictor_tensors(predictors, thresholds).items():
        raw, shape = tensor.numpy().reshape(-1).view(np.uint8), tuple(tensor.shape)
        if tensor.dtype in names:
            found[name] = RawTensor(raw, names[tensor.dtype], shape)
        else:
            predictor = predictors[int(name.split(".")[1])]
            matrix = predictor.down if name.endswith(".down") else predictor.up
            found[name] = RawTensor(raw, predictor.dtype, tuple(matrix.shape))
    return found


def _nats(logits: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.double(), following, reduction="sum")
