"""Trains one layer's predictor on its recording: class-balanced, stopped early on other text."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from .lowrank import LowRank, Parameters
from .recorded_rows import BATCH_TOKENS, LayerData, unpack_active
from .thresholds import ScoreHistogram

STEPS_PER_PASS_MIN = 32
TOKENS_SEEN = 1_500_000
PASSES_MIN, PASSES_MAX = 4, 16
PATIENCE_PASSES = 6
TUNE_TOKENS_MAX = 8_192
LEARNING_RATE = 2e-3
WARMUP_SHARE = 0.05
DENSITY_TOKENS = 4_096
WEIGHT_DECAY = 1e-2
# Beyond this, where a threshold will lie is learned worse (measured on the demo).
POSITIVE_WEIGHT_MAX = 8.0


def passes_over(tokens: int) -> int:
    """Passes over the training tokens: about 1.5 million tokens seen, within 4 and 16 passes."""
    return min(PASSES_MAX, max(PASSES_MIN, round(TOKENS_SEEN / tokens)))


def batch_tokens(tokens: int) -> int:
    """Tokens of one step: 512, fewer where a pass would have less than 32 steps."""
    return max(1, min(BATCH_TOKENS, tokens // STEPS_PER_PASS_MIN))


def fit(
    parameters: Parameters,
    train: LayerData,
    tune: LayerData,
    false_negative_target: float,
    seed: int,
    advance: Callable[[int], None],
    passes: int | None = None,
) -> LowRank:
    """The best predictor of all passes, the start included, judged after every pass on `tune`.

    Judged by false positives at the threshold that meets the target of false negatives. Calls
    `advance` with tokens seen, in all `passes` times those of `train` however soon it stops;
    without `passes`, as many as `passes_over` says.
    """
    passes = passes_over(len(train)) if passes is None else passes
    size = batch_tokens(len(train))
    steps = math.ceil(len(train) / size)
    optimizer = _optimizer(parameters)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: _learning_rate_factor(step, steps * passes)
    )
    positive_weight = _positive_weight(train)
    best, best_cost, best_pass = parameters.rounded(), math.inf, -1
    best_cost = _cost(best, tune, false_negative_target)
    order = np.random.default_rng(seed)
    for number in range(passes):
        shuffled = order.permutation(len(train))
        for start in range(0, len(train), size):
            inputs, active = train.batch(np.sort(shuffled[start : start + size]))
            _step(parameters, inputs, active, positive_weight, optimizer)
            schedule.step()
            advance(len(inputs))
        current = parameters.rounded()
        cost = _cost(current, tune, false_negative_target)
        if cost < best_cost:
            best, best_cost, best_pass = current, cost, number
        elif number - best_pass >= PATIENCE_PASSES:
            advance((passes - 1 - number) * len(train))
            break
    return best


def _optimizer(parameters: Parameters) -> torch.optim.Optimizer:
    for tensor in parameters.tensors():
        tensor.requires_grad_(True)
    decayed = {"params": [parameters.down, parameters.up], "weight_decay": WEIGHT_DECAY}
    biases = {"params": [parameters.bias], "weight_decay": 0.0}
    return torch.optim.AdamW([decayed, biases], lr=LEARNING_RATE, betas=(0.9, 0.98))


def _learning_rate_factor(step: int, steps: int) -> float:
    warmup = max(1.0, WARMUP_SHARE * steps)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warmup) / max(1.0, steps - warmup))))


def _positive_weight(train: LayerData) -> float:
    """The weight of an active neuron in the loss; an inactive one has weight 1."""
    where = np.arange(0, len(train), max(1, len(train) // DENSITY_TOKENS))
    active = sum(
        int(train.batch(where[start : start + BATCH_TOKENS])[1].sum())
        for start in range(0, len(where), BATCH_TOKENS)
    )
    density = active / (len(where) * train.shape.d_ffn)
    return min(POSITIVE_WEIGHT_MAX, max(1.0, (1.0 - density) / max(density, 1e-6)))


def _step(
    parameters: Parameters,
    inputs: torch.Tensor,
    active: torch.Tensor,
    positive_weight: float,
    optimizer: torch.optim.Optimizer,
) -> None:
    set_gradients(parameters, inputs, active, positive_weight)
    optimizer.step()


@torch.no_grad()
def set_gradients(
    parameters: Parameters, inputs: torch.Tensor, active: torch.Tensor, positive_weight: float
) -> None:
    """Gradients of the mean logistic loss in which an active neuron weighs `positive_weight`.

    By hand, since autograd's passes over [tokens, d_ffn] would take most of the time.
    """
    down, up, bias = parameters.tensors()
    hidden = inputs @ down.T  # [tokens, rank]
    slope = torch.addmm(bias, hidden, up.T).sigmoid_()  # [tokens, d_ffn]
    slope[active] = (slope[active] - 1.0) * positive_weight
    slope /= slope.numel()
    up.grad = slope.T @ hidden
    bias.grad = slope.sum(0)
    down.grad = (slope @ up).T @ inputs


def _cost(predictor: LowRank, tune: LayerData, false_negative_target: float) -> float:
    """False positives at the target of false negatives, on a bounded part of `tune`."""
    histogram = ScoreHistogram()
    add_scores(histogram, predictor, tune.part(range(min(len(tune), TUNE_TOKENS_MAX))))
    return histogram.false_positives_at(false_negative_target)


@torch.no_grad()
def add_scores(histogram: ScoreHistogram, predictor: LowRank, data: LayerData) -> None:
    """Count the scores of all tokens of `data`."""
    for inputs, bits in data.chunks():
        histogram.add(predictor.scores(inputs), unpack_active(bits, data.shape.d_ffn))
