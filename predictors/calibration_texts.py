"""Finds calibration texts, reads them, and cuts them into contexts of token ids.

`.jsonl` has one conversation per line (a list of messages, or an object with `messages`), `.ids`
one context of token ids per line; any other file is plain text in UTF-8.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from flashllm.errors import ReadFailed, UsageError
from flashllm.progress import Progress, SilentProgress

TEXT_BYTES_MAX = 64 << 20
TOKENS_MIN = 1_000
# So many that 300,000 train; the rest decides and reports. On fewer, predictors generalise badly:
# on OPT-1.3B, others found 6,000 to be of no use and 300,000 to cost 1 to 3 % of perplexity.
TOKENS_MAX = 375_000
TOKENS_GOOD = 50_000
CONTEXTS_MIN = 20
CONTEXT_TOKENS_MAX = 2_048
CHARACTERS_PER_TOKEN_MAX = 8
# Of a text as a whole.
BYTES_PER_TOKEN_MIN = 3
NAMES = ("calibration.jsonl", "calibration.ids")
ROLES = ("system", "user", "assistant")

Message = dict[str, str]
Context = list[int]


class TextEncoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, after bos if the model has it."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation, ending with the prompt for another answer."""


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """Limits of contexts: the model's vocabulary and positions, and the number of tokens wanted."""

    vocab_size: int
    max_positions: int
    tokens_max: int
    bos_id: int | None = None


def find_calibration(directory: Path, given: Path | None) -> Path:
    """The file asked for, or the one in or next to the model's directory.

    `UsageError` if there is none; call it before any long work.
    """
    if given is not None:
        if not given.is_file():
            what = "is not a file" if given.exists() else "no such file"
            raise UsageError(f"{given}: {what}; give a calibration text (.jsonl, .txt or .ids)")
        return given
    for folder in (directory, directory.resolve().parent):
        for name in NAMES:
            if (folder / name).is_file():
                return folder / name
    raise UsageError(
        f"{directory}: no {' or '.join(NAMES)} in the model's directory or beside it; "
        "give a text to calibrate on with --calibration FILE (.jsonl, .txt or .ids)"
    )


def check_calibration(path: Path, vocab_size: int, has_tokenizer: bool) -> int:
    """Raises what `read_contexts` would, as far as no tokenizer is needed for that.

    Returns an upper bound of its tokens, exact for a `.ids` file. For use before long work.
    """
    raw, text = _read(path, has_tokenizer, SilentProgress())
    if path.suffix == ".ids":
        limits = ContextLimits(vocab_size, CONTEXT_TOKENS_MAX, TOKENS_MAX)
        tokens = sum(len(parse_ids(path, n, line, limits)) for n, line in _lines(text))
        _check_length(path, tokens, SilentProgress())
        return tokens
    if path.suffix == ".jsonl":
        for number, line in _lines(text):
            parse_conversation(path, number, line)
    elif len(raw) < TOKENS_MIN - 1:  # no token is less than a byte, but for bos
        raise _too_short(path, f"{len(raw):,} bytes of text")
    return len(raw) // BYTES_PER_TOKEN_MIN


def read_contexts(
    path: Path, tokenizer: TextEncoder | None, limits: ContextLimits, seed: int, progress: Progress
) -> list[Context]:
    """Contexts of token ids in a seeded order, about `limits.tokens_max` tokens.

    Raises `UsageError` for a file that is absent, empty, not UTF-8, malformed or too short.
    """
    _, text = _read(path, tokenizer is not None, progress)
    if path.suffix == ".ids" or tokenizer is None:
        contexts = _shuffled(
            text, lambda n, line: parse_ids(path, n, line, limits), limits, seed, progress
        )
    elif path.suffix == ".jsonl":
        talks = ConversationEncoder(tokenizer)
        contexts = _shuffled(
            text,
            lambda n, line: talks.encode(parse_conversation(path, n, line)),
            limits,
            seed,
            progress,
        )
    else:
        contexts = [encode_plain(text, tokenizer, limits.tokens_max)]
    _check_length(path, sum(map(len, contexts)), progress)
    contexts = _cut(contexts, limits)
    random.Random(seed).shuffle(contexts)
    return contexts


def _read(path: Path, has_tokenizer: bool, progress: Progress) -> tuple[bytes, str]:
    """The content of a file, which must not be empty and needs a tokenizer unless it has ids."""
    raw, text = read_text(path, progress)
    if not text.strip():
        raise UsageError(f"{path}: the calibration text is empty; give another with --calibration")
    if path.suffix != ".ids" and not has_tokenizer:
        raise UsageError(f"{path}: the model has no tokenizer; give token ids in a .ids file")
    return raw, text


class ConversationEncoder:
    """Encodes conversations as the model would see them, up to the end of their last message.

    `encode_chat` ends with the prompt for another answer, which never follows an answer, so it is
    removed. It is found as the common ending of conversations with the same roles.
    """

    def __init__(self, tokenizer: TextEncoder) -> None:
        self._tokenizer = tokenizer
        self._prompts: dict[tuple[str, ...], int] = {}

    def encode(self, messages: Sequence[Message]) -> Context:
        """Token ids of a conversation."""
        ids = self._tokenizer.encode_chat(messages)
        roles = tuple(message["role"] for message in messages)
        if roles[-1] != "assistant" or len(roles) == 1:
            return ids
        if roles not in self._prompts:
            self._prompts[roles] = self._prompt_tokens(roles)
        return ids[: len(ids) - self._prompts[roles]]

    def _prompt_tokens(self, roles: Sequence[str]) -> int:
        contents = [str(number % 10) for number in range(len(roles))]  # neighbours differ
        messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
        whole = self._tokenizer.encode_chat(messages)
        before = self._tokenizer.encode_chat(messages[:-1])
        pairs = zip(reversed(whole), reversed(before), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def read_text(path: Path, progress: Progress) -> tuple[bytes, str]:
    """Bytes and text of a UTF-8 file; only the beginning of a long one, with a warning."""
    try:
        with path.open("rb") as file:
            raw = file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        raise ReadFailed(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > TEXT_BYTES_MAX:
        raw = raw[: _cut_at(raw)]
        progress.warn(f"{path}: only the first {TEXT_BYTES_MAX >> 20} MiB are used")
    try:
        return raw, raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: not UTF-8 text (byte {error.start}); convert it, or give another file"
        ) from error


def _cut_at(raw: bytes) -> int:
    """The end of the last line that fits; within a single line, the start of its last character."""
    end = raw.rfind(b"\n", 0, TEXT_BYTES_MAX) + 1
    if end:
        return end
    end = TEXT_BYTES_MAX
    while end and raw[end] & 0xC0 == 0x80:
        end -= 1
    return end


def encode_plain(text: str, tokenizer: TextEncoder, tokens_max: int) -> Context:
    """The first `tokens_max` tokens; not much more of a long text is encoded."""
    characters = tokens_max * CHARACTERS_PER_TOKEN_MAX
    while True:
        ids = tokenizer.encode(text[:characters])
        # A cut may end in the middle of a token; one within the part that is kept does not.
        if characters >= len(text) or len(ids) > tokens_max:
            return ids[:tokens_max]
        characters *= 2


def _lines(text: str) -> list[tuple[int, str]]:
    """Lines that are not empty, with their numbers."""
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _shuffled(
    text: str,
    encode: Callable[[int, str], Context],
    limits: ContextLimits,
    seed: int,
    progress: Progress,
) -> list[Context]:
    """The lines in a seeded order, encoded one by one until there are enough tokens."""
    lines = _lines(text)
    random.Random(seed).shuffle(lines)
    contexts: list[Context] = []
    tokens = 0
    progress.start("encoding the calibration text", sum(len(line) for _, line in lines))
    for number, line in lines:
        if tokens >= limits.tokens_max:
            break
        contexts.append(encode(number, line)[: limits.tokens_max - tokens])
        tokens += len(contexts[-1])
        progress.advance(len(line))
    progress.finish()
    return contexts


def parse_ids(path: Path, number: int, line: str, limits: ContextLimits) -> Context:
    """The token ids in a line; `UsageError` for anything else, or ids beyond the vocabulary."""
    words = line.split()
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"{path}, line {number}: expected token ids, separated by spaces")
    ids = [int(word) if len(word) < 10 else limits.vocab_size for word in words]
    if ids and max(ids) >= limits.vocab_size:
        raise UsageError(
            f"{path}, line {number}: a token id beyond the vocabulary of {limits.vocab_size:,}"
        )
    return ids


def parse_conversation(path: Path, number: int, line: str) -> list[Message]:
    """The messages in a line; `UsageError` unless it is a conversation."""
    where = f"{path}, line {number}"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error}); expected a list of messages") from error
    return checked_messages(where, value.get("messages") if isinstance(value, dict) else value)


def checked_messages(where: str, messages: object) -> list[Message]:
    """The messages of a conversation; `UsageError` unless it is one."""
    if not isinstance(messages, list) or not messages:
        raise UsageError(f"{where}: expected a list of messages, each with role and content")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise UsageError(f"{where}: a message whose role is none of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise UsageError(f"{where}: a message whose content is no text")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _cut(contexts: list[Context], limits: ContextLimits) -> list[Context]:
    """Contexts that fit the model; enough of them to hold out whole ones."""
    longest = min(limits.max_positions, CONTEXT_TOKENS_MAX)
    if len(contexts) < CONTEXTS_MIN:
        longest = min(longest, max(2, sum(map(len, contexts)) // CONTEXTS_MIN))
    return [piece for context in contexts for piece in _pieces(context, longest, limits.bos_id)]


def _pieces(context: Context, longest: int, bos_id: int | None) -> list[Context]:
    """Pieces of at most `longest` ids; if the context begins with bos, all pieces do."""
    if len(context) <= longest:
        return [context] if context else []
    start = context[:1] if context[0] == bos_id else []
    step = max(1, longest - len(start))
    body = context[len(start) :]
    return [start + body[i : i + step] for i in range(0, len(body), step)]


def _check_length(path: Path, tokens: int, progress: Progress) -> None:
    if tokens < TOKENS_MIN:
        raise _too_short(path, f"{tokens:,} tokens")
    if tokens < TOKENS_GOOD:
        progress.warn(
            f"{path}: {tokens:,} tokens to calibrate on; predictors from fewer than "
            f"{TOKENS_GOOD:,} miss more on other text"
        )


def _too_short(path: Path, what: str) -> UsageError:
    return UsageError(
        f"{path}: {what} are too few to calibrate on; "
        f"give at least {TOKENS_MIN:,} tokens, better {TOKENS_GOOD:,} and more"
    )
