"""A plain torch stack of feed-forward layers that training can be shown, in place of a model."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flashllm.predictors.targets import Targets
from flashllm.predictors.train import Task

from flashllm.spec import ModelSpec

D_MODEL, D_FFN, N_LAYERS, VOCAB = 32, 96, 2, 200


def spec_of(**changes: Any) -> ModelSpec:
    """A spec of the stack's widths; `changes` go over it."""
    values: dict[str, Any] = {
        "n_layers": N_LAYERS, "d_model": D_MODEL, "n_heads": 2, "n_kv_heads": 2, "head_dim": 16,
        "d_ffn": D_FFN, "vocab_size": VOCAB, "embed_dim": D_MODEL, "max_positions": 64,
        "position_offset": 0, "dtype": "f32", "norm_placement": "pre", "norm_affine": True,
        "norm_eps": 1e-5, "final_norm": True, "attention_bias": True, "ffn_bias": True,
        "tied_head": True, "activation": "relu",
    }  # fmt: skip
    return ModelSpec(**{**values, **changes})


class Stack:
    """Attention is a mean over the last two tokens; up-projections are of a rank.

    `threshold` is what a pre-activation must exceed, as with fatrelu.
    """

    def __init__(
        self, seed: int = 0, rank: int = 4, n_layers: int = N_LAYERS, threshold: float = 0.0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        fatrelu = {"activation": "fatrelu", "activation_threshold": threshold} if threshold else {}
        self.spec = spec_of(n_layers=n_layers, **fatrelu)
        self.bundle_bytes = 2 * D_MODEL * 4
        self.identity = {"file_id": f"{seed} {rank}"}
        self.threshold = threshold
        self.embedding = torch.randn(VOCAB, D_MODEL, generator=generator)
        self.ups = [
            torch.randn(D_FFN, rank, generator=generator)
            @ torch.randn(rank, D_MODEL, generator=generator)
            for _ in range(n_layers)
        ]
        self.downs = [
            0.1 * torch.randn(D_FFN, D_MODEL, generator=generator) for _ in range(n_layers)
        ]
        self.bias = -6.0 * (rank / 4) ** 0.5 - torch.rand(D_FFN, generator=generator)
        self.bias += threshold
        self.predictors: dict[str, Any] | None = None
        self.prefills = 0
        self.opened = 0

    @contextmanager
    def open(self, contexts: Any):
        assert max(map(len, contexts)) > 0
        self.opened += 1
        yield self

    def use(self, decoder: Stack, tensors: Any) -> None:
        decoder.predictors = {
            name: torch.from_numpy(tensor.floats()) for name, tensor in tensors.items()
        }

    def up_projection(self, layer: int) -> torch.Tensor:
        return self.ups[layer]

    def margins(self, ids: list[int], selected: bool = False) -> list[tuple]:
        """Input and margin of each layer, and the last hidden state."""
        x = self.embedding[torch.tensor(ids)]
        seen = []
        for layer, (up, down) in enumerate(zip(self.ups, self.downs, strict=True)):
            mixed = x + torch.cat([torch.zeros(1, D_MODEL), x[:-1]])
            inputs = torch.nn.functional.layer_norm(mixed, (D_MODEL,))
            before = inputs @ up.T + self.bias
            hidden = torch.where(before > self.threshold, before, 0.0)
            if selected:
                hidden = hidden * (self.scores(layer, inputs) > 0)
            seen.append((inputs, before - self.threshold))
            x = x + hidden @ down
        return [*seen, x]

    def scores(self, layer: int, inputs: torch.Tensor) -> torch.Tensor:
        """What the predictors in use make of inputs, less their threshold."""
        parts = ("down", "up", "bias", "threshold")
        down, up, bias, threshold = (self.predictors[f"layers.{layer}.{part}"] for part in parts)
        return inputs @ down.T @ up.T + bias - threshold

    def prefill(self, ids, *, tap):
        self.prefills += 1
        seen = self.margins(ids)[:-1]
        half = len(ids) // 2
        for start, stop in ((0, half), (half, len(ids))):  # in chunks, as a decoder would
            for layer, (inputs, margin) in enumerate(seen):
                tap(layer, inputs[start:stop].numpy(), margin[start:stop].numpy())

    def logits_blocks(self, ids, mode):
        logits = self.margins(ids, mode == "selected")[-1] @ self.embedding.T
        yield from (block.numpy() for block in logits.split(7))


def random_contexts(count: int, tokens: int, seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCAB, tokens).tolist() for _ in range(count)]


def task_of(stack: Stack, contexts=None, seed: int = 0, **targets: float) -> Task:
    """A task on a text of 5,000 random tokens."""
    return Task.of(stack, contexts or random_contexts(100, 50), Targets(**targets), seed)
