"""A step of several answers of one model: each layer that is read is read once for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from flashllm.engine.shared_prefixes import waves
from flashllm.kv_cache.context import Context
from flashllm.model.decoder import Decoder
from flashllm.telemetry.costs import TokenCost
from flashllm.telemetry.meter import Meter, NoMeter

Token_co = TypeVar("Token_co", covariant=True)


class Answering(Protocol[Token_co]):
    """The parts of a generation that take steps with others."""

    context: Context
    prompt: list[int]
    reused_tokens: int

    @property
    def is_over(self) -> bool: ...  # noqa: D102
    @property
    def reads_prompt_only(self) -> bool: ...  # noqa: D102
    @property
    def pending(self) -> tuple[Context, int] | None: ...  # noqa: D102

    def begin(self) -> None: ...  # noqa: D102
    def begin_step(self) -> None: ...  # noqa: D102
    def reuse(self) -> int: ...  # noqa: D102
    def step(self) -> Token_co | None: ...  # noqa: D102
    def sample(self, logits: NDArray[np.float32]) -> tuple[int, str]: ...  # noqa: D102
    def note(self, cost: TokenCost) -> TokenCost: ...  # noqa: D102
    def tell(self, token: int, text: str, cost: TokenCost) -> Token_co | None: ...  # noqa: D102
    def end(self, *, is_cancelled: bool) -> None: ...  # noqa: D102


def first_of_each(
    group: Sequence[Answering[Token_co]], decoder: Decoder, meter: Meter | NoMeter
) -> list[Token_co | None]:
    """The first token of each, their prompts read together; within a step of the first one.

    None where an answer ended without one. `meter` is of the first one.
    """
    told: list[Token_co | None] = [None] * len(group)
    together: list[int] = []
    for at, each in enumerate(group):
        if each.is_over:
            each.end(is_cancelled=True)
        elif each.reads_prompt_only:
            each.begin()
            together.append(at)
        else:
            told[at] = each.step()
    for wave in waves([group[at].prompt for at in together]):
        wanted = [together[number] for number in wave]
        tokens = _read([group[at] for at in wanted], decoder, meter)
        for at, token in zip(wanted, tokens, strict=True):
            told[at] = token
    return told


def next_of_each(
    group: Sequence[Answering[Token_co]], decoder: Decoder, meter: Meter | NoMeter
) -> list[Token_co | None]:
    """A further token of each that has a pending one; otherwise as `first_of_each`."""
    pending = {at: each.pending for at, each in enumerate(group)}
    going = {at: one for at, one in pending.items() if one is not None}
    for at in pending.keys() - going.keys():
        group[at].end(is_cancelled=True)
    told: list[Token_co | None] = [None] * len(group)
    if not going:
        return told
    contexts, tokens = zip(*going.values(), strict=True)
    group[0].begin_step()
    logits = decoder.decode_each(tokens, contexts)
    found = [group[at].sample(row) for at, row in zip(going, logits, strict=True)]
    costs = meter.token().shared(len(going))
    for at, (token, text), cost in zip(going, found, costs, strict=True):
        told[at] = group[at].tell(token, text, group[at].note(cost))
    return told


def _read(
    reading: Sequence[Answering[Token_co]], decoder: Decoder, meter: Meter | NoMeter
) -> Iterator[Token_co | None]:
    if not reading:
        return
    reading[0].begin_step()
    for each in reading:
        each.reused_tokens = each.reuse()
    logits = decoder.prefill_each(
        [each.prompt[each.reused_tokens :] for each in reading],
        [each.context for each in reading],
        [each.reused_tokens for each in reading],
    )
    found = [each.sample(row) for each, row in zip(reading, logits, strict=True)]
    costs = meter.token().shared(len(reading))
    for each, (token, text), cost in zip(reading, found, costs, strict=True):
        yield each.tell(token, text, each.note(cost))
