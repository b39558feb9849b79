"""From a conversation to its next answer: what `run` and the chat share.

The only place that turns messages into the ids that an engine continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flashllm.conversations.fit import fit
from flashllm.engine.answer_message import AnswerMessage
from flashllm.errors import PromptTooLong, UsageError
from flashllm.options import DEFAULT_MAX_TOKENS, DEFAULT_REASONING, ReasoningOptions
from flashllm.tokenizer.reasoning import BEGIN, END

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine, EngineGeneration, OnPrefill, PromptModel
    from flashllm.engine.sampling import Sampling
    from flashllm.tokenizer.chat_template import Message


@dataclass(frozen=True, slots=True)
class Request:
    """A conversation to be answered."""

    messages: Sequence[Message]
    system: str = ""
    known: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Ids of earlier answers, by the number of their message."""
    max_tokens: int = DEFAULT_MAX_TOKENS
    sampling: Sampling | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the answer, besides the chat template's own."""
    continues: bool = False
    """Whether the last message is a stopped answer to be continued."""
    reasoning: ReasoningOptions = DEFAULT_REASONING
    """What the chat template is told of reasoning."""

    @classmethod
    def of(
        cls,
        messages: Sequence[Message],
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
    ) -> Request:
        """The request of a list of messages, the system prompt first if there is one.

        A last message of the assistant is continued. `UsageError` for messages that are none.
        """
        if isinstance(messages, str | Mapping):
            raise UsageError(
                "a conversation is a list of messages; write it like"
                ' [{"role": "user", "content": "What does ocean mean?"}]'
            )
        # Not at the top: the chat's first frame waits for this file, and not for subprocess.
        from flashllm.tokenizer.chat_template import check_messages

        check_messages(messages)
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        turns = messages[1:] if messages[0]["role"] == "system" else messages
        if not turns:
            raise UsageError("the conversation has a system prompt only; add a user's message")
        known = {
            number: message.ids
            for number, message in enumerate(turns)
            if isinstance(message, AnswerMessage)
        }
        continues = turns[-1]["role"] == "assistant"
        return cls(turns, system, known, max_tokens, stop=tuple(stop), continues=continues)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as ids that an engine continues."""

    ids: list[int]
    """Those of the stopped answer included."""
    begun: list[int]
    """The ids of the stopped answer that is continued; empty for a new answer."""
    stop: tuple[str, ...]
    dropped: int
    """How many of the oldest messages were left out."""


@dataclass(frozen=True, slots=True)
class Started:
    """A generation that has not read its prompt yet, and how many messages were left out."""

    generation: EngineGeneration
    dropped: int


def answers_messages(engine: PromptModel, *, raw: bool, is_conversation: bool) -> bool:
    """Whether a prompt is a message to be answered, rather than a text to be continued.

    It is one if the model has a chat template or a conversation is asked for, unless it is `raw`.
    """
    if raw or not engine.has_tokenizer:
        return False
    return engine.tokenizer.has_chat_template or is_conversation


def start(engine: Engine, request: Request, on_prefill: OnPrefill | None = None) -> Started:
    """Encodes as much of a conversation as fits and starts its answer; runs when iterated.

    Errors as of `encode`.
    """
    prompt = encode(engine, request)
    generation = engine.generate(
        prompt.ids,
        max_tokens=request.max_tokens,
        sampling=request.sampling,
        stop=prompt.stop,
        on_prefill=on_prefill,
        answer=len(prompt.begun),
    )
    return Started(generation, prompt.dropped)


def encode(engine: PromptModel, request: Request) -> Prompt:
    """Encodes as much of a conversation as fits.

    `NoTokenizer` for a model without one, `PromptTooLong` for a last message that is too long, and
    for an answer to be continued in a full context.
    """
    tokenizer = engine.tokenizer
    asked = request.messages[:-1] if request.continues else request.messages
    fitted = fit(
        asked,
        request.system,
        lambda messages, known: tokenizer.encode_chat(messages, known, request.reasoning),
        engine.plan.context,
        request.max_tokens,
        {number: ids for number, ids in request.known.items() if number < len(asked)},
    )
    stop = (*request.stop, *tokenizer.chat_stops)
    begun = _begun(engine, request, fitted.ids, stop) if request.continues else []
    if begun and len(fitted.ids) + len(begun) >= engine.plan.context:
        raise PromptTooLong(
            "the context is full, so this answer cannot go on; begin a new conversation"
        )
    return Prompt([*fitted.ids, *begun], begun, stop, fitted.dropped)


def kept_numbers(report: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a generation's report that are saved with its answer."""
    names = ("prompt_tokens", "prefill", "decode")
    return {name: report[name] for name in names} | {"tokens": len(report["tokens"])}


def _begun(
    engine: PromptModel, request: Request, prompt: Sequence[int], stop: Sequence[str]
) -> list[int]:
    """Ids of the answer to be continued: those it was generated with, if this model made them."""
    tokenizer, number = engine.tokenizer, len(request.messages) - 1
    text = request.messages[number]["content"]
    ids = list(request.known.get(number, ()))
    if ids and max(ids) < engine.info.spec.vocab_size:
        decoded = tokenizer.decode(ids).strip()
        written = text.strip()
        if not decoded.startswith(BEGIN):  # the prompt may have ended in that
            written = written.removeprefix(BEGIN).lstrip()
        # Text held back for a stop string or a mark, or half a character, is only in the ids.
        held = len(decoded) - len(written)
        if decoded.startswith(written) and held < max(map(len, (END, *stop))) + 4:
            return ids
    return tokenizer.encode_answer(text, prompt)
