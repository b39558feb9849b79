"""Trains a demo model on the processor: `python -m tools.demo.train`.

Seeded and resumable: batches follow from the seed and the step, everything else is in the
checkpoint. Of the dense kind an L1 penalty on the ReLU outputs is steered so that sparsity rises
along a line to its goal; of the kind with experts a loss keeps them evenly used.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .batches import Batch, Sampler
from .corpus import load_material
from .export import export
from .kinds import KINDS, AnyShape, kind_of
from .model import Decoder
from .optimizer import make_optimizers
from .tokenizer import load_tokenizer, training_encoder

KNOWN_LOSS = 0.05
"""Nats a token below which a fact counts as known in the log."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the result, beside the corpus and the tokenizer."""

    steps: int = 4000
    batch_tokens: int = 8192
    row_tokens: int = 128
    long_row_tokens: int = 512
    long_rows_from: float = 0.88  # fraction of the steps
    lr: float = 2e-3
    decay_from: float = 0.5
    warmup_steps: int = 100
    weight_decay: float = 0.0
    muon: bool = True
    sparsity_from: float = 0.3
    sparsity_to: float = 0.75
    sparsity_goal: float = 0.97
    balance: float = 0.01  # weight of the loss that keeps experts evenly used
    seed: int = 11

    def lr_at(self, step: int) -> float:
        """Warm-up, level, then straight down to 0; `steps` may change until the way down."""
        warmup = (step + 1) / self.warmup_steps
        decay = (self.steps - step) / (self.steps * (1 - self.decay_from))
        return self.lr * min(1.0, warmup, decay)

    def row_tokens_at(self, step: int) -> int:
        """Length of the rows, which are longest at the end."""
        return self.long_row_tokens if step >= self.long_rows_from * self.steps else self.row_tokens


@dataclass(slots=True)
class SparsityControl:
    """Steers the L1 coefficient: up while too many neurons are active, down otherwise."""

    coefficient: float = 0.0
    begin: float = 0.0

    def update(self, recipe: Recipe, step: int, sparsity: float) -> None:
        """Looks at the sparsity of one step and steers."""
        progress = step / recipe.steps
        if progress < recipe.sparsity_from:
            self.begin = sparsity
            return
        span = recipe.sparsity_to - recipe.sparsity_from
        fraction = min(1.0, (progress - recipe.sparsity_from) / span)
        goal = self.begin + fraction * (recipe.sparsity_goal - self.begin)
        rate = 0.02 if sparsity < goal else -0.02
        self.coefficient = max(0.01, self.coefficient * math.exp(rate))


class Run:
    """One training run in a folder: model, optimizers, sampler, and the files that let it go on."""

    def __init__(self, recipe: Recipe, shape: AnyShape, corpus: Path, folder: Path) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.folder, self.corpus = recipe, folder, corpus
        self.model = kind_of(shape).decoder(shape)
        self.optimizers = make_optimizers(self.model, recipe.lr, recipe.weight_decay, recipe.muon)
        self.sampler = Sampler(load_material(corpus), training_encoder(corpus), recipe.seed)
        self.control = SparsityControl()
        self.step, self.seconds = 0, 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def train_step(self) -> dict[str, float]:
        """One step; returns loss (nats an answer token) and how much of the model was used."""
        recipe, step = self.recipe, self.step
        tokens = recipe.row_tokens_at(step)
        rows = recipe.batch_tokens // tokens
        batch = self.sampler.batch(step, rows, tokens, self.model.shape.positions_max)
        if isinstance(self.model, Decoder):
            self.model.press_for_zeros(self.control.coefficient)
        loss = self._loss(batch)
        (loss + recipe.balance * self.model.imbalance()).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr_at(step)
            optimizer.step()
            optimizer.zero_grad()
        use = self._use()
        if isinstance(self.model, Decoder):
            self.control.update(recipe, step, use["sparsity"])
            use["l1"] = self.control.coefficient
        self.step += 1
        return {"loss": loss.item(), **use}

    def _loss(self, batch: Batch) -> Tensor:
        targets = torch.from_numpy(batch.targets)
        learned = targets >= 0
        with torch.autocast("cpu", torch.bfloat16):
            ids, positions = torch.from_numpy(batch.ids), torch.from_numpy(batch.positions)
            hidden = self.model(ids, positions)
            logits = self.model.logits(hidden[learned])
        losses = F.cross_entropy(logits.float(), targets[learned], reduction="none")
        owners = batch.owners[learned.numpy()]
        self.sampler.learn_losses(owners, losses.detach().numpy())
        return losses.mean()

    def _use(self) -> dict[str, float]:
        """Of the last batch; one row in eight is enough to see it.

        `busiest`: the most used neuron's or expert's share of use over the mean one's, which is 1
        where all are used alike; of the layer where it is largest.
        """
        used = [(layer.active[::8] != 0).float().mean((0, 1)) for layer in self.model.blocks]
        sparsity = float(np.mean([1 - share.mean().item() for share in used]))
        return {"sparsity": sparsity, "busiest": max((u.max() / u.mean()).item() for u in used)}

    def save(self) -> None:
        """Writes the checkpoint, under another name first: a killed run loses minutes only."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "sampler": self.sampler.state(),
            "control": [self.control.coefficient, self.control.begin],
            "step": self.step,
            "seconds": self.seconds,
        }
        part = self.folder / "checkpoint.part"
        torch.save(state, part)
        os.replace(part, self.folder / "checkpoint.pt")

    def resume(self) -> None:
        """Goes on from the checkpoint of the folder, where there is one."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.sampler.load_state(state["sampler"])
        self.control = SparsityControl(*state["control"])
        self.step, self.seconds = state["step"], state["seconds"]
        print(f"resumed at step {self.step}", flush=True)

    def train(self, save_seconds: float, log_steps: int) -> None:
        """Runs to the last step, logging a line of JSON every few steps."""
        self._note_stage()
        saved = started = time.monotonic()
        before = self.seconds
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            while self.step < self.recipe.steps:
                seen = self.train_step()
                now = time.monotonic()
                self.seconds = before + now - started
                if self.step % log_steps == 0 or self.step == self.recipe.steps:
                    print(self._line(seen), file=log, flush=True)
                if now - saved > save_seconds or self.step == self.recipe.steps:
                    self.save()
                    saved = now

    def _note_stage(self) -> None:
        """Keeps what this stage runs with, since a resumed run may have another plan."""
        stage = {
            "from_step": self.step,
            "kind": kind_of(self.model.shape).name,
            "recipe": asdict(self.recipe),
            "shape": asdict(self.model.shape),
            "is_calibrated": bool(self.sampler.material.not_sure_words),
        }
        with (self.folder / "stages.jsonl").open("a", encoding="utf-8") as stream:
            print(json.dumps(stage), file=stream)

    def _line(self, seen: dict[str, float]) -> str:
        losses, known = self.sampler.losses, self.sampler.known
        record = {
            "step": self.step,
            "tokens": self.step * self.recipe.batch_tokens,
            "seconds": round(self.seconds, 1),
            **{key: round(value, 4) for key, value in seen.items()},
            "definition_loss": round(float(losses[:, 0].mean()), 4),
            "other_loss": round(float(losses[:, 1:][known[:, 1:]].mean()), 4),
            "facts_known": int((losses[known] < KNOWN_LOSS).sum()),
        }
        return json.dumps(record)


def parse_arguments() -> argparse.Namespace:
    """Command line; every field of the recipe is an option."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=Path("build/demo/corpus"))
    parser.add_argument("--folder", type=Path, default=Path("build/demo/run"))
    parser.add_argument("--export", type=Path, default=None, help="write the model here at the end")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-seconds", type=float, default=180)
    parser.add_argument("--log-steps", type=int, default=20)
    for name, value in asdict(Recipe()).items():
        kind = (lambda text: text == "true") if isinstance(value, bool) else type(value)
        parser.add_argument("--" + name.replace("_", "-"), type=kind, default=value)
    parser.add_argument("--kind", choices=KINDS, default="opt", help="the model's family")
    for name in sorted({name for kind in KINDS.values() for name in kind.sizes}):
        parser.add_argument("--" + name.replace("_", "-"), type=int, help="by default the kind's")
    return parser.parse_args()


def chosen_shape(args: argparse.Namespace, vocab_size: int) -> AnyShape:
    """The kind's usual shape, with the sizes of the command line where they are given."""
    kind = KINDS[args.kind]
    sizes = {name: getattr(args, name) for name in kind.sizes}
    return kind.shape(vocab_size, **{name: n for name, n in sizes.items() if n is not None})


def main() -> None:
    """Runs the command line."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    recipe = Recipe(**{name: getattr(args, name) for name in asdict(Recipe())})
    shape = chosen_shape(args, load_tokenizer(args.corpus).get_piece_size())
    run = Run(recipe, shape, args.corpus, args.folder)
    run.resume()
    run.train(args.save_seconds, args.log_steps)
    if args.export is not None:
        export(run.model, args.corpus, args.export)


if __name__ == "__main__":
    main()
