"""Why a context held more tokens than the next prompt could use, in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashllm.engine.answer import Request
from flashllm.tokenizer import reasoning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashllm.engine.protocol import EngineGeneration
    from flashllm.tokenizer.chat_template import Message

_TEMPLATE_END_TOKENS = 32
"""A prompt ends in at most so many tokens of the template, which another answer may change."""


@dataclass(frozen=True, slots=True)
class _Context:
    """What the last answer left in the context."""

    request: Request
    messages: Sequence[Message]
    """Those that were sent, and the answer."""
    prompt_tokens: int
    tokens: int
    """Of prompt and answer."""


class PrefixReuse:
    """Follows the answers of one context, and says why the next prompt cannot use all of it."""

    def __init__(self) -> None:
        self._context: _Context | None = None
        self._is_fresh = True

    def open(self) -> None:
        """A model was opened: its context is empty."""
        self._context, self._is_fresh = None, True

    def lose(self) -> None:
        """An answer failed: what the context holds is unknown."""
        self._context, self._is_fresh = None, False

    def end(self, request: Request, dropped: int, generation: EngineGeneration) -> None:
        """An answer is over; `dropped` of the first messages were not sent."""
        sent = list(request.messages[dropped:])
        begun = sent.pop()["content"] if request.continues else ""
        answer = {"role": "assistant", "content": begun + generation.text}
        tokens = generation.prompt_tokens + len(generation.ids)
        self._context = _Context(request, [*sent, answer], generation.prompt_tokens, tokens)

    def reason(self, request: Request, dropped: int, reused: int) -> str:
        """Why no more than `reused` tokens were of use; empty where that is unknown."""
        context = self._context
        if context is None:
            answers = (one for one in request.messages if one["role"] == "assistant")
            is_new = self._is_fresh and not reused and any(answers)
            return "model reopened" if is_new else ""
        if reused >= context.tokens - 1:  # the last token may not have been computed
            return ""
        if request.system != context.request.system:
            return "system changed"
        sent = request.messages[dropped:]
        shared = _shared(context.messages, sent)
        if shared == min(len(context.messages), len(sent)):
            return self._template_reason(context, request, reused, goes_on=shared < len(sent))
        if dropped:
            return "context cut"
        return "other branch" if shared else "other chat"

    def _template_reason(
        self, context: _Context, request: Request, reused: int, *, goes_on: bool
    ) -> str:
        """Where the messages are the same as far as both go."""
        is_early = reused + _TEMPLATE_END_TOKENS < context.prompt_tokens
        if is_early and request.reasoning != context.request.reasoning:
            return "new settings"
        thought, _ = reasoning.split(context.messages[-1]["content"])
        return "reasoning cut" if goes_on and thought.strip() else ""


def _shared(some: Sequence[Message], others: Sequence[Message]) -> int:
    """How many messages at the beginning are the same."""
    count = 0
    for one, other in zip(some, others, strict=False):
        if dict(one) != dict(other):
            break
        count += 1
    return count
