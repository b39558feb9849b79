"""What comes up to the chat's screen: from the engine's thread, that of saving, and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from textual.message import Message

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine, OpeningProgress
    from flashllm.errors import FlashllmError
    from flashllm.library.conversion_job import JobStatus
    from flashllm.library.models import ModelChoice, OpenRequest
    from flashllm.library.quick_profile_job import QuickProfileStatus
    from flashllm.telemetry.device_rates import DeviceRates
    from flashllm.telemetry.token_record import EngineToken
    from flashllm.ui.chat.status import Phase


class Opening(Message):
    """How far the opening of the model is."""

    def __init__(self, progress: OpeningProgress) -> None:
        super().__init__()
        self.progress = progress


class Closed(Message):
    """The model that was open is closed, so that another can be opened."""


class Opened(Message):
    """The model is open."""

    def __init__(self, request: OpenRequest, model: Engine) -> None:
        super().__init__()
        self.request = request
        self.model = model


class OpenFailed(Message):
    """The model could not be opened.

    `stays`: the one that was open still is. `returns`: that one was closed, and is opened again.
    """

    def __init__(
        self,
        request: OpenRequest,
        error: BaseException,
        *,
        stays: bool = False,
        returns: OpenRequest | None = None,
    ) -> None:
        super().__init__()
        self.request = request
        self.error = error
        self.stays = stays
        self.returns = returns


class Lost(Message):
    """The engine has gone, without being closed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class SlotsReleased(Message):
    """So that both processes stay below the ceiling, so many bytes of slots are given back now."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.nbytes = nbytes


class Warming(Message):
    """The engine, which is idle, has read this share of what fits into memory; 1.0 at the end."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share


class Shortened(Message):
    """The conversation outgrew the context; so many of its oldest messages are left out now."""

    def __init__(self, dropped: int) -> None:
        super().__init__()
        self.dropped = dropped


class ProgressReady(Message):
    """Tokens, or how far the prompt is, wait to be taken; posted once until they are.

    An answer's first token is not kept waiting: it is posted once more, `at_once`.
    """

    def __init__(self, *, at_once: bool) -> None:
        super().__init__()
        self.at_once = at_once


class Answered(Message):
    """The answer is over; `finish_reason` and `report` are the generation's.

    There is no report where the answer was stopped and the engine hangs in the middle of it.
    """

    def __init__(
        self, finish_reason: str, report: dict[str, Any] | None, cautions: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.finish_reason = finish_reason
        self.report = report
        self.cautions = cautions
        """The model's, after the answer: one may have been added."""


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


class Measuring(Message):
    """A quick profile went on, or is over."""

    def __init__(self, status: QuickProfileStatus) -> None:
        super().__init__()
        self.status = status


class RatesRenewed(Message):
    """What is known of the disk and the machine that `engine` runs on has changed."""

    def __init__(self, engine: Engine, rates: DeviceRates) -> None:
        super().__init__()
        self.engine = engine
        self.rates = rates


class SavingFailed(Message):
    """What was said cannot be saved now; it is tried again."""

    def __init__(self, error: FlashllmError) -> None:
        super().__init__()
        self.error = error


class SavingRecovered(Message):
    """Everything is saved again."""


class PhaseEntered(Message):
    """The engine begins to do something else."""

    def __init__(self, phase: Phase) -> None:
        super().__init__()
        self.phase = phase


class ProgressShown(Message):
    """More of the answer `turn_id` is on the screen: these tokens, or the prompt is further."""

    def __init__(self, turn_id: int, tokens: Sequence[EngineToken]) -> None:
        super().__init__()
        self.turn_id = turn_id
        self.tokens = tokens


class PathChanged(Message):
    """Another branch of the conversation is shown, or less of it."""


class SettingsChanged(Message):
    """The next answer is made with other settings, or the theme is another."""


class LimitsAsked(Message):
    """The model is to be opened with this ceiling and this context; None leaves it to the plan."""

    def __init__(self, memory: int | None, context: int | None) -> None:
        super().__init__()
        self.memory = memory
        self.context = context


class SessionChosen(Message):
    """A conversation that was kept is to be opened."""

    def __init__(self, session_id: int) -> None:
        super().__init__()
        self.session_id = session_id


class ModelChosen(Message):
    """Another model is to be opened."""

    def __init__(self, choice: ModelChoice) -> None:
        super().__init__()
        self.choice = choice


class Remarked(Message):
    """A remark for the transcript."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Hinted(Message):
    """A remark for the status line, for a while."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class CopyAsked(Message):
    """This text belongs on the clipboard."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class DrawAsked(Message):
    """The same answer would come again; another one may be drawn, if the user says yes."""


class DeleteAsked(Message):
    """A message is to be deleted with all that follows it, if the user says yes to `question`."""

    def __init__(self, turn_id: int, question: str) -> None:
        super().__init__()
        self.turn_id = turn_id
        self.question = question


class FileRead(Message):
    """A file was read, for the next message."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__()
        self.name = name
        self.text = text


class CommandChosen(Message):
    """A command of the palette: to be run, or only begun in the prompt."""

    def __init__(self, line: str, *, only_begun: bool = False) -> None:
        super().__init__()
        self.line = line
        self.only_begun = only_begun
