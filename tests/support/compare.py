"""What is compared: logits of a prompt at once, token by token, and the greedy answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from flashllm.engine.loading import load_decoder
from flashllm.options import Select

TOLERANCE = 1e-4
EXACT = "f32"
"""Encoding of keys and values that rounds nothing, as the oracle does."""
ANSWER = 20
Logits = NDArray[np.float32]
Oracle = Callable[[list[int]], Logits]
"""Logits [tokens, vocab] of some ids."""


def oracle(model: torch.nn.Module) -> Oracle:
    """A model of transformers, without a cache of any kind."""

    @torch.no_grad()
    def logits(ids: list[int]) -> Logits:
        found: Logits = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        return found

    return logits


def prompt(length: int, vocab: int) -> list[int]:
    """The same ids for the same length."""
    return np.random.default_rng(length).integers(3, vocab, size=length).tolist()


def check_prefill(
    expected: Oracle,
    directory: Path,
    length: int,
    tolerance: float = TOLERANCE,
    select: Select | None = "all",
) -> None:
    """All logits of a prompt."""
    decoder, _, store = load_decoder(directory, select=select, kv_dtype=EXACT)
    with store:
        ids = prompt(length, decoder.spec.vocab_size)
        found = decoder.logits(ids)
    np.testing.assert_allclose(found, expected(ids), atol=tolerance, rtol=0)


def check_steps(expected: Oracle, directory: Path, select: str | None, length: int = 40) -> None:
    """Logits token by token, then as many greedy tokens again: they are the same ones."""
    decoder, _, store = load_decoder(directory, select=select, kv_dtype=EXACT)
    with store:
        ids = prompt(length, decoder.spec.vocab_size)
        steps = [decoder.prefill(ids[:7])]
        steps += [decoder.decode(token) for token in ids[7:]]
        np.testing.assert_allclose(np.stack(steps), expected(ids)[6:], atol=TOLERANCE, rtol=0)
        answer: list[int] = []
        logits = steps[-1]
        for _ in range(ANSWER):
            answer.append(int(np.argmax(logits)))
            logits = decoder.decode(answer[-1])
    greedy: list[int] = []
    for _ in range(ANSWER):
        greedy.append(int(np.argmax(expected(ids + greedy)[-1])))
    assert answer == greedy
