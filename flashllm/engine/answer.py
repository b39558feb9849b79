"""From a conversation to its next answer: what `run` and the chat share.

The only place that turns messages into the ids that an engine continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flashllm.conversations.fit import fit
from flashllm.errors import UsageError

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine, EngineGeneration, EngineTokenizer, OnPrefill
    from flashllm.engine.sampling import Sampling
    from flashllm.tokenizer.chat_template import Message


@dataclass(frozen=True, slots=True)
class Request:
    """A conversation to be answered."""

    messages: Sequence[Message]
    system: str = ""
    known: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Ids of earlier answers, by the number of their message."""
    max_tokens: int = 512
    sampling: Sampling | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the answer, besides the chat template's own."""
    continues: bool = False
    """Whether the last message is a stopped answer to be continued."""


@dataclass(frozen=True, slots=True)
class Started:
    """A generation that has not read its prompt yet, and how many messages were left out."""

    generation: EngineGeneration
    dropped: int


def start(engine: Engine, request: Request, on_prefill: OnPrefill | None = None) -> Started:
    """Encodes as much of a conversation as fits and starts its answer; runs when iterated.

    `UsageError` for a model without a tokenizer, a last message that is too long, or an answer to
    be continued in a full context.
    """
    tokenizer = engine.tokenizer
    if tokenizer is None:
        raise UsageError(
            "this model came without a tokenizer; give the prompt as ids: "
            "`flashllm run MODEL --ids 1,2,3`"
        )
    asked = request.messages[:-1] if request.continues else request.messages
    fitted = fit(
        asked,
        request.system,
        tokenizer.encode_chat,
        engine.plan.context,
        request.max_tokens,
        {number: ids for number, ids in request.known.items() if number < len(asked)},
    )
    stop = (*request.stop, *tokenizer.chat_stops)
    begun = _begun(engine, tokenizer, request, stop) if request.continues else []
    if begun and len(fitted.ids) + len(begun) >= engine.plan.context:
        raise UsageError(
            "the context is full, so this answer cannot go on; begin a new conversation"
        )
    generation = engine.generate(
        [*fitted.ids, *begun],
        max_tokens=request.max_tokens,
        sampling=request.sampling,
        stop=stop,
        on_prefill=on_prefill,
        answer=len(begun),
    )
    return Started(generation, fitted.dropped)


def kept_numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a generation's report that are saved with its answer."""
    names = ("prompt_tokens", "prefill", "decode")
    return {name: report[name] for name in names} | {"tokens": len(report["tokens"])}


def _begun(
    engine: Engine, tokenizer: EngineTokenizer, request: Request, stop: Sequence[str]
) -> list[int]:
    """Ids of the answer to be continued: those it was generated with, if this model made them."""
    number = len(request.messages) - 1
    text = request.messages[number]["content"]
    ids = list(request.known.get(number, ()))
    if ids and max(ids) < engine.info.spec.vocab_size:
        decoded = tokenizer.decode(ids).strip()
        # Text held back for a stop string, or half a character, is only in the ids.
        held = len(decoded) - len(text.strip())
        if decoded.startswith(text.strip()) and held < max(map(len, stop), default=0) + 4:
            return ids
    # Without the beginning-of-text id: the answer follows a prompt.
    return tokenizer.encode(text)[len(tokenizer.encode("")) :]
