"""Trains the model on texts that grow longer while it learns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tools.recall.model import POSITIONS, RecallModel
from tools.recall.task import Shape, make_text

STAGES = (
    Shape(pairs=6, noise=0, asked=12, keys=16),
    Shape(pairs=12, noise=8, asked=24, keys=64),
    Shape(pairs=24, noise=24, asked=40),
    Shape(pairs=80, noise=80, asked=96),
    Shape(pairs=60, noise=240, asked=80),
)
"""The next one begins once almost all answers are right; in the last one layers become calm."""
TOKENS = 2048
"""Of a step."""
RIGHT_ENOUGH = 0.97
RATE = 3e-3
WARM_UP_STEPS = 50


@dataclass(frozen=True, slots=True)
class Step:
    """What a step of training came to."""

    number: int
    stage: int
    loss: float
    right: float
    seconds: float


def make_batch(
    shape: Shape, texts: int, generator: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, positions, and which tokens are answers, each [texts, tokens].

    Positions have gaps at some places, so that the model meets distances up to its longest context
    in short texts; what stands together stays together.
    """
    made = [make_text(shape, generator) for _ in range(texts)]
    ids = np.stack([ids for ids, _ in made])
    answers = np.stack([is_answer for _, is_answer in made])
    return (
        torch.from_numpy(ids),
        torch.from_numpy(_positions(shape, ids, generator)),
        torch.from_numpy(answers),
    )


def _positions(
    shape: Shape, ids: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    texts, tokens = ids.shape
    steps = np.ones((texts, tokens), np.int64)
    for row in steps:
        room = int(generator.integers(0, POSITIONS - tokens)) if generator.random() < 0.5 else 0
        # Between questions, where a gap parts no pair.
        places = shape.prompt + 2 * generator.integers(0, shape.asked, 4)
        for place, gap in zip(places, generator.multinomial(room, [0.25] * 4), strict=True):
            row[place] += gap
    return np.cumsum(steps, axis=1) - 1


def train(
    seed: int,
    seconds: float,
    report: Callable[[Step], None],
    threads: int = 1,
    steps_max: int = 1 << 30,
    begun: RecallModel | None = None,
) -> RecallModel:
    """A model trained for so long or so many steps; one that was `begun` goes on."""
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    generator = np.random.default_rng(seed)
    model = begun or RecallModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    start, number, stage, right = time.monotonic(), 0, 0, 0.0
    if begun is not None:
        stage = len(STAGES) - 1
    while (spent := time.monotonic() - start) < seconds and number < steps_max:
        shape = STAGES[stage]
        ids, positions, answers = make_batch(shape, max(1, TOKENS // shape.tokens), generator)
        rate = RATE * min(1.0, (number + 1) / WARM_UP_STEPS) * max(0.1, 1 - spent / seconds)
        for group in optimizer.param_groups:
            group["lr"] = rate
        wanted = answers[:, 1:]
        found, restlessness = model(ids, positions)
        logits, targets = found[:, :-1][wanted], ids[:, 1:][wanted]
        loss = functional.cross_entropy(logits, targets)
        if stage + 1 == len(STAGES):
            loss = loss + restlessness
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        share = float((logits.argmax(-1) == targets).float().mean())
        right = 0.9 * right + 0.1 * share
        report(Step(number, stage, float(loss.detach()), right, spent))
        number += 1
        if right > RIGHT_ENOUGH and stage + 1 < len(STAGES):
            stage, right = stage + 1, 0.0
    return model
