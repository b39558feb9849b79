"""Chat templates: from messages to text, with what users wrote kept separate from the rest.

The contents of messages never reach the template. It sees placeholders that nobody can guess; its
output is split at them, and only the template's own text may become control tokens. It does see
the marks of an answer's reasoning, where it looks for them. Not supported: other changes that a
template would make inside a message, which it cannot see. Templates of channels get reasoning
apart from the answer.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path

from flashllm.errors import ModelError, UsageError
from flashllm.options import (
    DEFAULT_REASONING,
    EFFORT_VARIABLE,
    THINK_VARIABLE,
    ReasoningOptions,
)
from flashllm.tokenizer import reasoning
from flashllm.tokenizer.channels import uses_channels

TEMPLATE_BYTES_MAX = 1 << 16  # the longest known in the wild has about 15 KiB
OUTPUT_CHARACTERS_MAX = 1 << 22
CPU_SECONDS_MAX = 2
WALL_SECONDS_MAX = 120.0
"""The limit on processor time ends what computes; this one is for what waits. On a machine that
others use, a right template takes long: it may not become the error of a batch's row."""
MEMORY_BYTES_MAX = 1 << 29

_REASONING_MARK = re.compile("(</?think>)")
_THINKING_FIELD = re.compile(r"\bthinking\b")
"""Where a template of channels reads the reasoning of an answer."""

ROLES = ("system", "user", "assistant")
PLAIN_STOP = "\nUser:"
"""The end of an answer with the plain template, if the model continues with a next question."""

_PROCESS = Path(__file__).with_name("template_process.py")
# Private-use borders and digits: no case, nothing to escape, no white space.
_PLACEHOLDER = re.compile("\ue000[0-9]{39}\ue001")
# Also in the escaped forms of Python and JSON.
_PLACEHOLDER_PART = re.compile("[\ue000\ue001]|\\\\ue00[01]")


Place = tuple[int, int]
"""Number of a message, and of the piece of it."""

Message = Mapping[str, str]
"""One turn of a conversation: its `role` (system, user, assistant) and its `content`."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a rendered conversation: a message's content, or the template's own text."""

    text: str
    message: int | None = None
    """Number of the message whose content it is; None for the template's own text."""


def check_messages(messages: Sequence[Message]) -> None:
    """Raises `UsageError` for an empty list and for invalid messages."""
    if not messages:
        raise UsageError("the conversation is empty; there is nothing to answer")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UsageError(
                f"message {number} is {message!r:.80}; expected a mapping with role and content"
            )
        if message.get("role") not in ROLES:
            known = ", ".join(ROLES)
            raise UsageError(
                f"message {number}: unknown role {message.get('role')!r}; expected one of {known}"
            )
        if not isinstance(message.get("content"), str):
            raise UsageError(f"message {number}: has no content; expected a text")


def render_plain(messages: Sequence[Message]) -> list[Segment]:
    """For models without a template: `User: ...`, `Assistant: ...`, ready for the next answer."""
    segments: list[Segment] = []
    for number, message in enumerate(messages):
        before = {"system": "", "user": "User: ", "assistant": "Assistant: "}[message["role"]]
        after = "\n\n" if message["role"] == "system" else "\n"
        segments += (
            Segment(before),
            Segment(message["content"].strip(), number),
            Segment(after),
        )
    return [*segments, Segment("Assistant:")]


def reasoning_variables_in(template: str) -> frozenset[str]:
    """The variables of reasoning, by their names in `options`, that a template reads."""
    names = (THINK_VARIABLE, EFFORT_VARIABLE)
    return frozenset(name for name in names if re.search(rf"\b{name}\b", template))


def render_template(
    template: str,
    messages: Sequence[Message],
    special_tokens: Mapping[str, str],
    options: ReasoningOptions = DEFAULT_REASONING,
) -> list[Segment]:
    """Renders a Jinja chat template with the start of an answer at its end.

    `special_tokens` are the template's variables (`bos_token`, ...), and so are those of `options`.
    Raises `UsageError` where the template refuses the conversation, `ModelError` where it is broken
    or takes too long.
    """
    cut = [_cut(message, template) for message in messages]
    shapes = tuple(
        _Shape(message["role"], tuple((p.field, None if p.is_hidden else p.text) for p in pieces))
        for message, pieces in zip(messages, cut, strict=True)
    )
    now = _first_moment(datetime.now().date())
    variables = tuple(sorted({**special_tokens, **options.template_variables()}.items()))
    skeleton = _skeleton(template, variables, shapes, now)
    return [
        Segment(part) if isinstance(part, str) else Segment(cut[part[0]][part[1]].text, part[0])
        for part in skeleton
    ]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a message's text, in the field where the template looks for it."""

    text: str
    is_hidden: bool
    """Whether the template sees a placeholder instead."""
    field: str = "content"


def _cut(message: Message, template: str) -> list[_Piece]:
    """The pieces of a message, those of one field in order.

    White space around a text is not hidden from the template, and neither are the marks of an
    answer's reasoning where it looks for them: it leaves the reasoning of earlier answers out.
    A template of channels would refuse or send marks; it gets the answer alone, and the reasoning
    in a field of its own where it reads that.
    """
    content = message["content"]
    if message["role"] == "assistant" and uses_channels(template):
        thought, answer = reasoning.split(content)
        is_read = _THINKING_FIELD.search(template) is not None
        pieces = _pieces(thought.strip(), "thinking") if is_read else []
        return pieces + _pieces(answer.lstrip() if thought else answer)
    is_marked = reasoning.END in template and reasoning.END in content
    if not is_marked or message["role"] != "assistant":
        return _pieces(content)
    return [
        piece
        for chunk in _REASONING_MARK.split(content)
        for piece in (
            [_Piece(chunk, is_hidden=False)] if _REASONING_MARK.fullmatch(chunk) else _pieces(chunk)
        )
    ]


def _pieces(text: str, field: str = "content") -> list[_Piece]:
    """A text, hidden, and the white space around it."""
    core = text.strip()
    before, _, after = text.partition(core) if core else (text, "", "")
    pieces = (_Piece(before, False, field), _Piece(core, True, field), _Piece(after, False, field))
    return [piece for piece in pieces if piece.text]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a template can see of a message."""

    role: str
    pieces: tuple[tuple[str, str | None], ...]
    """Fields with their texts in order, None for a text that a placeholder stands for."""


@functools.lru_cache(maxsize=8)
def _first_moment(day: date) -> str:
    """When a template was first rendered today; the time that it shows is the same until tomorrow.

    A conversation whose beginning changed would have to be read again from there.
    """
    now = datetime.now()
    return (now if now.date() == day else datetime.combine(day, time.max)).isoformat()


# A rendering takes a process, some 60 ms: conversations of one shape share it.
@functools.lru_cache(maxsize=256)
def _skeleton(
    template: str,
    given: tuple[tuple[str, str | bool], ...],
    shapes: tuple[_Shape, ...],
    now: str,
) -> tuple[str | Place, ...]:
    """The rendered template: its own text, and the places of the texts between.

    `given` are variables with their values.
    """
    places: dict[str, Place] = {}
    messages = []
    for number, shape in enumerate(shapes):
        message = {"role": shape.role, "content": ""}
        for index, (field, text) in enumerate(shape.pieces):
            if text is None:
                text = f"\ue000{secrets.randbelow(10**39):039d}\ue001"
                places[text] = (number, index)
            message[field] = message.get(field, "") + text
        messages.append(message)
    variables = {
        **dict(given),
        "messages": messages,
        "add_generation_prompt": True,
        "tools": None,
        "documents": None,
    }
    return _split(_run_process(template, variables, now), places)


def _split(rendered: str, places: Mapping[str, Place]) -> tuple[str | Place, ...]:
    parts: list[str | Place] = []
    position = 0
    for match in _PLACEHOLDER.finditer(rendered):
        if match[0] in places:
            parts += (rendered[position : match.start()], places[match[0]])
            position = match.end()
    parts.append(rendered[position:])
    if any(isinstance(part, str) and _PLACEHOLDER_PART.search(part) for part in parts):
        raise ModelError("chat template: it cuts messages into pieces; try --raw")
    return tuple(parts)


def _run_process(template: str, variables: Mapping[str, object], now: str) -> str:
    if len(template.encode("utf-8", "replace")) > TEMPLATE_BYTES_MAX:
        raise ModelError(f"chat template: longer than {TEMPLATE_BYTES_MAX} bytes; try --raw")
    request = {
        "template": template,
        "variables": variables,
        "now": now,
        "output_limit": OUTPUT_CHARACTERS_MAX,
        "cpu_seconds": CPU_SECONDS_MAX,
        "memory_bytes": MEMORY_BYTES_MAX,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_PROCESS)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=WALL_SECONDS_MAX,
            start_new_session=True,  # Ctrl-C on the terminal is for us, not for the child
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError("chat template: it takes too long; try --raw") from error
    except OSError as error:
        raise ModelError(
            f"chat template: its process does not start ({error}); try --raw"
        ) from error
    return _read_answer(done)


def _read_answer(done: subprocess.CompletedProcess[bytes]) -> str:
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        limits = {-signal.SIGKILL, -signal.SIGXCPU}  # how the limit on CPU time ends a process
        too_long = done.returncode in limits
        reason = "it takes too long" if too_long else f"its process ended with {done.returncode}"
        raise ModelError(f"chat template: {reason}; try --raw") from error
    if "text" in answer:
        return str(answer["text"])
    reason = str(answer["error"])[:500]
    if answer["refused"]:
        raise UsageError(f"the model's chat template refuses this conversation: {reason}")
    raise ModelError(f"chat template: it is broken ({reason}); try --raw")
