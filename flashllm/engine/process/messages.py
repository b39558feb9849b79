"""Messages between the application and the engine's process: plain data, pickled.

Both ends are processes of one user and one installation, and nobody else can write to the socket
between them, so pickle is safe here; what a model or a file says is text inside of it. Nothing here
loads an engine, nor makes the reader load one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from flashllm import errors
from flashllm.engine.protocol import OpeningProgress
from flashllm.errors import FlashllmError
from flashllm.options import ModelOptions

if TYPE_CHECKING:
    from flashllm.engine.sampling import Sampling
    from flashllm.planning.model_info import ModelInfo
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.costs import PrefillCost, TokenCost
    from flashllm.telemetry.device_rates import DeviceRates


OPENING = 0
"""The number of all messages about opening; calls and answers have higher numbers."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to the other process."""

    kind: str
    """Its class in `errors`; MemoryError; or nothing for what nobody foresaw."""
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
    """Open a model; said once. No path is the demo."""

    path: str | None
    options: ModelOptions


@dataclass(frozen=True, slots=True)
class Generate:
    """Begin an answer, as soon as the one before has ended."""

    number: int
    ids: Sequence[int]
    max_tokens: int
    sampling: Sampling | None
    stop: Sequence[str]
    telemetry: bool
    answer: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the answer of this number and those before, also where they have not begun."""

    number: int


@dataclass(frozen=True, slots=True)
class Call:
    """Answer a question, while an answer may be written."""

    number: int
    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Close:
    """Let go of everything and end."""


# To the application


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything is loaded that opening needs."""

    number: int = OPENING


@dataclass(frozen=True, slots=True)
class Opening:
    """How far opening is."""

    progress: OpeningProgress
    number: int = OPENING
    supersedes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Opened:
    """The model is open, and what is known of it for as long as it is."""

    info: ModelInfo
    plan: Plan
    has_tokenizer: bool
    has_chat_template: bool
    cautions: list[str]
    io_report: dict[str, Any]
    rates: DeviceRates
    number: int = OPENING


@dataclass(frozen=True, slots=True)
class Prefilling:
    """So many tokens of the prompt have been read."""

    number: int
    done: float
    total: int
    supersedes: ClassVar[bool] = True
    """Only the last of several in a row is of interest."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt has been read, and what that cost."""

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


@dataclass(frozen=True, slots=True)
class Returned:
    """What a call was answered with."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The error with which opening, an answer or a call ended."""

    number: int
    failure: Failure


FINAL_MESSAGES = (Opened, Finished, Returned, Raised)
"""The last message under its number is one of these."""
