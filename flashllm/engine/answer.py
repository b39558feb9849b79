"""From a conversation to its next answer: what `run` and the chat share.

The one way from messages to the ids that an engine continues, whichever engine it is.
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
    """Ids that answers were generated with, by the number of their message."""
    max_tokens: int = 512
    sampling: Sampling | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the answer, beside the chat template's own."""
    continues: bool = False
    """The last message is an answer that was stopped, and goes on."""


@dataclass(frozen=True, slots=True)
class Started:
    """A generation that has not read its prompt yet, and how many messages were left out."""

    generation: EngineGeneration
    dropped: int


def start(engine: Engine, request: Request, on_prefill: OnPrefill | None = None) -> Started:
    """Encodes what fits of a conversation and starts its answer; nothing runs before it is read.

    `UsageError` for a model without a tokenizer, for a last message that is too long, and for an
    answer to be continued in a context that is full.
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
    """Of a generation's report, what is kept with its answer."""
    names = ("prompt_tokens", "prefill", "decode")
    return {name: report[name] for name in names} | {"tokens": len(report["tokens"])}


def _begun(
    engine: Engine, tokenizer: EngineTokenizer, request: Request, stop: Sequence[str]
) -> list[int]:
    """Ids of the answer that goes on: those it was generated with, if they are this model's."""
    number = len(request.messages) - 1
    text = request.messages[number]["content"]
    ids = list(request.known.get(number, ()))
    if ids and max(ids) < engine.info.spec.vocab_size:
        decoded = tokenizer.decode(ids).strip()
        # What was held back for a stop string, or of a character cut off, is in the ids alone.
        held = len(decoded) - len(text.strip())
        if decoded.startswith(text.strip()) and held < max(map(len, stop), default=0) + 4:
            return ids
    # Without what begins a text: the answer stands behind a prompt.
    return tokenizer.encode(text)[len(tokenizer.encode("")) :]
