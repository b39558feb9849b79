"""The runs of `flashllm bench prompt`: prompts of some lengths, with empty slots and again.

Lengths and kinds take turns, so that slow changes of the machine affect all alike.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flashllm.bench.steal_time import ProcessorTime
from flashllm.engine.local import Model
from flashllm.errors import UsageError
from flashllm.model.active_set_selectors import Vector
from flashllm.model.router import SelectRouted

COLD, WARM = "cold", "warm"
"""Kinds of prompts: with empty slots; with the slots as a prompt of that length left them."""
LENGTHS = (8, 64, 512)
FIRST_PLAIN_ID = 8
"""Ids below are mostly controls."""


@dataclass(frozen=True, slots=True)
class PromptRun:
    """One prompt up to its first token."""

    round: int
    tokens: int
    kind: str
    first_token_ns: int
    """From asking the engine to the first token, by an outside clock."""
    bytes_read: int
    bytes_needed: int
    """Of feed-forward weights: all, or those of experts that a token chose."""
    bytes_missing: int
    """Of these, those that were not in memory before."""
    stolen_share: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def fitting_lengths(model: Model, asked: Sequence[int] | None) -> list[int]:
    """The lengths asked for, or those of `LENGTHS` that the context holds beside one token.

    `UsageError` where one that was asked for does not fit.
    """
    most = model.plan.context - 1
    too_long = [tokens for tokens in asked or () if tokens > most]
    if too_long:
        raise UsageError(
            f"--lengths {too_long[0]}: the context of {model.plan.context} holds a prompt of {most}"
            f" at most, unless --ctx-size allows more (this model can do"
            f" {model.info.spec.max_positions})"
        )
    return sorted(set(asked)) if asked else [n for n in LENGTHS if n <= most] or [most]


def random_ids(vocab_size: int) -> Iterator[int]:
    """Ids drawn evenly from the vocabulary, always the same ones."""
    rng = np.random.default_rng(0)
    first = min(FIRST_PLAIN_ID, vocab_size - 1)
    while True:
        yield from rng.integers(first, vocab_size, 1024).tolist()


def measure(
    model: Model,
    ids: Iterator[int],
    lengths: Sequence[int],
    rounds: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[PromptRun]:
    """Yields each prompt when its first token is there; ends early if `is_stopped`.

    Each prompt takes other tokens from `ids`, so that no context begins as the one before.
    """
    for number in range(rounds):
        for tokens in lengths:
            for kind in (COLD, WARM):
                prompt = list(itertools.islice(ids, tokens))
                found = _run(model, prompt, number, kind)
                if is_stopped() or found is None:
                    return
                yield found


def bytes_missing(model: Model) -> int:
    """Of the feed-forward weights on flash, those that are not in memory now."""
    resident, _, _ = model.neuron_map().totals
    return round((1 - resident) * _bundles(model)) * model.info.bundle_stride_bytes


def _bundles(model: Model) -> int:
    spec = model.info.spec
    return spec.bundled_layers * spec.bundles_per_layer


@dataclass(frozen=True, slots=True)
class _Needed:
    """The feed-forward weights that a prompt needs: all, or experts that a token chose."""

    nbytes: int
    missing_bytes: int
    """Of them, those that were not in memory before."""


@contextlib.contextmanager
def _needed(model: Model) -> Iterator[Callable[[], _Needed]]:
    """What the prompt needed that is computed within."""
    stride, router = model.info.bundle_stride_bytes, model.decoder.selector
    if not isinstance(router, SelectRouted):
        found = _Needed(_bundles(model) * stride, bytes_missing(model))
        yield lambda: found
        return
    layers = range(model.info.spec.bundled_layers)
    missing = np.stack([~model.decoder.pool.marks(layer)[0] for layer in layers])
    chosen = np.zeros_like(missing)

    def add(layer: int, weights: Vector) -> None:
        chosen[layer] |= (weights != 0).any(axis=0)

    router.observer = add
    try:
        yield lambda: _Needed(
            int(np.count_nonzero(chosen)) * stride, int(np.count_nonzero(chosen & missing)) * stride
        )
    finally:
        router.observer = None


def _run(model: Model, prompt: Sequence[int], number: int, kind: str) -> PromptRun | None:
    """None if it was cancelled."""
    if kind == COLD:
        model.forget()
    else:
        model.decoder.truncate(0)  # slots stay, and no prefix is kept
    with _needed(model) as needed:
        generation = model.generate(prompt, max_tokens=1)
        processors, start_ns = ProcessorTime.now(), time.perf_counter_ns()
        first = next(generation, None)
        first_token_ns = time.perf_counter_ns() - start_ns
        generation.close()
        ours = needed()
    if first is None and generation.finish_reason != "stop":
        return None
    return PromptRun(
        round=number,
        tokens=len(prompt),
        kind=kind,
        first_token_ns=first_token_ns,
        bytes_read=generation.prefill.bytes_read,
        bytes_needed=ours.nbytes,
        bytes_missing=ours.missing_bytes,
        stolen_share=ProcessorTime.now().stolen_share_since(processors),
    )
