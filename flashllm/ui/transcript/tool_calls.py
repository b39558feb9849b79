"""Calls of tools in an answer, made visible in its Markdown: they are shown and never run."""

from __future__ import annotations

import re

from flashllm.tokenizer.channels import TOOL_CALL_BEGIN, TOOL_CALL_END
from flashllm.tokenizer.reasoning import partial_mark

_FENCE = "~~~~~~"
_INTRODUCTION = f"*asked for a tool, which is never run:*\n\n{_FENCE}\n"
_ANY_FENCE = re.compile("```|~~~")
_FENCE_BEGINNINGS = ("`", "``", "~", "~~")


class ToolCallFormatter:
    """Replaces the marks of calls at the beginning of a line, outside code, by a block of code.

    The text may arrive cut anywhere; what may be the beginning of a mark is held back.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_line_start = True
        self._is_call = False
        self._call_end = ""
        """The last character that was shown of the call."""
        self._fence = ""
        """What closes the block of code that the model itself has opened."""

    def feed(self, text: str) -> str:
        """What the text adds to the Markdown."""
        text, self._held = self._held + text, ""
        parts = []
        while text:
            step = self._step_in_call if self._is_call else self._step
            part, text = step(text)
            parts.append(part)
        return "".join(parts)

    def end(self) -> str:
        """What was held back; more may follow all the same, where an answer is continued."""
        text, self._held = self._held, ""
        return text

    def _step(self, text: str) -> tuple[str, str]:
        """The Markdown of the next part of a text, and the rest of the text."""
        if self._is_line_start:
            indented = text.lstrip(" \t")
            if indented != text:
                return text[: len(text) - len(indented)], indented
            if _is_undecided(text):
                self._held = text
                return "", ""
            if text.startswith(TOOL_CALL_BEGIN) and not self._fence:
                self._is_call, self._call_end = True, ""
                return _INTRODUCTION, text.removeprefix(TOOL_CALL_BEGIN)
            self._note_fence(text)
        line, mark, rest = text.partition("\n")
        self._is_line_start = bool(mark)
        return line + mark, rest

    def _step_in_call(self, text: str) -> tuple[str, str]:
        inside, mark, rest = text.partition(TOOL_CALL_END)
        if not mark:
            kept = partial_mark(text, TOOL_CALL_END)
            inside, self._held = text[: len(text) - kept], text[len(text) - kept :]
        inside = inside if self._call_end else inside.lstrip("\n")
        self._call_end = inside[-1:] or self._call_end
        if not mark:
            return inside, ""
        self._is_call, self._is_line_start = False, True
        line_end = "" if self._call_end in ("", "\n") else "\n"
        return f"{inside}{line_end}{_FENCE}\n\n", rest

    def _note_fence(self, line: str) -> None:
        found = _ANY_FENCE.match(line)
        if found is not None and self._fence in ("", found[0]):
            self._fence = "" if self._fence else found[0]


def _is_undecided(line: str) -> bool:
    """Whether the beginning of a line may still become one of a call or of a block of code."""
    is_mark = line != TOOL_CALL_BEGIN and TOOL_CALL_BEGIN.startswith(line)
    return is_mark or line in _FENCE_BEGINNINGS
