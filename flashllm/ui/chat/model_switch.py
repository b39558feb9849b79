"""From one model to another: which is open, which is wanted, and what is said where that fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.errors import MemoryCeilingTooSmall
from flashllm.library.directories import shown_name
from flashllm.library.models import ModelChoice, OpenRequest
from flashllm.ui.chat import messages
from flashllm.ui.chat.answering import explain
from flashllm.ui.chat.status import Phase
from flashllm.units import MIB
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.ui.chat.answer_settings import AnswerSettings
    from flashllm.ui.chat.autosave import Autosave
    from flashllm.ui.chat.engine_thread import EngineThread
    from flashllm.ui.chat.quick_profile import QuickProfile
    from flashllm.ui.chat.status import Activity
    from flashllm.ui.panels.panels import SidePanels
    from flashllm.ui.widgets.owner import Owner

MARGIN_MIB = 8
"""Added to the least memory that works, when it is advised."""
TRY_AGAIN = "Ctrl+R tries again, F5 opens another model, Ctrl+Q leaves."


class ModelSwitch:
    """The engine's thread opens and closes; here is what follows for the rest of the chat.

    `owner` gets `PhaseEntered`.
    """

    def __init__(
        self,
        owner: Owner,
        engine: EngineThread,
        activity: Activity,
        settings: AnswerSettings,
        saving: Autosave,
        panels: SidePanels,
        quick_profile: QuickProfile,
        wanted: OpenRequest,
    ) -> None:
        self.wanted = wanted
        """What is open, is being opened, or failed with nothing open; this is opened again."""
        self.opened: OpenRequest | None = None
        """What is open."""
        self.has_chat_template = True
        """Of the model that is open, or was last."""
        self._reasoning_variables: frozenset[str] = frozenset()
        """What the template of that model reads."""
        self._owner = owner
        self._engine = engine
        self._activity = activity
        self._settings = settings
        self._saving = saving
        self._panels = panels
        self._quick_profile = quick_profile
        self._remember_limits(wanted)

    def open(self, choice: ModelChoice) -> None:
        """Opens a model, in as much memory as the one before had."""
        self.request(OpenRequest(choice, self._settings.memory, self._settings.context))

    def open_with(self, memory: int | None, context: int | None) -> None:
        """Opens the same model in another amount of memory, or with another context."""
        self.request(OpenRequest(self.wanted.choice, memory, context))

    def reopen(self) -> None:
        """Tries again."""
        self.request(self.wanted)

    def request(self, request: OpenRequest) -> None:
        """Opens this instead of what is open, which stays where this fails."""
        self._wait_for(request)
        self._engine.open(request)

    def forget(self) -> None:
        """Nothing is open any more."""
        self.opened, self._activity.title = None, ""
        self._panels.show_closed()
        self._quick_profile.follow_closed()

    def take_opened(self, event: messages.Opened) -> bool:
        """What is known of a model that is open now; True where its context is larger."""
        model, plan, described = event.model, event.model.plan, event.model.info
        before = self._activity.plan
        self.opened = event.request
        tokenizer = model.tokenizer if model.has_tokenizer else None
        self.has_chat_template = tokenizer is None or tokenizer.has_chat_template
        self._reasoning_variables = tokenizer.reasoning_variables if tokenizer else frozenset()
        self._remember_limits(event.request)
        self._activity.plan = plan
        self._activity.identity = (described.directory, plan.select, plan.kv_dtype)
        select = f"{plan.select} (lossy)" if plan.lossy else plan.select
        name, encoding = shown_name(described.directory), described.spec.encoding_label
        seen = f", {plan.kv_selection.policy} (lossy)" if plan.kv_selection.lossy else ""
        self._activity.title = f"{name}, {encoding}, {select}, context {plan.context}{seen}"
        self._saving.model = str(Path(described.directory).absolute())
        self._saving.head(model=self._saving.model)
        self._panels.show_opened(model)
        self._quick_profile.follow_opened(model)
        if event.request == self.wanted:  # else another one was chosen meanwhile
            self._enter(Phase.READY)
        return before is not None and plan.context > before.context

    def unread_settings(self) -> list[str]:
        """A sentence for each setting of reasoning that the open model's template does not read."""
        if self.opened is None:
            return []
        return self._settings.reasoning.unread(self._reasoning_variables)

    def take_failed(self, event: messages.OpenFailed) -> str:
        """What is to be said of a model that could not be opened, and of what is open then."""
        is_wanted, after = event.request == self.wanted, TRY_AGAIN
        if event.stays and self.opened is not None:
            other = _other(self.opened, event.request)
            after = f"Still open: {other}." if other else "It stays open as it was."
            if is_wanted:
                self.wanted = self.opened
                self._enter(Phase.READY)
        elif event.returns is not None:
            other = _other(event.returns, event.request)
            after = f"Opening {other} again." if other else "Opening it again as it was."
            if is_wanted:
                self._wait_for(event.returns)
        else:
            self._remember_limits(event.request)
            if is_wanted:
                self._enter(Phase.CLOSED)
        name = sanitize_line(event.request.choice.name)
        why = explain(event.error).partition(" Try --memory")[0]  # here, something else is typed
        lines = [f"{name} cannot be opened: {why}", after]
        if isinstance(event.error, MemoryCeilingTooSmall):
            enough = -(-event.error.smallest_bytes // MIB) + MARGIN_MIB
            is_next = self.wanted.choice == event.request.choice
            how = "opens it with enough" if is_next else "before gives it enough"
            lines.insert(1, f"`/set memory {enough}MiB` {how}.")
        return "\n".join(lines)

    def _wait_for(self, request: OpenRequest) -> None:
        self.wanted = request
        self._activity.opening_name = sanitize_line(request.choice.name)
        self._enter(Phase.OPENING)

    def _remember_limits(self, request: OpenRequest) -> None:
        self._settings.memory, self._settings.context = request.memory, request.context

    def _enter(self, phase: Phase) -> None:
        self._activity.enter(phase)
        self._owner.post_message(messages.PhaseEntered(phase))


def _other(request: OpenRequest, failed: OpenRequest) -> str:
    """A model's name beside one that failed; empty where it is the same in other memory."""
    return "" if request.choice == failed.choice else sanitize_line(request.choice.name)
