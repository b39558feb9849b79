"""Answers that a model writes as messages in channels, told as one text like any other answer.

Such a model opens each message with a header of control tokens: the role, after `<|channel|>` the
channel (analysis, commentary, final) and perhaps `to=` a tool, then `<|message|>` and the text.
Source: OpenAI's harmony response format. Here analysis becomes `<think>`, reasoning, `</think>`,
what is addressed to a tool a `<tool_call>`, and all else the answer. A header is told apart by its
ids, so nothing that is spelled with ordinary tokens becomes one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from flashllm.tokenizer import reasoning

TOOL_CALL_BEGIN, TOOL_CALL_END = "<tool_call>", "</tool_call>"
"""What stands around a call of a tool in the text of an answer; many models write these marks."""
CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
_START, _END = "<|start|>", "<|end|>"
_LAST_MARKERS = ("<|return|>", "<|call|>")
"""They end an answer: it is complete, or waits for a tool."""
HEADER_CHARACTERS_MAX = 256
"""A longer header is none: its text is shown as the answer."""
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_RECIPIENT_FIRST = re.compile(r"\s*(?:t|to|to=.*)?", re.DOTALL)
_INNER_END = reasoning.END.replace("</", "</ ")
"""How reasoning that spells the mark of its own end is told."""


class TextDecoder(Protocol):
    """Turns ids into text one by one."""

    def push(self, token: int) -> str:
        """The characters that this id completes."""

    def flush(self) -> str:
        """What remains of a character that was cut off."""


@dataclass(frozen=True, slots=True)
class ChannelTokens:
    """The control tokens of channels in one vocabulary."""

    start: int
    end: int
    channel: int
    message: int
    last: tuple[int, ...]
    """Tokens that end the answer, not only a message of it."""

    @classmethod
    def of(cls, controls: Mapping[str, int], template: str) -> ChannelTokens | None:
        """None where the vocabulary has no channels, or the chat template uses none."""
        names = (_START, _END, CHANNEL, MESSAGE)
        if not uses_channels(template) or not controls.keys() >= set(names):
            return None
        last = tuple(controls[marker] for marker in _LAST_MARKERS if marker in controls)
        start, end, channel, message = (controls[name] for name in names)
        return cls(start, end, channel, message, last)

    def body(self, ids: Sequence[int]) -> Sequence[int]:
        """Of the ids of an answer, those of its last message without header and end."""
        begin = max(
            (place for place, token in enumerate(ids, 1) if token == self.message), default=0
        )
        body = list(ids[begin:])
        ends = [place for place, token in enumerate(body) if token in (self.end, *self.last)]
        return body[: ends[0]] if ends else body

    def encode_answer(self, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Ids of an answer's beginning as the model would have written it; `encode` is for text."""
        thought, answer = reasoning.split(text)
        ids: list[int] = []
        if thought.strip():
            ids += [self.channel, *encode("analysis"), self.message, *encode(thought.strip())]
            if not answer.strip() and not text.rstrip().endswith(reasoning.END):
                return ids
            ids += [self.end, self.start, *encode("assistant")]
        return [*ids, self.channel, *encode("final"), self.message, *encode(answer.lstrip())]


class _Kind(Enum):
    REASONING = auto()
    TOOL_CALL = auto()
    ANSWER = auto()


_BEGINS = {
    _Kind.REASONING: f"{reasoning.BEGIN}\n",
    _Kind.TOOL_CALL: f"{TOOL_CALL_BEGIN}\n",
    _Kind.ANSWER: "",
}
_ENDS = {
    _Kind.REASONING: f"\n{reasoning.END}\n\n",
    _Kind.TOOL_CALL: f"\n{TOOL_CALL_END}\n\n",
    _Kind.ANSWER: "\n\n",
}


class ChannelDecoder:
    """Turns the ids of an answer into text, headers into marks.

    It begins where the prompt ends, within the header of the first message.
    """

    def __init__(self, tokens: ChannelTokens, text: TextDecoder) -> None:
        self._tokens = tokens
        self._text = text
        self._header: str | None = ""
        """The header so far; None within a message's text."""
        self._role: str | None = None
        """What the header had before its channel; None while there was no channel."""
        self._is_first = True
        """Whether the header is the first one, whose role is in the prompt."""
        self._kind: _Kind | None = None
        """What the text that was told last is."""
        self._is_final = False
        self._held = ""
        """Reasoning that may be the beginning of the mark of its end."""
        self.is_over = False
        """Whether the answer is complete though no token that ends it came."""

    def push(self, token: int) -> str:
        """The text that this id adds, marks included; possibly none."""
        tokens = self._tokens
        if token == tokens.start:
            return self._begin_header(is_first=False)
        if token == tokens.channel:
            return self._begin_channel()
        if token == tokens.message:
            return "" if self._header is None else self._begin_message()
        if token == tokens.end or token in tokens.last:
            return self._end_message()
        text = self._text.push(token)
        return self._tell(text) if self._header is None else self._read_header(text)

    def flush(self) -> str:
        """What remains: half a character, or reasoning that was held back."""
        text = self._text.flush()
        if self._header is not None:
            return ""
        told = self._tell(text)
        held, self._held = self._held, ""
        return told + held

    def _begin_header(self, *, is_first: bool) -> str:
        text = self.flush()
        self._header, self._role, self._is_first = "", None, is_first
        return text

    def _begin_channel(self) -> str:
        text = self._begin_header(is_first=True) if self._header is None else ""
        self._role, self._header = self._header or "", ""
        return text

    def _begin_message(self) -> str:
        before, channel = self._header or "", ""
        role = before
        if self._role is not None:
            role, channel = self._role, before
        recipient = _RECIPIENT.search(f"{role} {channel}")
        if not self._is_first and not role.strip().startswith("assistant"):
            self.is_over = True  # the model goes on as somebody else
        if recipient is not None:
            return self._enter(_Kind.TOOL_CALL) + f"{recipient[1]}\n"
        name = (channel.split() or ["final"])[0]
        self._is_final = name == "final"
        return self._enter(_Kind.REASONING if name == "analysis" else _Kind.ANSWER)

    def _end_message(self) -> str:
        self.is_over = self.is_over or (self._header is None and self._is_final)
        return self._begin_header(is_first=False)

    def _enter(self, kind: _Kind) -> str:
        """The marks between the last text and one of this kind."""
        before, self._kind, self._header = self._kind, kind, None
        self._is_final = self._is_final and kind is _Kind.ANSWER
        if before is kind and kind is not _Kind.TOOL_CALL:
            return "\n\n"
        return ("" if before is None else _ENDS[before]) + _BEGINS[kind]

    def _read_header(self, text: str) -> str:
        assert self._header is not None, "a header is read within one only"
        self._header += text
        is_plain = self._is_first and self._role is None
        if is_plain and not _RECIPIENT_FIRST.fullmatch(self._header):
            return self._show_header()
        return self._show_header() if len(self._header) > HEADER_CHARACTERS_MAX else ""

    def _show_header(self) -> str:
        """What was taken for a header is the answer."""
        text, self._is_final = self._header or "", True
        return self._enter(_Kind.ANSWER) + text

    def _tell(self, text: str) -> str:
        if self._kind is not _Kind.REASONING:
            return text
        told = (self._held + text).replace(reasoning.END, _INNER_END)
        kept = reasoning.partial_mark(told, reasoning.END)
        told, self._held = told[: len(told) - kept], told[len(told) - kept :]
        return told


def uses_channels(template: str) -> bool:
    """Whether a chat template writes messages in channels."""
    return CHANNEL in template and MESSAGE in template
