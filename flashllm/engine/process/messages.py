"""Messages between the application and the engine's process: plain data, pickled.

Both ends are processes of one user and one installation, and nobody else can write to the socket
between them, so pickle is safe here; content of models and files is only text within messages.
Nothing here loads an engine, nor makes the reader load one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from flashllm import errors
from flashllm.engine.protocol import GenerateOptions, OpeningProgress
from flashllm.errors import FlashllmError
from flashllm.options import ModelOptions

if TYPE_CHECKING:
    from flashllm.planning.model_info import ModelInfo
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.costs import PrefillCost, TokenCost
    from flashllm.telemetry.device_rates import DeviceRates


OPENING = 0
"""The number of all messages about opening; calls and answers have higher numbers."""
WARMING = -1
"""The number of all messages about what an idle engine reads."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to the other process."""

    kind: str
    """Name of its class in `errors`, or MemoryError; empty for any other exception."""
    text: str
    attributes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """An error as text and plain values."""
        kind = type(error).__name__
        if isinstance(error, FlashllmError):
            return cls(kind, str(error), dict(vars(error)))
        if isinstance(error, MemoryError):
            return cls(kind, str(error))
        return cls("", f"unexpected: {kind}: {error}; the log says where")

    def error(self) -> BaseException:
        """The same error, to be raised here."""
        if self.kind == MemoryError.__name__:
            return MemoryError(self.text)
        known = getattr(errors, self.kind, FlashllmError) if self.kind else FlashllmError
        error: FlashllmError = known.__new__(known, self.text)
        vars(error).update(self.attributes)
        return error


# To the engine's process


@dataclass(frozen=True, slots=True)
class Open:
    """Open a model; sent once. No path means the demo."""

    path: str | None
    options: ModelOptions


@dataclass(frozen=True, slots=True)
class Generate:
    """Begin an answer, as soon as the previous one has ended."""

    number: int
    ids: Sequence[int]
    options: GenerateOptions


@dataclass(frozen=True, slots=True)
class Cancel:
    """End all answers up to this number, also those that have not begun."""

    number: int


@dataclass(frozen=True, slots=True)
class Call:
    """Answer a question, while an answer may be written."""

    number: int
    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Close:
    """Release everything and end."""


# To the application


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything is loaded that opening needs."""

    number: int = OPENING


@dataclass(frozen=True, slots=True)
class Opening:
    """Progress of opening."""

    progress: OpeningProgress
    number: int = OPENING
    supersedes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Opened:
    """The model is open; carries the facts about it."""

    info: ModelInfo
    plan: Plan
    has_tokenizer: bool
    has_chat_template: bool
    reasoning_variables: frozenset[str]
    cautions: list[str]
    io_report: dict[str, Any]
    rates: DeviceRates
    wants_quick_profile: bool
    number: int = OPENING


@dataclass(frozen=True, slots=True)
class Warming:
    """How much of what fits into memory an idle engine has looked at; 1.0 at the end."""

    share: float
    number: int = WARMING
    supersedes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Prefilling:
    """Progress of reading the prompt, in tokens."""

    number: int
    done: float
    total: int
    supersedes: ClassVar[bool] = True
    """Of several in a row, only the last needs to be sent."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt has been read; carries its cost."""

    number: int
    prefill: PrefillCost
    reused_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token."""

    number: int
    id: int
    text: str
    cost: TokenCost

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"id": self.id, "text": self.text, "cost": self.cost.to_json()}


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer is over."""

    number: int
    finish_reason: str
    text: str
    ids: list[int]
    report: dict[str, Any]
    cautions: list[str]
    """As `Opened.cautions`, by now."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The return value of a call."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The error that ended opening, an answer or a call."""

    number: int
    failure: Failure


FINAL_MESSAGES = (Opened, Finished, Returned, Raised)
"""Kinds of messages of which one is the last under its number."""
