"""Texts to evaluate on, as passages of token ids that say which of their tokens count.

What counts is what the runtime would decode token by token: all of a plain text, and the answers
of a conversation, whose questions are prompts. The first `skip` tokens of each passage never do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.errors import UsageError
from flashllm.progress import Progress

from ..calibration_texts import (
    CONTEXT_TOKENS_MAX,
    ContextLimits,
    ConversationEncoder,
    Message,
    TextEncoder,
    encode_plain,
    parse_conversation,
    parse_ids,
)
from .lines import TextFile, evenly, read_text_file

TOKENS = 20_000
TOKENS_MIN = 256


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How much of a text is evaluated, and which of it counts."""

    tokens: int = TOKENS
    """About how many tokens: evenly from all lines of a file, or from the start of a plain text."""
    skip: int = 0
    """Tokens at the start of each passage that are read, but not counted."""
    all_tokens: bool = False
    """Whether all of a conversation counts, and not its answers only."""
    seed: int = 0
    """Decides whose friends are looked for."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Passage:
    """Token ids, and for each whether it counts, both [tokens]."""

    ids: list[int]
    counted: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Text:
    """Passages of a file, in the order of the file."""

    file: TextFile
    passages: tuple[Passage, ...]

    @property
    def tokens(self) -> int:
        """Tokens that the model is given."""
        return sum(len(passage.ids) for passage in self.passages)

    @property
    def counted(self) -> int:
        """Tokens that count."""
        return sum(int(passage.counted.sum()) for passage in self.passages)


def read_passages(
    path: Path,
    tokenizer: TextEncoder | None,
    limits: ContextLimits,
    settings: TextSettings,
    progress: Progress,
) -> Text:
    """Reads `.jsonl` (conversations), `.ids` (token ids) or plain text; passages that fit `limits`.

    Raises `UsageError` for a file that is absent, empty, not UTF-8, malformed or too short.
    """
    file = read_text_file(path, progress)
    if path.suffix == ".ids":
        passages = _taken(file, lambda n, line: _whole(parse_ids(path, n, line, limits)), settings)
    elif tokenizer is None:
        raise UsageError(f"{path}: the model has no tokenizer; give token ids in a .ids file")
    elif path.suffix == ".jsonl":
        conversations = _Conversations(path, tokenizer, settings.all_tokens)
        passages = _taken(file, conversations.passage, settings)
    else:
        passages = [_whole(encode_plain(file.text, tokenizer, settings.tokens))]
    longest = min(limits.max_positions, CONTEXT_TOKENS_MAX)
    pieces = [piece for passage in passages for piece in _pieces(passage, longest, limits.bos_id)]
    for piece in pieces:
        piece.counted[: settings.skip] = False
    text = Text(file, tuple(piece for piece in pieces if piece.counted.any()))
    if text.counted < TOKENS_MIN:
        raise UsageError(
            f"{path}: {text.counted:,} tokens that count are too few to evaluate on; "
            f"give at least {TOKENS_MIN}, better {TOKENS:,}, and look at --tokens and --skip"
        )
    return text


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences begin with that are the same."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class _Conversations:
    """Lines of conversations as passages whose answers count.

    A line with an `expected` answer beside its messages ends with that answer.
    """

    def __init__(self, path: Path, tokenizer: TextEncoder, all_tokens: bool) -> None:
        self._path = path
        self._tokenizer = tokenizer
        self._talks = ConversationEncoder(tokenizer)
        self._all_tokens = all_tokens

    def passage(self, number: int, line: str) -> Passage:
        messages = parse_conversation(self._path, number, line)
        value = json.loads(line)
        if isinstance(value, dict) and isinstance(value.get("expected"), str):
            messages.append({"role": "assistant", "content": value["expected"]})
        passage = _whole(self._talks.encode(messages))
        answers = self._answers(messages, passage.ids)
        if answers and not self._all_tokens:
            passage.counted[:] = False
            for first, end in answers:
                passage.counted[first:end] = True
        return passage

    def _answers(self, messages: list[Message], ids: list[int]) -> list[tuple[int, int]]:
        spans = []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self._tokenizer.encode_chat(messages[:number]) if number else []
                until = self._talks.encode(messages[: number + 1])
                spans.append((common_prefix(ids, before), common_prefix(ids, until)))
        return spans


def _taken(
    file: TextFile, parse: Callable[[int, str], Passage], settings: TextSettings
) -> list[Passage]:
    """About as many tokens as are wanted, from lines evenly over the file, in its order."""
    lines = file.lines()
    taken: dict[int, Passage] = {}
    tokens = 0
    for index in evenly(len(lines)):
        if tokens >= settings.tokens:
            break
        passage = parse(*lines[index])
        room = settings.tokens - tokens
        taken[index] = Passage(passage.ids[:room], passage.counted[:room])
        tokens += len(taken[index].ids)
    return [taken[index] for index in sorted(taken)]


def _whole(ids: list[int]) -> Passage:
    return Passage(ids, np.ones(len(ids), np.bool_))


def _pieces(passage: Passage, longest: int, bos_id: int | None) -> list[Passage]:
    """Pieces of at most `longest` ids; where the passage begins with bos, all of them do."""
    ids, counted = passage.ids, passage.counted
    if len(ids) <= longest:
        return [passage] if ids else []
    start = 1 if ids[0] == bos_id else 0
    step = max(1, longest - start)
    first, body = counted[:start], counted[start:]
    return [
        Passage(
            ids[:start] + ids[start + at : start + at + step],
            np.concatenate([first if at == 0 else first & False, body[at : at + step]]),
        )
        for at in range(0, len(body), step)
    ]
