"""The chat: its screen owns transcript, prompt, status, panels and the engine's thread.

What its parts and threads have to say comes up as messages (`messages`); what they show goes down
as values. Each key, slash command and line of the palette is one of the actions here. Pages are
imported where they are opened, since the first frame would wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.screen import Screen, ScreenResultType

from flashllm.conversations.tree import BROKEN_OFF, Conversation
from flashllm.errors import EngineLost, FlashllmError, UsageError
from flashllm.library.directories import shown_name
from flashllm.library.models import ModelChoice, OpenRequest
from flashllm.library.names import ModelNames
from flashllm.options import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_REASONING,
    EFFORTS,
    ReasoningOptions,
)
from flashllm.settings.resolve import ChatSettings
from flashllm.ui.chat import messages
from flashllm.ui.chat.answer_settings import AnswerSettings
from flashllm.ui.chat.answering import DRAW_TEMPERATURE, SAME_AGAIN, Answering, Unanswered, explain
from flashllm.ui.chat.autosave import Autosave
from flashllm.ui.chat.compaction import Compaction
from flashllm.ui.chat.context_meter import TELLS_AT, ContextMeter, Fill
from flashllm.ui.chat.conversation_view import ConversationView
from flashllm.ui.chat.engine_thread import Check, EngineThread
from flashllm.ui.chat.header import EngineHeader
from flashllm.ui.chat.kept_conversations import NOTHING_KEPT, KeptConversations
from flashllm.ui.chat.model_switch import ModelSwitch
from flashllm.ui.chat.quick_profile import QuickProfile, format_measured, format_measuring
from flashllm.ui.chat.sending import Sending
from flashllm.ui.chat.slash_commands import SlashCommands
from flashllm.ui.chat.status import (
    HINT_SECONDS,
    Activity,
    Phase,
    StatusLine,
    format_released,
)
from flashllm.ui.chat.turn_actions import TurnActions
from flashllm.ui.chat.welcome import invitation
from flashllm.ui.commands.bindings import (
    CHAT_BINDINGS,
    EVERYWHERE_BINDINGS,
    FOOTER_ORDER,
    QUIT,
)
from flashllm.ui.commands.keys import bindings_in, give_way, reworded, with_keys
from flashllm.ui.commands.table import is_command, parse
from flashllm.ui.panels.panels import SidePanels
from flashllm.ui.prompt.draft import Draft
from flashllm.ui.prompt.history import InputHistory
from flashllm.ui.prompt.model_names import FreshNames
from flashllm.ui.prompt.prompt import Prompt, command_in
from flashllm.ui.prompt.suggestions import Suggestions
from flashllm.ui.prompt.waiting import WaitingMessages
from flashllm.ui.transcript.invitation import Invitation
from flashllm.ui.transcript.transcript import Transcript
from flashllm.ui.transcript.turn import Notice, TurnView
from flashllm.ui.widgets.footer import KeyFooter
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from textual.screen import ScreenResultCallbackType
    from textual.widgets import Markdown

    from flashllm.engine.protocol import Engine
    from flashllm.engine.sampling import Sampling
    from flashllm.library.conversion_job import Conversions, ConvertJob
    from flashllm.ui.commands.setting_values import ChatValues
    from flashllm.ui.screens.models import Models
    from flashllm.ui.screens.sessions import SessionChoice

TICK_SECONDS = 0.5
HANGS_HINT = "stopped; the next answer begins when the engine has come to rest"
EMPTY_HINT = "the model ended its answer before its first word"


class ChatScreen(Screen[None]):
    """A conversation with one model; `open_engine` gives the model and may take its time.

    `store` is the file of conversations, None keeps nothing; `session` the one to go on with;
    `given` names the settings of the command line, which no conversation that is opened changes;
    `quick_profile` is whether an unknown disk is measured without being asked for.
    """

    BINDINGS: ClassVar[list[BindingType]] = [QUIT, *CHAT_BINDINGS]  # in the footer it comes first

    def __init__(
        self,
        open_engine: Callable[[OpenRequest], Engine],
        *,
        check: Check | None = None,
        choice: ModelChoice | None = None,
        memory: int | None = None,
        context: int | None = None,
        store: Path | str | None = None,
        session: int | None = None,
        history: Path | None = None,
        library: Callable[[], Models] | None = None,
        names: ModelNames | None = None,
        settings: ChatSettings | None = None,
        sampling: Sampling | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        system: str = "",
        log_file: Path | None = None,
        keymap: Mapping[str, str] | None = None,
        given: Collection[str] = (),
        quick_profile: bool = False,
        reasoning: ReasoningOptions = DEFAULT_REASONING,
    ) -> None:
        super().__init__()
        self.log_file = log_file
        self.settings = settings or ChatSettings()
        self.keymap = dict(keymap or {})
        self.library = library
        self.engine = EngineThread(open_engine, self._post, check)
        self._told: set[str] = set()
        """What was said of the model that is open, and is not said again."""
        wanted = OpenRequest(choice or ModelChoice(name="the model"), memory, context)
        self.activity = Activity(sanitize_line(wanted.choice.name))
        self.header = EngineHeader(self.activity.state)
        self.saving = Autosave(
            store,
            lambda error: self._post(messages.SavingFailed(error)),
            lambda: self._post(messages.SavingRecovered()),
        )
        self.shown = ConversationView(Conversation(system), self.saving)
        self.shown.transcript = Transcript(self.shown.make_view)
        # Held, since to look for them goes through all that a long answer is made of.
        self.status_line, self.meter = StatusLine(), ContextMeter()
        names = names or ModelNames()
        fresh_names = FreshNames(names.names, self.run_worker, self._renew_suggestions)
        self.suggestions = Suggestions(
            {"theme": self._themes, "model": fresh_names.latest, "effort": lambda: EFFORTS}
        )
        self.waiting = WaitingMessages()
        words = "Ask something; / for commands"
        self.prompt = Prompt(InputHistory(history), self.suggestions, self.waiting, words)
        self.panels = SidePanels(self.settings.show_io)
        self.answer_settings = AnswerSettings(
            self, self.shown, sampling, max_tokens, given, reasoning
        )
        self.quick_profile = QuickProfile(self, quick_profile)
        self.models = ModelSwitch(
            self,
            self.engine,
            self.activity,
            self.answer_settings,
            self.saving,
            self.panels,
            self.quick_profile,
            wanted,
        )
        self.answering = Answering(
            self, self.engine, self.shown, self.activity, self.answer_settings
        )
        self.turns = TurnActions(self, self.shown, self.prompt, self.activity, self.answering)
        self.sending = Sending(self.shown, self.activity, self.answering, self.waiting)
        self.kept = KeptConversations(self.shown)
        self.compaction = Compaction(self, self.shown, self.activity, self.answering)
        self.slash = SlashCommands(
            self,
            self._run_action,
            self.activity,
            self.answer_settings,
            self.kept,
            self.compaction,
            self._themes,
            names,
        )
        self.session = session
        """The conversation that is opened first."""
        self._told_full = False

    @property
    def choice(self) -> ModelChoice:
        """The model that is open, is being opened, or could not be."""
        return self.models.wanted.choice

    @property
    def conversation(self) -> Conversation:
        """The one that is shown."""
        return self.shown.conversation

    @property
    def session_id(self) -> int | None:
        """Under which the conversation is kept, once it is."""
        return self.saving.session_id

    def compose(self) -> ComposeResult:
        """Model and state, transcript, what waits, prompt, status, keys."""
        yield self.header
        yield self.shown.transcript
        yield from (self.panels.map, self.panels.io)
        yield from (self.waiting, self.suggestions, self.prompt)
        with Horizontal(id="bottom"):
            yield self.status_line
            yield self.meter
        yield KeyFooter(FOOTER_ORDER, self._words_of_key)

    def on_screen_suspend(self) -> None:
        """A page lies over the chat."""
        self.shown.transcript.cover(True)

    def on_screen_resume(self) -> None:
        """A page over the chat is being closed."""
        self.shown.transcript.cover(False)
        self.answering.collect_later()

    async def on_mount(self) -> None:
        """Starts to open the model; the prompt can be written meanwhile."""
        self.prompt.focus()
        self.answer_settings.theme = self.app.theme
        self._ticker = self.set_interval(TICK_SECONDS, self.show_status)
        # Actions get the keys of the configuration before the text's own ones.
        give_way(self.prompt, with_keys(bindings_in(EVERYWHERE_BINDINGS), self.keymap))
        if self.session is not None:
            system = self.conversation.system
            await self.open_session(self.session)
            self.answer_settings.keep_given(system)
        self.models.reopen()
        self.call_after_refresh(self._invite)  # the first frame does not wait for it
        self.call_after_refresh(self.shown.load_answers)
        self.call_after_refresh(self.answering.garbage.start, asyncio.get_running_loop())

    def on_unmount(self) -> None:
        """Nothing calls this screen any more."""
        self.answering.garbage.stop()

    # What the user types

    @on(Prompt.Submitted)
    async def send(self, event: Prompt.Submitted) -> None:
        """Sends the message, or lets it wait; with nothing typed, sends what waits already."""
        draft, text = event.draft, event.draft.text.strip()
        # It is typed where no message is chosen, though a click may have left one behind.
        if is_command(text):
            self.shown.transcript.select(None)
            await self._run_typed(text, draft)
        elif command_in(draft.shown) != draft.shown:
            await self._add_file(draft)
        elif not text:
            await self.sending.send_first()
        elif self.activity.phase is Phase.CLOSED:
            self.show_hint(self.activity.reason_not_ready)
        else:
            self.prompt.take(draft)
            self.prompt.end_edit()
            await self.sending.send(draft)

    @on(WaitingMessages.Changed)
    def follow_waiting(self) -> None:
        """Says when they are sent; keys for them come and go."""
        self.waiting.hint = self.with_keys(self.sending.hint())
        self.refresh_bindings()

    @on(WaitingMessages.TakeBackAsked)
    def take_back_waiting(self, event: WaitingMessages.TakeBackAsked) -> None:
        """A message that was clicked on goes back into the prompt."""
        if self.prompt.take_back(event.index):
            self.prompt.focus()
        else:
            self.show_hint("the prompt holds something else; send it or delete it first")

    @on(Prompt.Changed)
    def follow_prompt(self) -> None:
        """Shows what a command that is being typed could become; answers give way to keys."""
        self.answering.typed()
        if self.suggestions.is_attached:
            self.suggestions.follow(self.prompt.command_line)

    def _renew_suggestions(self) -> None:
        self.suggestions.renew()

    @on(Suggestions.Clicked)
    def take_suggestion(self, event: Suggestions.Clicked) -> None:
        """A click is as good as Enter."""
        self.prompt.take_suggestion(event.suggestion)
        self.prompt.focus()

    async def _run_typed(self, line: str, draft: Draft) -> None:
        """Runs a command, and takes it out of the prompt unless it is wrong."""
        try:
            invocation = parse(line)
            self.prompt.take(draft)
            self.suggestions.follow("")  # Esc, or /stop, is about something else by now
            await self.slash.run(invocation)
        except FlashllmError as error:
            if not self.prompt.text:
                self.prompt.put_draft(draft)
            await self.tell(str(error), "error")

    async def _add_file(self, draft: Draft) -> None:
        """The last line of a message adds a file, which then stands in its place."""
        self.prompt.put_command("")
        left = self.prompt.text
        try:
            await self.slash.run(parse(command_in(draft.shown).strip()))
        except FlashllmError as error:
            if self.prompt.text == left:
                self.prompt.put_draft(draft)
            await self.tell(str(error), "error")

    @on(messages.FileRead)
    def attach_file(self, event: messages.FileRead) -> None:
        """A file is part of the message that is being written."""
        self.prompt.attach(event.name, event.text)
        self.prompt.focus()

    # An empty conversation

    async def _invite(self) -> None:
        """Shows what can be asked, while nothing has been."""
        if not self.conversation.turns:
            found = invitation(self.choice, self.models.has_chat_template, self.keymap)
            await self.shown.transcript.invite(found)

    @on(Invitation.Taken)
    async def ask_suggested(self, event: Invitation.Taken) -> None:
        """A question of the invitation is asked; what stands in the prompt stays there."""
        self.prompt.focus()
        if self.activity.phase is Phase.CLOSED:
            self.show_hint(self.activity.reason_not_ready)
        else:
            self.prompt.inputs.add(event.question)
            await self.sending.send(Draft(event.question))

    @on(Invitation.Typed)
    def type_character(self, event: Invitation.Typed) -> None:
        """What is typed there belongs into the prompt."""
        self.prompt.focus()
        self.prompt.insert(event.character)

    async def _run_chosen(self, line: str) -> None:
        """Runs a command of the palette; the prompt stays as it is."""
        try:
            await self.slash.run(parse(line))
        except FlashllmError as error:
            await self.tell(str(error), "error")

    async def _run_action(self, action: str, arguments: tuple[str | int, ...]) -> bool:
        namespace, _, name = action.rpartition(".")
        return await self.app.run_action((namespace, name, arguments), self)

    @on(messages.CommandChosen)
    def run_chosen(self, event: messages.CommandChosen) -> None:
        """Runs what was chosen in the palette, or puts its beginning into the prompt."""
        if not event.only_begun:
            self.run_worker(self._run_chosen(event.line))
            return
        if self.prompt.text.strip():
            self.prompt.take()  # it is in the prompt's history
        self.prompt.put_text(event.line)
        self.prompt.focus()

    # The model

    def open_model(self, choice: ModelChoice) -> None:
        """Opens this model instead of the one that is open; the conversation stays."""
        self.models.open(choice)

    @on(messages.LimitsAsked)
    def open_with_limits(self, event: messages.LimitsAsked) -> None:
        """Opens the same model in another amount of memory, or with another context."""
        if not self._is_busy():
            self.models.open_with(event.memory, event.context)

    def take_model(self, choice: ModelChoice | None) -> None:
        """Opens the model that was chosen on a page, if one was."""
        if choice is None or (choice == self.choice and self.activity.phase is not Phase.CLOSED):
            return
        if not self._is_busy():
            self.open_model(choice)

    @on(messages.ModelChosen)
    def open_chosen(self, event: messages.ModelChosen) -> None:
        """Opens a model that was named."""
        self.open_model(event.choice)

    @on(messages.Opening)
    def show_opening(self, event: messages.Opening) -> None:
        """The model is being opened."""
        self.activity.opening(event.progress)
        self.show_status()

    @on(messages.Closed)
    def show_closing(self) -> None:
        """Nothing is open until another model is."""
        self.models.forget()
        self.show_status()

    @on(messages.Opened)
    async def show_opened(self, event: messages.Opened) -> None:
        """The model is there."""
        if self.models.take_opened(event) and self.conversation.dropped:
            self.conversation.leave_nothing_out()
            await self.tell(
                "All of the conversation is sent to the model again, as far as it fits."
            )
        self.check_context()
        self._told.clear()
        await self._tell_once(event.model.cautions(), "error")
        await self._tell_once(self.models.unread_settings())
        await self._invite()
        self.show_status()
        await self.sending.send_due()

    async def _tell_once(self, sentences: Sequence[str], kind: str = "info") -> None:
        """Says what is to be known of the open model, each thing once."""
        for sentence in sentences:
            if sentence not in self._told:
                self._told.add(sentence)
                await self.tell(sanitize_line(sentence), kind)

    @on(messages.OpenFailed)
    async def show_open_failed(self, event: messages.OpenFailed) -> None:
        """The model is not there, and why; the one that was open is, or will be again."""
        self.waiting.hold()
        await self.tell(self.models.take_failed(event), "error")

    @on(messages.Lost)
    async def show_lost(self, event: messages.Lost) -> None:
        """The engine has gone; an answer that it was writing breaks off by itself."""
        if self.activity.phase is Phase.READY:
            self._show_closed()
            await self.tell(explain(event.error), "error")

    @on(messages.SlotsReleased)
    def show_released(self, event: messages.SlotsReleased) -> None:
        """The engine keeps fewer weights in memory, or all of them again."""
        self.show_hint(format_released(event.nbytes))

    @on(messages.Warming)
    def show_warming(self, event: messages.Warming) -> None:
        """The engine reads ahead while nothing is asked."""
        is_over = event.share == 1.0
        self.activity.warmed_percent = None if is_over else int(100 * event.share)
        self.show_status()

    def _show_closed(self) -> None:
        """No model is open; `/retry` or Ctrl+R opens it again."""
        self.waiting.hold()
        self.models.forget()
        self._enter(Phase.CLOSED)

    # The answer

    @on(messages.ProgressReady)
    def expect_progress(self, event: messages.ProgressReady) -> None:
        """Tokens have come, or the prompt is further."""
        self.answering.expect_progress(at_once=event.at_once)

    @on(messages.ProgressShown)
    def show_progress(self, event: messages.ProgressShown) -> None:
        """More of the answer is on the screen."""
        if event.tokens:
            self.panels.show_tokens(event.turn_id, event.tokens, self.engine.prefill)
        self.show_status()
        if self.answering.turn is not None:  # once it is over, its report counts
            self._show_fill(self.engine.prompt_tokens + self.activity.statistics.tokens)

    @on(messages.Answered)
    async def finish_answer(self, event: messages.Answered) -> None:
        """The answer is complete, or as complete as it will be."""
        await self._after_answer(await self.answering.finish(event), event.finish_reason)
        await self._tell_once(event.cautions, "error")
        if event.report is None:
            self.show_hint(HANGS_HINT)
        elif self.answering.came_again():
            self.show_hint(SAME_AGAIN)
        await self.sending.send_due()

    @on(messages.Failed)
    async def show_failed(self, event: messages.Failed) -> None:
        """The answer broke off; what was typed comes back if nothing was answered."""
        self.waiting.hold()
        await self._after_answer(await self.answering.break_off(), BROKEN_OFF)
        await self.tell(explain(event.error), "error")
        if isinstance(event.error, EngineLost):
            self._show_closed()

    async def _after_answer(self, unanswered: Unanswered | None, reason: str) -> None:
        if self.compaction.is_running:
            await self.compaction.finish(reason)
        elif unanswered is not None:
            self.waiting.hold()
            # What was asked in vain can be sent again, unless something else is typed already.
            question = unanswered.question if not self.prompt.text else None
            await self.answering.take_back(unanswered, with_question=question is not None)
            if question is not None:
                self.prompt.put_text(question.text)
                if unanswered.shown_before is not None:
                    self.turns.begin_edit(unanswered.shown_before, question.text)
            if unanswered.is_unexpected:
                self.show_hint(EMPTY_HINT)
        await self._invite()
        self.check_context()

    @on(messages.Shortened)
    async def show_shortened(self, event: messages.Shortened) -> None:
        """Old messages are left out from now on."""
        if self.compaction.is_running:
            self.compaction.note_unread(event.dropped)
            return
        self.conversation.dropped += event.dropped
        await self.tell(
            f"The conversation outgrew the context: its first {self.conversation.dropped} messages "
            "are no longer sent to the model.",
            above_answer=True,
        )

    @on(messages.PhaseEntered)
    def follow_phase(self) -> None:
        """The engine does something else now."""
        answering = self.activity.is_answering
        # A cursor that blinks is a picture twice a second, a quarter of what a slow token costs.
        self.prompt.cursor_blink = not answering
        self.panels.is_answering = answering
        self.waiting.hint = self.with_keys(self.sending.hint())
        self.refresh_bindings()
        self.show_status()

    def _enter(self, phase: Phase) -> None:
        self.activity.enter(phase)
        self.post_message(messages.PhaseEntered(phase))

    # The conversation

    async def open_session(self, session_id: int) -> None:
        """Shows a conversation that was kept, and goes on with it."""
        if self._is_busy():
            return
        try:
            await self.shown.restore(session_id)
        except FlashllmError as error:
            await self.tell(explain(error), "error")
            return
        self._leave_conversation()
        self.answer_settings.adopt()
        await self._tell_once(self.models.unread_settings())
        self.check_context()
        self.show_status()

    @on(messages.SessionChosen)
    async def open_chosen_session(self, event: messages.SessionChosen) -> None:
        """Opens a conversation that was named, or read from a file."""
        await self.open_session(event.session_id)

    @on(messages.SettingsChanged)
    async def follow_settings(self) -> None:
        """The theme may be another, and the room that an answer needs."""
        self.app.theme = self.answer_settings.theme
        await self._tell_once(self.models.unread_settings())
        self.check_context()

    def _leave_conversation(self) -> None:
        """Turns of another one have the same numbers, so nothing may be left of those before."""
        self.prompt.end_edit()
        self.waiting.hold()  # what waits was written for another conversation
        self.panels.tokens.clear()
        self.activity.forget()

    @on(messages.SavingFailed)
    async def show_saving_failed(self, event: messages.SavingFailed) -> None:
        """The conversation goes on, but is not kept at the moment."""
        await self.tell(f"This conversation is not being saved: {event.error}", "error")

    @on(messages.SavingRecovered)
    async def show_saving_recovered(self) -> None:
        """All is well again."""
        await self.tell("The conversation is saved again.")

    @on(messages.DrawAsked)
    def ask_to_draw(self) -> None:
        """Answers again at a temperature, if the user says yes."""
        from flashllm.ui.screens.confirm import ConfirmScreen

        async def draw(yes: bool | None) -> None:
            if yes and not self.activity.reason_not_ready:
                await self.answering.regenerate(draw=True)

        question = (
            "The temperature is 0, so the same text would come again. Draw another answer at "
            f"temperature {DRAW_TEMPERATURE:g}? (/set temp {DRAW_TEMPERATURE:g} draws all of them.)"
        )
        self._open_page(ConfirmScreen(question), draw)

    @on(messages.DeleteAsked)
    def ask_to_delete(self, event: messages.DeleteAsked) -> None:
        """Deletes a message if the user says yes."""
        from flashllm.ui.screens.confirm import ConfirmScreen

        async def delete(yes: bool | None) -> None:
            if yes:
                await self.turns.delete(event.turn_id)

        self._open_page(ConfirmScreen(event.question), delete)

    @on(TurnView.Chosen)
    def choose_turn(self, event: TurnView.Chosen) -> None:
        """A click selects a message."""
        self.shown.transcript.focus()
        self.shown.transcript.select(event.turn_id)

    # Remarks, status, context

    async def tell(self, text: str, kind: str = "info", *, above_answer: bool = False) -> None:
        """A remark in the transcript; `kind` is info or error."""
        transcript, turn = self.shown.transcript, self.answering.turn
        view = transcript.view(turn.id) if turn is not None and above_answer else None
        notice = Notice(self.with_keys(text), kind)
        if view is None:
            await transcript.add(notice)
        else:
            await transcript.mount(notice, before=view)

    def with_keys(self, text: str) -> str:
        """A sentence with the keys as they are now."""
        if not self.keymap:
            return text
        return reworded(text, bindings_in(EVERYWHERE_BINDINGS), self.keymap)

    def show_hint(self, text: str) -> None:
        """A remark on the status line, for a while."""
        self.activity.hint(text)
        self.show_status()
        self.set_timer(HINT_SECONDS + 0.05, self.show_status)

    @on(messages.Remarked)
    async def show_remark(self, event: messages.Remarked) -> None:
        """A part of the chat has a remark that stays."""
        await self.tell(event.text)

    @on(messages.Hinted)
    def show_hinted(self, event: messages.Hinted) -> None:
        """A part of the chat has a remark."""
        self.show_hint(event.text)

    @on(messages.CopyAsked)
    def copy_text(self, event: messages.CopyAsked) -> None:
        """Through the terminal."""
        self.app.copy_to_clipboard(event.text)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Links are shown and never opened: a model may have made them up."""
        self.show_hint(f"not opened: {sanitize_line(event.href)}")

    def show_status(self) -> None:
        """The status line as it is now; it ticks only while something is waited for."""
        if self.activity.is_held_up:
            self.activity.wait = self.engine.current_wait()
        if self.status_line.is_attached:
            self.status_line.parts = tuple(map(self.with_keys, self.activity.parts()))
            self.header.model, self.header.state = self.activity.title, self.activity.state
        waits = self.activity.phase is Phase.OPENING or self.activity.is_answering
        (self._ticker.resume if waits else self._ticker.pause)()

    @on(messages.PathChanged)
    async def follow_path(self) -> None:
        """Another branch is shown, or less: perhaps nothing, where something can be asked."""
        await self._invite()
        self.check_context()

    def check_context(self) -> None:
        """After an answer, or where another branch is shown: says how full the context is."""
        used: int | None = 0
        answers = (turn for turn in reversed(self.conversation.path()) if turn.role == "assistant")
        if (last := next((turn for turn in answers if turn.numbers), None)) is not None:
            prompt_tokens = last.numbers.get("prompt_tokens")
            used = None if prompt_tokens is None else prompt_tokens + last.numbers.get("tokens", 0)
        fill = self._show_fill(used)
        if fill.share < TELLS_AT:
            self._told_full = False
        elif not self._told_full:
            self._told_full = True
            self.run_worker(self.tell(fill.words()), exit_on_error=False)

    def _show_fill(self, used: int | None) -> Fill:
        plan, most = self.activity.plan, self.answer_settings.max_tokens
        fill = Fill.of(used, plan.context, most) if plan is not None else Fill()
        if self.meter.is_attached:
            self.meter.fill = fill
        return fill

    def _is_busy(self) -> bool:
        """Whether an answer is being written, which is said then."""
        if self.activity.is_answering:
            self.show_hint(self.activity.reason_not_ready)
        return self.activity.is_answering

    # Conversions beside the chat

    @cached_property
    def conversions(self) -> Conversions:
        """What is converted beside the chat; loaded when something is, or might be."""
        from flashllm.library.conversion_formatting import format_job
        from flashllm.library.conversion_job import Conversions

        def follow(job: ConvertJob) -> None:
            status = job.status  # of one moment: it changes on a thread
            self._post(messages.Converting(format_job(job, status), status))

        conversions = Conversions()
        conversions.listen(follow)
        return conversions

    @property
    def begun_conversions(self) -> Conversions | None:
        """None where nothing was to be converted: the code is not loaded to find that."""
        begun: Conversions | None = vars(self).get("conversions")  # a cached property
        return begun

    @on(messages.Converting)
    async def show_conversion(self, event: messages.Converting) -> None:
        """A conversion is told on the status line, its end for a while; how it failed stays."""
        from flashllm.library.conversion_job import JobState

        status = event.status
        self.activity.conversion = "" if status.is_over else event.words
        if status.state is JobState.FAILED:
            await self.tell(f"{event.words}: {status.error}", "error")
        elif status.is_over:
            self.show_hint(event.words)
        self.show_status()

    # A quick profile beside the chat

    @on(messages.Measuring)
    def show_measuring(self, event: messages.Measuring) -> None:
        """The disk is measured: how far that is stands on the status line."""
        self.activity.measuring = format_measuring(event.status)
        if words := self.quick_profile.take_status(event.status):
            self.show_hint(words)
        self.show_status()

    @on(messages.RatesRenewed)
    def show_rates(self, event: messages.RatesRenewed) -> None:
        """The panels compare with what was measured."""
        if self.panels.renew_rates(event.engine, event.rates):
            self.show_hint(format_measured(event.rates))

    # Actions: answers

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that would do nothing now are not shown."""
        if action == "stop":
            waits = bool(self.waiting.drafts) or self.prompt.editing is not None
            return self.activity.is_answering or waits or self.suggestions.is_open
        if action == "reopen":
            return self.activity.phase is Phase.CLOSED
        if action in ("drop_waiting", "edit_waiting"):
            return bool(self.waiting.drafts)
        if action == "send_waiting":
            return bool(self.waiting.drafts) and self.activity.phase is Phase.READY
        return super().check_action(action, parameters)

    def _words_of_key(self, action: str) -> str | None:
        """What the key of `action_stop` would do now, in its order."""
        if action != "stop":
            return None
        if self.suggestions.is_open:
            return "Close"
        if self.activity.is_answering:
            return "Stop"
        return "End edit" if self.prompt.editing is not None else "Take back"

    def action_stop(self) -> None:
        """Closes suggestions, or stops the answer, or ends an edit, or takes back what waits.

        After a stop nothing is sent that waits, until the user asks for it.
        """
        if self.suggestions.is_open:
            self.suggestions.close()
        elif self.activity.is_answering:
            self.waiting.hold()
            self.engine.stop()
            self.show_hint("stopping")
        elif self.prompt.editing is not None:
            self.prompt.end_edit()
        else:
            self.action_edit_waiting()

    def action_edit_waiting(self) -> None:
        """Takes the last message that waits back into the prompt, in place of what is there."""
        if self.prompt.text.strip():
            self.prompt.take()  # it is in the prompt's history
        if self.prompt.take_back():
            self.prompt.focus()

    def action_drop_waiting(self) -> None:
        """Removes the last message that waits."""
        if self.waiting.take(-1) is not None:
            self.show_hint("removed; Up finds it again")

    async def action_send_waiting(self) -> None:
        """Sends the first message that waits."""
        await self.sending.send_first()

    def action_reopen(self) -> None:
        """Tries again to open the model."""
        if self.activity.phase is Phase.CLOSED:
            self.models.reopen()

    async def action_retry(self) -> None:
        """Opens the model again; if it is open, the last question is asked again."""
        if self.activity.phase is Phase.CLOSED:
            self.models.reopen()
        else:
            await self.turns.regenerate()

    async def action_regenerate(self) -> None:
        """Answers the last question anew; the answer before stays as a branch."""
        await self.turns.regenerate()

    async def action_continue(self) -> None:
        """Goes on with an answer that was stopped."""
        await self.turns.go_on()

    # Actions: messages

    def action_edit(self, number: int = 0) -> None:
        """Takes a question into the prompt; what is sent then is a branch. 0: the selected one."""
        self.turns.edit(number)

    def action_delete(self, number: int = 0) -> None:
        """Deletes a message and what follows it, after asking. 0: the selected one."""
        self.turns.ask_to_delete(number)

    def action_copy(self, number: int = 0) -> None:
        """Copies a message. 0: the selected one, or the last answer."""
        self.turns.copy(number)

    def action_code(self, number: int = 0) -> None:
        """Copies a message's code, the next block each time; or block n of the last answer."""
        self.turns.code(number)

    async def action_branch(self, step: int) -> None:
        """Shows the branch before or after."""
        await self.turns.branch(step)

    def action_tokens(self) -> None:
        """Shows the tokens of an answer, each with its numbers."""
        turn = self.turns.chosen(0, "assistant")
        numbers = self.panels.numbers(turn.id) if turn is not None else []
        if numbers:
            from flashllm.ui.screens.token_details import TokenView

            self._open_page(TokenView(numbers))
        else:
            words = "numbers are kept of the answers of this run only"
            self.show_hint(f"{words}, while their conversation is open")

    async def action_select(self, step: int) -> None:
        """Selects the message before or after."""
        await self.shown.transcript.step(step)

    async def action_focus_transcript(self) -> None:
        """Goes to the messages; the last one is selected. A command is completed instead."""
        line = self.suggestions.completed(self.prompt.command_line)
        if self.prompt.has_focus and line != self.prompt.command_line:
            self.prompt.put_command(line)
            return
        if invited := self.shown.transcript.invitation:
            invited.take_focus()
            return
        self.shown.transcript.focus()
        await self.shown.transcript.step(-1)

    def action_focus_prompt(self, stop: bool = False) -> None:
        """Goes back to the prompt; nothing is selected. `stop`: an answer on its way is stopped."""
        if stop and self.activity.is_answering:
            self.action_stop()
        self.shown.transcript.select(None)
        self.prompt.focus()

    def action_scroll_transcript(self, pages: int) -> None:
        """Scrolls by pages, wherever the cursor is."""
        transcript = self.shown.transcript
        scroll = transcript.action_page_up if pages < 0 else transcript.action_page_down
        scroll()

    async def action_clear(self) -> None:
        """Takes remarks off the screen."""
        await self.shown.transcript.clear_notices()

    async def action_context(self) -> None:
        """Says how full the context is."""
        await self.tell(self.meter.fill.words())

    async def action_editor(self) -> None:
        """Opens what was typed in $EDITOR."""
        from flashllm.ui.prompt.external_editor import edited

        try:
            with self.app.suspend():
                text = edited(self.prompt.whole_text, self.settings.editor)
        except UsageError as error:
            await self.tell(str(error), "error")
        except SuspendNotSupported:
            self.show_hint("this terminal cannot be given to an editor")
        else:
            self.prompt.put_text(text)

    # Actions: settings

    def _themes(self) -> list[str]:
        return sorted(self.app.available_themes)

    def action_settings(self, first: str = "system") -> None:
        """Shows the system prompt and the sampling; the cursor is on `first`."""
        from flashllm.ui.screens.settings import SettingsScreen

        def take(values: ChatValues | None) -> None:
            if values is not None:
                self.answer_settings.apply(values)
                self.show_hint("the next answer is made with these settings")

        self._open_page(SettingsScreen(self.answer_settings.values, self._themes(), first), take)

    # Actions: conversations

    async def action_new_conversation(self) -> None:
        """Begins a new conversation; the one before is kept."""
        if self._is_busy():
            return
        self._leave_conversation()
        await self.shown.begin()
        await self._invite()
        self.check_context()
        self.show_status()

    def action_sessions(self) -> None:
        """Shows the conversations that were kept."""
        if self.saving.path is None:
            self.show_hint(NOTHING_KEPT)
            return
        from flashllm.ui.screens.sessions import SessionsScreen

        def take(choice: SessionChoice | None) -> None:
            if choice is not None:
                self.run_worker(self._take_session(choice), exit_on_error=False)

        page = SessionsScreen(self.kept.open_store, self.session_id, began=self.saving.began)
        self._open_page(page, take)

    async def _take_session(self, choice: SessionChoice) -> None:
        try:
            if choice.action == "open" and choice.id is not None:
                await self.open_session(choice.id)
            elif not self._is_busy():
                await self.action_new_conversation()
                if choice.action == "delete" and choice.id is not None:
                    await self.kept.delete(choice.id, choice.created)
        except FlashllmError as error:
            await self.tell(str(error), "error")

    # Actions: models, panels, pages

    def action_models(self) -> None:
        """Shows the models on this machine."""
        if self._is_busy():
            return
        if self.library is None:
            self.show_hint("no models are looked for here")
            return
        from flashllm.ui.screens.models import ModelPicker

        picker = ModelPicker(self.library(), self.choice, self.conversions)
        self._open_page(picker, self.take_model)

    def action_convert(self, source: str = "", destination: str = "") -> None:
        """Makes a converted model of a checkpoint."""
        if self.library is None:
            self.show_hint("nothing can be converted here")
            return
        from flashllm.ui.screens.convert import ConvertScreen

        def opened(made: Path | None) -> None:
            self.take_model(None if made is None else ModelChoice(made, shown_name(made)))

        page = ConvertScreen(self.conversions, self.library(), source, destination)
        self._open_page(page, opened)

    def action_io_panel(self) -> None:
        """Shows or hides where the time and the bytes go."""
        self.panels.toggle_io()

    def action_neuron_map(self) -> None:
        """Shows or hides the map of neurons."""
        self.panels.toggle_map()

    def action_thoughts(self) -> None:
        """Shows what models thought before their answers, or folds it."""
        self.shown.transcript.toggle_reasoning()

    def action_measure(self) -> None:
        """Takes a quick profile of the model's disk now."""
        self.show_hint(self.quick_profile.ask())

    def action_log(self) -> None:
        """Shows the program's log."""
        from flashllm.ui.screens.log import LogScreen

        self._open_page(LogScreen(self.log_file))

    def action_help(self) -> None:
        """Shows the page of help."""
        from flashllm.ui.screens.help import HelpScreen

        self._open_page(HelpScreen(self.keymap))

    def action_palette(self) -> None:
        """Shows every command."""
        from flashllm.ui.chat.palette import CommandPaletteProvider, Palette

        words = "What to do? Type to search"
        self._open_page(Palette([CommandPaletteProvider], placeholder=words))

    def _open_page(
        self,
        page: Screen[ScreenResultType],
        take: ScreenResultCallbackType[ScreenResultType] | None = None,
    ) -> None:
        self.answering.garbage.make_room_for_page()
        self.app.push_screen(page, take)

    def _post(self, message: Message) -> None:
        with contextlib.suppress(RuntimeError):  # the application has gone
            self.post_message(message)
