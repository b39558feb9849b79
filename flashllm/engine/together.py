"""A step of several answers of one model: each layer that is read is read once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
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
    group: Sequence[Answering[Token_co]],
    decoder: Decoder,
    meter: Meter | NoMeter,
    going: Sequence[Answering[Token_co]] | None = None,
) -> list[Token_co | None]:
    """The first token of each, their prompts read together; within a step of the first one.

    None where an answer ended without one. `meter` is of the first one. With `going`, further
    tokens of these and of the group's are computed beside the prompts, where the decoder can do
    that, and follow in the list.
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
    answering = None if going is None or not decoder.answers_go_beside else list(going)
    for wave in waves([group[at].prompt for at in together]):
        wanted = [together[number] for number in wave]
        reading = [group[at] for at in wanted]
        tokens, further = _read(reading, decoder, meter, answering)
        for at, token in zip(wanted, tokens, strict=True):
            told[at] = token
        told += further
        if answering is not None:
            answering += reading
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
    costs = meter.token().shared([1] * len(going))
    for at, (token, text), cost in zip(going, found, costs, strict=True):
        told[at] = group[at].tell(token, text, group[at].note(cost))
    return told


def _read(
    reading: Sequence[Answering[Token_co]],
    decoder: Decoder,
    meter: Meter | NoMeter,
    going: Sequence[Answering[Token_co]] | None,
) -> tuple[list[Token_co | None], list[Token_co | None]]:
    """Their first tokens; and what came of them and of those that were `going` meanwhile."""
    if not reading:
        return [], []
    reading[0].begin_step()
    for each in reading:
        each.reused_tokens = each.reuse()
    prompts = [each.prompt[each.reused_tokens :] for each in reading]
    contexts, cached = [each.context for each in reading], [each.reused_tokens for each in reading]
    first: dict[int, tuple[int, str]] = {}
    beside: list[tuple[Answering[Token_co], tuple[int, str]]] = []
    if going is None:
        logits = decoder.prefill_each(prompts, contexts, cached)
        first.update(enumerate(each.sample(row) for each, row in zip(reading, logits, strict=True)))
    else:
        answers, passing = list(going), list[Answering[Token_co]]()

        def next_tokens() -> list[tuple[Context, int]]:
            pending = [(each, one) for each in answers if (one := each.pending) is not None]
            passing[:] = [each for each, _ in pending]
            return [one for _, one in pending]

        unsampled: list[Answering[Token_co]] = []
        try:
            for ended, logits in decoder.prefill_beside(prompts, contexts, cached, next_tokens):
                unsampled = passing[:]
                found = [each.sample(next(logits)) for each in passing]
                unsampled = []
                beside += zip(passing, found, strict=True)
                first.update((at, reading[at].sample(next(logits))) for at in ended)
                answers += [reading[at] for at in ended]
        except BaseException:
            # The context of a token behind which none was sampled is of no use to its answer; one
            # that has come to its end is free.
            for each in answers:
                if each in unsampled or each.pending is None:
                    each.end(is_cancelled=False)
            raise
    weights = [*map(len, prompts), *(1 for _ in beside)]
    costs = meter.token().shared(weights)
    read = [each.tell(*first[at], each.note(costs[at])) for at, each in enumerate(reading)]
    further = [
        each.tell(*found, each.note(cost))
        for (each, found), cost in zip(beside, costs[len(reading) :], strict=True)
    ]
    return read, further
