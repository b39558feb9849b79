"""What the engine's thread, and that of saving, tell the application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.message import Message

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine, OpeningProgress
    from flashllm.errors import FlashllmError
    from flashllm.library.conversion_job import JobStatus


class Opening(Message):
    """How far the opening of the model is."""

    def __init__(self, progress: OpeningProgress) -> None:
        super().__init__()
        self.progress = progress


class Opened(Message):
    """The model is open."""

    def __init__(self, model: Engine) -> None:
        super().__init__()
        self.model = model


class OpenFailed(Message):
    """The model could not be opened."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Lost(Message):
    """The engine has gone, without being closed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Shortened(Message):
    """The conversation outgrew the context; so many of its oldest messages are left out now."""

    def __init__(self, dropped: int) -> None:
        super().__init__()
        self.dropped = dropped


class Prefilling(Message):
    """Of the tokens of the prompt that the context lacks, so many have been read."""

    def __init__(self, done: float, total: int) -> None:
        super().__init__()
        self.done = done
        self.total = total


class TokensReady(Message):
    """Tokens wait to be taken; posted once for all that come until they are."""


class Answered(Message):
    """The answer is over; `finish_reason` and `report` are the generation's."""

    def __init__(self, finish_reason: str, report: dict[str, Any]) -> None:
        super().__init__()
        self.finish_reason = finish_reason
        self.report = report


class Failed(Message):
    """The answer ended in an error; the tokens that came before stay."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Converting(Message):
    """A conversion went on, or is over."""

    def __init__(self, words: str, status: JobStatus) -> None:
        super().__init__()
        self.words = words
        self.status = status


class SavingFailed(Message):
    """What was said cannot be saved now; it is tried again."""

    def __init__(self, error: FlashllmError) -> None:
        super().__init__()
        self.error = error


class SavingRecovered(Message):
    """Everything is saved again."""
