"""Trains the model on texts that grow longer while it learns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tools.recall.model import POSITIONS, RecallModel
from tools.recall.task import Shape, make_texts

STAGES = (
    Shape(pairs=6, noise=0, asked=12, keys=16),
    Shape(pairs=12, noise=8, asked=24, keys=64),
    Shape(pairs=24, noise=24, asked=40),
    Shape(pairs=80, noise=80, asked=96),
    Shape(pairs=60, noise=240, asked=80),
    Shape(pairs=120, noise=1400, asked=160),
    Shape(pairs=200, noise=3200, asked=256),
    Shape(pairs=400, noise=6800, asked=400),
)
"""The next one begins once almost all answers are right. The last one has 8,401 tokens."""
CALM_STAGE = 4
"""From here on layers become calm."""
TOKENS = 1024
"""Of a step, at least one text."""
GAPS = 4
"""Places of a text behind which positions go on further away."""
RIGHT_ENOUGH = 0.97
RATE = 3e-3
WARM_UP_STEPS = 50
SAVED_EVERY_S = 20


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
    """Ids, positions, and the answers that are to be given, each [texts, tokens].

    Positions have gaps at some places, so that the model meets distances up to its longest context
    in short texts; what stands together stays together.
    """
    ids, answers = make_texts(shape, texts, generator)
    positions = _positions(shape, texts, generator)
    return torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(answers)


def _positions(shape: Shape, texts: int, generator: np.random.Generator) -> NDArray[np.int64]:
    steps = np.ones((texts, shape.tokens), np.int64)
    rooms = generator.integers(0, POSITIONS - shape.tokens, texts)
    rooms[generator.random(texts) < 0.5] = 0
    # Between questions, where a gap parts no pair.
    places = shape.prompt + 2 * generator.integers(0, shape.asked, (texts, GAPS))
    gaps = generator.multinomial(rooms, [1 / GAPS] * GAPS)
    np.add.at(steps, (np.arange(texts)[:, None], places), gaps)
    return np.cumsum(steps, axis=1) - 1


def train(
    seed: int,
    seconds: float,
    report: Callable[[Step], None],
    threads: int = 1,
    steps_max: int = 1 << 30,
    kept: Path | None = None,
    device: str = "cpu",
    tokens: int = TOKENS,
) -> RecallModel:
    """A model trained for so long or so many steps, of so many `tokens` each, on a torch device.

    What `kept` holds of an earlier training goes on, on whatever device that was, and it is written
    there from time to time.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    state = _State.begin(device) if kept is None or not kept.exists() else _State.load(kept, device)
    # Another one for every number of steps, so that training that goes on sees new texts.
    generator = np.random.default_rng((seed, state.number))
    start, first = time.monotonic(), state.number
    saved = start
    while (spent := time.monotonic() - start) < seconds and state.number < first + steps_max:
        shape = STAGES[state.stage]
        batch = make_batch(shape, max(1, tokens // shape.tokens), generator)
        loss = _step(state, batch, max(0.1, 1 - spent / seconds))
        report(Step(state.number, state.stage, loss, state.right, spent))
        state.number += 1
        if state.right > RIGHT_ENOUGH and state.stage + 1 < len(STAGES):
            state.stage, state.right = state.stage + 1, 0.0
        if kept is not None and time.monotonic() - saved > SAVED_EVERY_S:
            state.save(kept)
            saved = time.monotonic()
    if kept is not None:
        state.save(kept)
    return state.model


@dataclass(slots=True)
class _State:
    """A training that may go on."""

    model: RecallModel
    optimizer: torch.optim.Optimizer
    device: str
    number: int = 0
    stage: int = 0
    right: float = 0.0
    """The share of right answers, of the latest steps."""

    @classmethod
    def begin(cls, device: str) -> _State:
        model = RecallModel().to(device)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01
        )
        return cls(model, optimizer, device)

    @classmethod
    def load(cls, path: Path, device: str) -> _State:
        state = cls.begin(device)
        held = torch.load(path, map_location="cpu", weights_only=True)
        state.model.load_state_dict(held["model"])
        state.optimizer.load_state_dict(held["optimizer"])
        state.number, state.stage, state.right = held["number"], held["stage"], held["right"]
        return state

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "number": self.number,
            "stage": self.stage,
            "right": self.right,
        }
        unfinished = path.with_suffix(".unfinished")
        torch.save(held, unfinished)
        unfinished.replace(path)


def _step(state: _State, batch: tuple[Tensor, Tensor, Tensor], rate: float) -> float:
    """One step of training, with `rate` times the usual rate; its loss."""
    ids, positions, answers = batch
    for group in state.optimizer.param_groups:
        group["lr"] = rate * RATE * min(1.0, (state.number + 1) / WARM_UP_STEPS)
    # Answers are at the same places in all texts; a question's logits say its answer.
    blanks = (answers[0] >= 0).nonzero()[:, 0]
    ids, positions, wanted, targets = (
        part.to(state.device) for part in (ids, positions, blanks - 1, answers[:, blanks])
    )
    is_calm = state.stage >= CALM_STAGE
    logits, restlessness = state.model(ids, positions, wanted, is_calm=is_calm)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    state.optimizer.zero_grad()
    (loss + restlessness).backward()
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)
    state.optimizer.step()
    share = float((logits.argmax(-1) == targets).float().mean())
    state.right = 0.9 * state.right + 0.1 * share
    return float(loss.detach())
