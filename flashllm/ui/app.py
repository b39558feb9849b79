"""The chat."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Static

from flashllm.conversations.tree import Conversation
from flashllm.errors import FlashllmError
from flashllm.library.models import ModelChoice
from flashllm.settings.resolve import ChatSettings
from flashllm.ui.chat import messages
from flashllm.ui.chat.answering import Answering, explain
from flashllm.ui.chat.autosave import Autosave
from flashllm.ui.chat.context_meter import TELLS_AT, ContextMeter, Fill
from flashllm.ui.chat.conversation_view import ConversationView
from flashllm.ui.chat.engine_thread import EngineThread
from flashllm.ui.chat.screen import Actions
from flashllm.ui.chat.slash_commands import SlashActions
from flashllm.ui.chat.status import HINT_SECONDS, Activity, Phase, StatusLine
from flashllm.ui.chat.turn_actions import TurnActions
from flashllm.ui.commands.bindings import APP_BINDINGS
from flashllm.ui.commands.table import is_command, unescaped
from flashllm.ui.panels.panels import SidePanels
from flashllm.ui.prompt.history import InputHistory
from flashllm.ui.prompt.prompt import Prompt
from flashllm.ui.prompt.suggestions import Suggestions
from flashllm.ui.transcript.transcript import Transcript
from flashllm.ui.transcript.turn import Notice
from flashllm.ui.widgets import themes
from flashllm.ui.widgets.footer import KeyFooter
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from textual.widgets import Markdown

    from flashllm.engine.protocol import Engine
    from flashllm.engine.sampling import Sampling
    from flashllm.library.conversion_job import Conversions, ConvertJob
    from flashllm.telemetry.token_record import EngineToken
    from flashllm.ui.screens.models import Models

TICK_SECONDS = 0.5


class ChatApp(Actions):
    """A conversation with one model; `open_engine` gives the model and may take its time.

    `store` is the file of conversations, None keeps nothing; `session` the one to go on with.
    """

    CSS_PATH = Path(__file__).with_name("chat.tcss")
    TITLE = "flashllm"
    ENABLE_COMMAND_PALETTE = False
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-tall")]  # noqa: RUF012  as the base does
    BINDINGS: ClassVar[list[BindingType]] = [*APP_BINDINGS]

    def __init__(
        self,
        open_engine: Callable[[ModelChoice], Engine],
        *,
        choice: ModelChoice | None = None,
        store: Path | str | None = None,
        session: int | None = None,
        history: Path | None = None,
        library: Callable[[], Models] | None = None,
        settings: ChatSettings | None = None,
        sampling: Sampling | None = None,
        max_tokens: int = 512,
        system: str = "",
        name: str = "the model",
        welcome: str = "Ask something below. F1 explains keys and numbers.",
        keymap: Mapping[str, str] | None = None,
        given: Collection[str] = (),
    ) -> None:
        super().__init__(ansi_color=themes.ansi_color())
        self.choice = choice or ModelChoice(name=name)
        self.settings = settings or ChatSettings()
        self.sampling, self.max_tokens = sampling, max_tokens
        self.engine = EngineThread(open_engine, self._post)
        self.activity = Activity(sanitize_line(self.choice.name))
        self.saving = Autosave(
            store,
            lambda error: self._post(messages.SavingFailed(error)),
            lambda: self._post(messages.SavingRecovered()),
        )
        self.shown = ConversationView(Conversation(system), self.saving)
        self.shown.transcript = Transcript(self.shown.make_view)
        self.prompt = Prompt(InputHistory(history), placeholder="Ask something; / for commands")
        # Held, since to look for them goes through all that a long answer is made of.
        self.status_line, self.meter, self.suggestions = StatusLine(), ContextMeter(), Suggestions()
        self.slash = SlashActions(self)
        self.keymap = dict(keymap or {})
        self.given = given
        """Settings of the command line: no conversation that is opened changes them."""
        self.answering = Answering(self)
        self.turns = TurnActions(self)
        self.panels = SidePanels(self)
        self.library = library
        self._session, self._welcome = session, welcome
        self._told_full = False
        self.theme = themes.find_theme(self.settings.theme or self.theme, self.slash.themes())

    @property
    def conversation(self) -> Conversation:
        """The one that is shown."""
        return self.shown.conversation

    @property
    def session_id(self) -> int | None:
        """Under which the conversation is kept, once it is."""
        return self.saving.session_id

    def compose(self) -> ComposeResult:
        """Title, transcript, prompt, status, keys."""
        yield Static(f"flashllm  {self.activity.model_name}", id="title", markup=False)
        yield self.shown.transcript
        yield from (self.panels.map, self.panels.io)
        yield self.suggestions
        yield self.prompt
        with Horizontal(id="bottom"):
            yield self.status_line
            yield self.meter
        yield KeyFooter()

    async def on_mount(self) -> None:
        """Starts to open the model; the prompt can be written meanwhile."""
        self.prompt.focus()
        self._ticker = self.set_interval(TICK_SECONDS, self.show_status)
        self.take_keys()
        self.leave_on_signals()
        await self.tell(self._welcome)
        if self._session is not None:
            system = self.conversation.system
            await self.open_session(self._session)
            self.slash.keep_given(system)
        self.open_model(self.choice)
        self.call_after_refresh(self.shown.load_answers)

    # What the user does

    @on(Prompt.Submitted)
    async def send(self, event: Prompt.Submitted) -> None:
        """Sends the message, if it can be answered now; otherwise it stays where it is."""
        text = event.text.strip()
        if not text:
            return
        if is_command(text):
            # It is typed where no message is chosen, though a click may have left one behind.
            self.shown.transcript.select(None)
            await self.slash.run(text)
        elif self.activity.phase is Phase.OPENING:
            self._wait_to_send(True)
        elif reason_not_ready := self.answering.reason_not_ready():
            self.show_hint(reason_not_ready)
        else:
            self.prompt.take()
            await self.answering.ask(unescaped(text), self.turns.end_edit())

    @on(Prompt.Changed)
    def follow_prompt(self) -> None:
        """Shows what a command that is being typed could become; answers give way to keys."""
        self.answering.typed()
        self.slash.follow(self.prompt.text)

    def stop(self) -> None:
        """Stops the answer, or keeps what waits for the model from being sent, or ends an edit."""
        if self.activity.send_when_open:
            self._wait_to_send(False)
        elif self.activity.is_answering:
            self.engine.stop()
            self.show_hint("stopping")
        else:
            self.turns.end_edit()

    async def begin_conversation(self) -> None:
        """A new conversation; the one before is kept."""
        if self.activity.is_answering:
            self.show_hint(self.answering.reason_not_ready())
            return
        self._leave_conversation()
        await self.shown.begin()
        await self.tell(self._welcome)
        self.check_context()
        self.show_status()

    # What the engine and the writer do

    @on(messages.Opened)
    async def show_opened(self, event: messages.Opened) -> None:
        """The model is there."""
        plan, described = event.model.plan, event.model.info
        await self.answering.take_context(plan)
        self.activity.plan = plan
        self.activity.model_name = sanitize_line(described.name)
        self.saving.model = str(Path(described.directory).absolute())
        self.saving.head(model=self.saving.model)
        select = f"{plan.select} (lossy)" if plan.lossy else plan.select
        title = f"flashllm  {self.activity.model_name}, {described.spec.encoding_label}, {select}, "
        self.query_one("#title", Static).update(f"{title}context {plan.context}")
        self.panels.show_opened(event.model)
        self.enter(Phase.READY)
        self.check_context()
        for caution in event.model.cautions():
            await self.tell(sanitize_line(caution), "error")
        if self.activity.send_when_open:
            self._wait_to_send(False)
            self.prompt.action_submit()

    @on(messages.Opening)
    def show_opening(self, event: messages.Opening) -> None:
        """The model is being opened."""
        self.activity.opening(event.progress)
        self.show_status()

    @on(messages.OpenFailed)
    async def show_open_failed(self, event: messages.OpenFailed) -> None:
        """The model is not there, and why."""
        self.activity.send_when_open = False
        self.enter(Phase.CLOSED)
        text = f"{self.activity.model_name} cannot be opened: {explain(event.error)}"
        await self.tell(f"{text}\nCtrl+R tries again, Ctrl+Q leaves.", "error")

    @on(messages.Lost)
    async def show_lost_meanwhile(self, event: messages.Lost) -> None:
        """The engine has gone; an answer that it was writing breaks off by itself."""
        if self.activity.phase is Phase.READY:
            self.show_lost()
            await self.tell(explain(event.error), "error")

    @on(messages.Shortened)
    async def show_shortened(self, event: messages.Shortened) -> None:
        """Old messages are left out from now on."""
        self.conversation.dropped += event.dropped
        await self.tell(
            f"The conversation outgrew the context: its first {self.conversation.dropped} messages "
            "are no longer sent to the model.",
            above_answer=True,
        )

    @on(messages.Prefilling)
    def show_prefill(self, event: messages.Prefilling) -> None:
        """The prompt is being read."""
        self.activity.prefill(event.done, event.total)
        self.show_numbers(())

    @on(messages.TokensReady)
    def expect_tokens(self) -> None:
        """Tokens have come."""
        self.answering.expect_tokens()

    @on(messages.Answered)
    async def finish_answer(self, event: messages.Answered) -> None:
        """The answer is complete, or as complete as it will be."""
        await self.answering.finish(event)

    @on(messages.Failed)
    async def show_failed(self, event: messages.Failed) -> None:
        """The answer broke off."""
        await self.answering.fail(event.error)

    @on(messages.SavingFailed)
    async def show_saving_failed(self, event: messages.SavingFailed) -> None:
        """The conversation goes on, but is not kept at the moment."""
        await self.tell(f"This conversation is not being saved: {event.error}", "error")

    @on(messages.SavingRecovered)
    async def show_saving_recovered(self) -> None:
        """All is well again."""
        await self.tell("The conversation is saved again.")

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Links are shown and never opened: a model may have made them up."""
        self.show_hint(f"not opened: {sanitize_line(event.href)}")

    # For those around

    async def tell(self, text: str, kind: str = "info", *, above_answer: bool = False) -> None:
        """A remark in the transcript; `kind` is info or error."""
        transcript, turn = self.shown.transcript, self.answering.turn
        view = transcript.view(turn.id) if turn is not None and above_answer else None
        if view is None:
            await transcript.add(Notice(self.in_words(text), kind))
        else:
            await transcript.mount(Notice(self.in_words(text), kind), before=view)

    def show_hint(self, text: str) -> None:
        """A remark on the status line, for a while."""
        self.activity.hint(text)
        self.show_status()
        self.set_timer(HINT_SECONDS + 0.05, self.show_status)

    def show_status(self) -> None:
        """The status line as it is now; it ticks only while something is waited for."""
        if self.status_line.is_attached:
            self.status_line.parts = tuple(map(self.in_words, self.activity.parts()))
        waits = self.activity.phase in (Phase.OPENING, Phase.READING)
        (self._ticker.resume if waits else self._ticker.pause)()

    def show_numbers(self, tokens: Sequence[EngineToken]) -> None:
        """Numbers have changed, among them those of these new tokens."""
        if tokens and self.answering.turn is not None:
            self.panels.show_tokens(self.answering.turn.id, tokens)
        self.show_status()
        self._meter(self.engine.prompt_tokens + self.activity.statistics.tokens)

    def check_context(self) -> None:
        """After an answer, or where another branch is shown: says how full the context is."""
        used = 0
        for turn in self.conversation.path():
            if turn.role == "assistant" and turn.numbers:
                used = turn.numbers.get("prompt_tokens", 0) + turn.numbers.get("tokens", 0)
        fill = self._meter(used)
        if fill.share < TELLS_AT:
            self._told_full = False
        elif not self._told_full:
            self._told_full = True
            self.run_worker(self.tell(fill.words()), exit_on_error=False)

    def open_model(self, choice: ModelChoice) -> None:
        """Closes the model that is open, and opens this one; the conversation stays."""
        if choice != self.choice:
            self.choice = choice
            self.activity.model_name = sanitize_line(choice.name)
        self.activity.send_when_open = False
        self.panels.show_closed()
        self.enter(Phase.OPENING)
        self.engine.open(choice)

    def show_lost(self) -> None:
        """The engine has gone; `/retry` or Ctrl+R opens it again."""
        self.panels.show_closed()
        self.enter(Phase.CLOSED)

    async def open_session(self, session_id: int) -> None:
        """Shows a conversation that was kept, and goes on with it."""
        if self.activity.is_answering:
            self.show_hint(self.answering.reason_not_ready())
            return
        try:
            await self.shown.restore(session_id)
        except FlashllmError as error:
            await self.tell(explain(error), "error")
            return
        self._leave_conversation()
        self.slash.adopt()
        self.check_context()
        self.show_status()

    def enter(self, phase: Phase) -> None:
        """The engine begins to do something else."""
        self.activity.enter(phase)
        self.refresh_bindings()
        self.show_status()

    def _leave_conversation(self) -> None:
        """Turns of another one have the same numbers, so nothing may be left of those before."""
        self.turns.end_edit()
        self.answering.tokens.clear()
        self.activity.forget()

    def _meter(self, used: int) -> Fill:
        plan = self.activity.plan
        fill = Fill.of(used, plan.context, self.max_tokens) if plan is not None else Fill()
        if self.meter.is_attached:
            self.meter.fill = fill
        return fill

    def _wait_to_send(self, wait: bool) -> None:
        self.activity.send_when_open = wait
        self.refresh_bindings()
        self.show_status()

    @cached_property
    def conversions(self) -> Conversions:
        """What is converted beside the chat; loaded when something is, or might be."""
        from flashllm.library.conversion_job import Conversions

        conversions = Conversions()
        conversions.listen(self._hear_conversion)
        return conversions

    def _hear_conversion(self, job: ConvertJob) -> None:
        from flashllm.library.conversion_formatting import format_job

        status = job.status  # of one moment: it changes on a thread
        self._post(messages.Converting(format_job(job, status), status))

    def _post(self, message: Message) -> None:
        with contextlib.suppress(RuntimeError):  # the application has gone
            self.post_message(message)
