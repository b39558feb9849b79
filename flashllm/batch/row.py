"""A row of a batch: what it asks for, each field checked.

Rows are untrusted. Whatever is wrong with one becomes a `RowFailure`, which is its answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from flashllm.engine.sampling import Sampling
from flashllm.errors import BatchRowError, UsageError
from flashllm.options import DEFAULT_MAX_TOKENS
from flashllm.settings.nearest import nearest
from flashllm.tokenizer.chat_template import Message, check_messages

STOPS_MAX = 64
TOKENS_MAX = 1 << 31
SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
"""Keys of a row that are fields of `Sampling`."""
ROW_KEYS = ("id", "prompt", "messages", "max_tokens", *SAMPLING_KEYS, "stop")
_WHOLE_KEYS = ("top_k", "seed")

RowForm = Literal["rows", "openai"]
"""How a file spells rows and answers: by keys of our own, or as OpenAI's batch files do."""
RowId = str | int | None


@dataclass(frozen=True, slots=True)
class RowDefaults:
    """What holds for rows that do not say otherwise."""

    max_tokens: int = DEFAULT_MAX_TOKENS
    sampling: Sampling = field(default_factory=Sampling)
    """Its seed is mixed with a row's id, so that rows differ whatever their order."""
    stop: tuple[str, ...] = ()
    system: str = ""
    """System prompt of rows with a prompt; messages bring their own."""
    raw: bool = False
    """Whether prompts are texts to be continued, whatever the model has."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a prompt as text or token ids, or messages, and how to answer it."""

    line: int
    """Its line in the file, counted from 1."""
    id: RowId
    prompt: str | tuple[int, ...]
    messages: tuple[Message, ...]
    """Empty for a row with a prompt."""
    raw: bool
    """Whether the prompt is a text to be continued, whatever the model has."""
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row without an answer, and why: a code for programs, a sentence for people."""

    line: int
    id: RowId
    code: str
    message: str

    @classmethod
    def of(cls, line: int, id_: RowId, error: BatchRowError) -> RowFailure:
        """The failure of an error."""
        return cls(line, id_, error.code, str(error))


def make_row(
    values: Mapping[str, Any], line: int, id_: RowId, defaults: RowDefaults, *, raw: bool
) -> Row:
    """The row that `values` spell by ROW_KEYS, null being as good as absent; `BatchRowError`."""
    prompt, messages = values.get("prompt"), values.get("messages")
    if (prompt is None) == (messages is None):
        if prompt is None:
            raise BatchRowError("missing_key", "the row has neither a prompt nor messages")
        raise BatchRowError("invalid_value", "the row has a prompt and messages; give one of them")
    return Row(
        line,
        id_,
        "" if prompt is None else _prompt(prompt),
        () if messages is None else _messages(messages),
        raw,
        _max_tokens(values.get("max_tokens"), defaults),
        _sampling(values, id_, defaults.sampling),
        defaults.stop if values.get("stop") is None else _stops(values["stop"]),
    )


def check_keys(values: Iterable[str], known: Iterable[str], where: str = "") -> None:
    """`BatchRowError` for a key that nobody here knows, with the nearest that is known."""
    known = tuple(known)
    for key in values:
        if key not in known:
            near = nearest(key[:80], known)
            meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise BatchRowError("unknown_key", f"there is no key {where}{key[:80]!r}; {meant}")


def invalid(key: str, value: object, expected: str) -> BatchRowError:
    """The error of a value that its key cannot have."""
    return BatchRowError("invalid_value", f"{key} is {value!r:.80}; expected {expected}")


def row_seed(seed: int, id_: RowId) -> int:
    """The seed of a row that has none: made of the run's and of its id, whatever its place."""
    text = f"{seed}:{id_}".encode("utf-8", "surrogatepass")
    # 48 bits: programs whose numbers are all floats read it back unchanged.
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "little")


def _prompt(value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise invalid("prompt", value, "some text")
        return value
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return tuple(value)
    raise invalid("prompt", value, "a text, or a list of token ids")


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise invalid("messages", value, 'a list like [{"role": "user", "content": "..."}]')
    try:
        check_messages(value)
    except UsageError as error:
        raise BatchRowError("invalid_value", f"messages: {error}") from error
    return tuple({"role": each["role"], "content": each["content"]} for each in value)


def _max_tokens(value: object, defaults: RowDefaults) -> int:
    if value is None:
        return defaults.max_tokens
    if type(value) is not int or not 1 <= value < TOKENS_MAX:
        raise invalid("max_tokens", value, "a whole number, 1 or more")
    return value


def _sampling(values: Mapping[str, Any], id_: RowId, defaults: Sampling) -> Sampling:
    given: dict[str, Any] = {"seed": row_seed(defaults.seed, id_)}
    for key in SAMPLING_KEYS:
        value = values.get(key)
        if value is None:
            continue
        if type(value) is not int and (key in _WHOLE_KEYS or type(value) is not float):
            raise invalid(key, value, "a whole number" if key in _WHOLE_KEYS else "a number")
        try:
            given[key] = value if key in _WHOLE_KEYS else float(value)
        except OverflowError as error:
            raise invalid(key, value, "a smaller number") from error
    try:
        return replace(defaults, **given)
    except UsageError as error:
        raise BatchRowError("invalid_value", str(error).removeprefix("sampling: ")) from error


def _stops(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > STOPS_MAX:
        raise invalid("stop", value, f"a text, or a list of at most {STOPS_MAX} texts")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise invalid("stop", stop, "texts that are not empty")
    return tuple(stops)
