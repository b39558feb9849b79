"""Chooses the rank of a layer's predictor: as high as the targets require, and no higher.

Ranks of a ladder are tried from below, each with a start by regression and one short pass of
training, judged on the tokens held out for tuning. The first that meets the targets is taken:
memory is what users of such models lack. Where none does, a step up the ladder costs memory and
saves false positives, and both are weighed in bytes of flash a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .fit import add_scores, fit
from .lowrank import Start
from .recorded_rows import LayerData
from .targets import Prices, Targets
from .thresholds import ScoreHistogram

RANKS = (4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# Wide layers need no trial of the least ranks: with 256 inputs, 32 is the first.
WIDTH_OF_LEAST = 8
LEAST_MAX = 32
TRIAL_TOKENS = 32_768
VALUE_BYTES = 2


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a rank's short training."""

    rank: int
    false_positives: float
    cost_bytes: float
    """Of false positives and of the memory of the predictor, in bytes of flash a token."""


def ladder(d_model: int, d_ffn: int) -> list[int]:
    """Ranks to try, ascending; at the last a predictor is as large as the up-projection itself."""
    highest = max(1, d_model * d_ffn // (d_model + d_ffn))
    least = min(LEAST_MAX, max(1, d_model // WIDTH_OF_LEAST))
    ranks = [rank for rank in RANKS if least <= rank < highest]
    return [*ranks, highest] if highest <= RANKS[-1] else ranks


def trial_tokens(train_tokens: int, d_model: int, d_ffn: int) -> int:
    """Tokens that all trials of a layer see at most."""
    return len(ladder(d_model, d_ffn)) * min(train_tokens, TRIAL_TOKENS)


def choose_rank(
    start: Start,
    train: LayerData,
    tune: LayerData,
    targets: Targets,
    prices: Prices,
    seed: int,
    advance: Callable[[int], None],
) -> int:
    """The lowest rank that meets the targets, or the cheapest of all where none does.

    Calls `advance` with tokens seen, in all `trial_tokens`, those of trials not needed included.
    """
    shape, some = train.shape, train.part(range(min(len(train), TRIAL_TOKENS)))
    ranks = ladder(shape.d_model, shape.d_ffn)
    trials: list[Trial] = []
    for number, rank in enumerate(ranks):
        predictor = fit(
            start.parameters(rank), some, tune, targets.false_negatives, seed, advance, passes=1
        )
        histogram = ScoreHistogram()
        add_scores(histogram, predictor, tune)
        edge = histogram.highest(targets.false_negatives)
        loads = int(histogram.false_loads()[edge]) / len(tune)
        nbytes = rank * (shape.d_model + shape.d_ffn) * VALUE_BYTES
        cost = loads * prices.false_load + nbytes * prices.dram
        trials.append(Trial(rank, float(histogram.false_positives()[edge]), cost))
        if _met(trials[-1], targets):
            advance((len(ranks) - 1 - number) * len(some))
            break
    return best_of(trials, targets)


def best_of(trials: list[Trial], targets: Targets) -> int:
    """The lowest rank that meets the targets; where none does, the one that costs least."""
    meeting = [trial.rank for trial in trials if _met(trial, targets)]
    if meeting:
        return min(meeting)
    return min(trials, key=lambda trial: (trial.cost_bytes, trial.rank)).rank


def _met(trial: Trial, targets: Targets) -> bool:
    return trial.false_positives <= targets.false_positives
