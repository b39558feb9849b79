"""A gated model trained in seconds, so that what its gate lets through means something."""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 64
STEPS = 150
BATCH, LENGTH = 16, 48
MULTIPLIERS = (3, 5, 7, 11)


def sequences(count: int, length: int, seed: int) -> np.ndarray:
    """Each walks through the vocabulary by a rule of its own: the first two tokens tell which."""
    generator = np.random.default_rng(seed)
    out = np.zeros((count, length), dtype=np.int64)
    rules = generator.integers(0, len(MULTIPLIERS), count)
    out[:, 0] = rules
    out[:, 1] = generator.integers(4, VOCAB, count)
    for position in range(2, length):
        step = out[:, position - 1] * np.asarray(MULTIPLIERS)[rules] + 1
        out[:, position] = 4 + step % (VOCAB - 4)
    return out


def trained_gated(hidden_act: str = "relu") -> tuple[LlamaForCausalLM, float, float]:
    """A model with a gate, and its loss on unseen sequences before and after training."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        hidden_act=hidden_act,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        rms_norm_eps=1e-5,
    )
    model = LlamaForCausalLM(config)
    before = _loss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    model.train()
    for step in range(STEPS):
        ids = torch.from_numpy(sequences(BATCH, LENGTH, seed=step + 1))
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return model, before, _loss(model)


@torch.no_grad()
def _loss(model: LlamaForCausalLM) -> float:
    model.eval()
    ids = torch.from_numpy(sequences(32, LENGTH, seed=0))
    return float(model(ids, labels=ids).loss)
