"""The chat."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Footer, Static

from flashllm.conversation import Conversation
from flashllm.errors import FlashllmError
from flashllm.generation import Request
from flashllm.sanitize import sanitize_line
from flashllm.ui import messages
from flashllm.ui.activity import BUSY_HINT, CLOSED_HINT, Activity, Phase
from flashllm.ui.bindings import APP_BINDINGS
from flashllm.ui.engine_thread import EngineThread
from flashllm.ui.help import HelpScreen
from flashllm.ui.prompt import Prompt
from flashllm.ui.status import StatusLine
from flashllm.ui.transcript import Answer, Notice, Question, Transcript

if TYPE_CHECKING:
    from flashllm.engine import Model
    from flashllm.sampling import Sampling

BATCH_SECONDS = 0.03
TICK_SECONDS = 0.25
CLOSE_SECONDS = 2.0
NOT_YET = "not here yet"


class ChatApp(App[None]):
    """A conversation with one model; `open_engine` gives the model and may take its time."""

    CSS_PATH = Path(__file__).with_name("chat.tcss")
    TITLE = "flashllm"
    ENABLE_COMMAND_PALETTE = False
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-tall")]  # noqa: RUF012  as the base does
    BINDINGS: ClassVar[list[BindingType]] = [*APP_BINDINGS]

    def __init__(
        self,
        open_engine: Callable[[], Model],
        *,
        sampling: Sampling | None = None,
        max_tokens: int = 512,
        system: str = "",
        name: str = "the model",
        welcome: str = "Ask something below. F1 explains keys and numbers.",
    ) -> None:
        super().__init__()
        self.engine = EngineThread(open_engine, self._post)
        self.conversation = Conversation(system)
        self.activity = Activity(sanitize_line(name))
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._welcome = welcome
        self._question: Question | None = None
        self._answer: Answer | None = None

    def compose(self) -> ComposeResult:
        """Title, transcript, prompt, status, keys."""
        yield Static(f"flashllm  {self.activity.model_name}", id="title", markup=False)
        yield Transcript()
        yield Prompt(compact=False, highlight_cursor_line=False, placeholder="Ask something")
        yield StatusLine()
        yield Footer(compact=True, show_command_palette=False)

    async def on_mount(self) -> None:
        """Starts to open the model; the prompt can be written meanwhile."""
        self.query_one(Prompt).focus()
        self.set_interval(TICK_SECONDS, self._show_status)
        self._leave_on_signals()
        await self._tell(self._welcome)
        self._open()

    # What the user does

    @on(Prompt.Submitted)
    async def send(self, event: Prompt.Submitted) -> None:
        """Sends the message, if it can be answered now; otherwise it stays where it is."""
        text = event.text.strip()
        if not text:
            return
        phase = self.activity.phase
        if phase is Phase.OPENING:
            self._wait_to_send(True)
            return
        if phase is not Phase.READY:
            self._show_hint(CLOSED_HINT if phase is Phase.CLOSED else BUSY_HINT)
            return
        self.query_one(Prompt).clear()
        transcript = self.query_one(Transcript)
        self._question, self._answer = Question(text), Answer()
        await transcript.add(self._question)
        await transcript.add(self._answer)
        self._enter(Phase.READING)
        self.conversation.ask(text)
        self.engine.ask(
            Request(
                self.conversation.messages(),
                self.conversation.system,
                max_tokens=self._max_tokens,
                sampling=self._sampling,
            )
        )

    def action_stop(self) -> None:
        """Stops the answer, or keeps what waits for the model from being sent."""
        self._wait_to_send(False)
        if self.activity.is_answering:
            self.engine.stop()
            self._show_hint("stopping")

    def action_copy_or_stop(self) -> None:
        """Ctrl+C stops an answer; otherwise it copies, and says how to leave."""
        if self.activity.is_answering:
            self.action_stop()
            return
        selected = self.screen.get_selected_text() or self.query_one(Prompt).selected_text
        if selected:
            self.copy_to_clipboard(selected)
            self._show_hint("copied")
        else:
            self._show_hint("Ctrl+Q leaves")

    async def action_new_conversation(self) -> None:
        """Forgets the conversation."""
        if self.activity.is_answering:
            self._show_hint(BUSY_HINT)
            return
        self.conversation.clear()
        self.activity.forget()
        await self.query_one(Transcript).remove_children()
        await self._tell(self._welcome)
        self._show_status()

    def action_reopen(self) -> None:
        """Tries again to open the model."""
        if self.activity.phase is Phase.CLOSED:
            self._open()

    def action_help(self) -> None:
        """Shows the page of help."""
        self.push_screen(HelpScreen())

    def action_io_panel(self) -> None:
        """Shows or hides where the time and the bytes go."""
        self._show_hint(NOT_YET)

    def action_neuron_map(self) -> None:
        """Shows or hides the map of neurons."""
        self._show_hint(NOT_YET)

    def action_sessions(self) -> None:
        """Shows the conversations that were kept."""
        self._show_hint(NOT_YET)

    def action_models(self) -> None:
        """Shows the models on this machine."""
        self._show_hint(NOT_YET)

    def action_settings(self) -> None:
        """Shows the system prompt and the sampling."""
        self._show_hint(NOT_YET)

    def action_palette(self) -> None:
        """Shows every command."""
        self._show_hint(NOT_YET)

    def action_editor(self) -> None:
        """Opens what was typed in $EDITOR."""
        self._show_hint(NOT_YET)

    def action_focus_transcript(self) -> None:
        """Goes to the messages; the last one is selected."""
        self._show_hint(NOT_YET)

    def action_focus_prompt(self) -> None:
        """Goes back to the prompt; nothing is selected."""
        self.query_one(Prompt).focus()

    def action_select(self, step: int) -> None:
        """Selects the message before or after."""
        self._show_hint(f"{NOT_YET} ({step})")

    def action_edit(self, number: int = 0) -> None:
        """Takes a question into the prompt; what is sent then is a branch. 0: the selected one."""
        self._show_hint(f"{NOT_YET} ({number})")

    def action_regenerate(self) -> None:
        """Answers the last question anew; the answer before stays as a branch."""
        self._show_hint(NOT_YET)

    def action_delete(self, number: int = 0) -> None:
        """Deletes a message and what follows it, after asking. 0: the selected one."""
        self._show_hint(f"{NOT_YET} ({number})")

    def action_copy(self, number: int = 0) -> None:
        """Copies a message. 0: the selected one, or the last answer."""
        self._show_hint(f"{NOT_YET} ({number})")

    def action_code(self, number: int = 0) -> None:
        """Copies a message's code, the next block each time. 0: of the selected one."""
        self._show_hint(f"{NOT_YET} ({number})")

    def action_branch(self, step: int) -> None:
        """Shows the branch before or after."""
        self._show_hint(f"{NOT_YET} ({step})")

    def action_tokens(self) -> None:
        """Shows the tokens of an answer, each with its numbers."""
        self._show_hint(NOT_YET)

    def action_continue(self) -> None:
        """Goes on with an answer that was stopped."""
        self._show_hint(NOT_YET)

    def action_scroll_transcript(self, pages: int) -> None:
        """Scrolls by pages, wherever the cursor is."""
        transcript = self.query_one(Transcript)
        scroll = transcript.action_page_up if pages < 0 else transcript.action_page_down
        scroll()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Keys that would do nothing now are not shown."""
        if action == "stop":
            return self.activity.is_answering or self.activity.send_when_open
        if action == "reopen":
            return self.activity.phase is Phase.CLOSED
        return True

    # What the engine does

    @on(messages.Opened)
    async def show_opened(self, event: messages.Opened) -> None:
        """The model is there."""
        plan, described = event.model.plan, event.model.info
        self.activity.plan = plan
        self.activity.model_name = sanitize_line(described.name)
        select = f"{plan.select} (lossy)" if plan.lossy else plan.select
        title = f"flashllm  {self.activity.model_name}, {described.spec.encoding_words}, {select}, "
        self.query_one("#title", Static).update(f"{title}context {plan.context}")
        self._enter(Phase.READY)
        for caution in event.model.cautions():
            await self._tell(sanitize_line(caution), "error")
        if self.activity.send_when_open:
            self._wait_to_send(False)
            self.query_one(Prompt).action_submit()

    @on(messages.OpenFailed)
    async def show_open_failed(self, event: messages.OpenFailed) -> None:
        """The model is not there, and why."""
        self._enter(Phase.CLOSED)
        text = f"{self.activity.model_name} cannot be opened: {explain(event.error)}"
        await self._tell(f"{text}\nCtrl+R tries again, Ctrl+Q leaves.", "error")

    @on(messages.Shortened)
    async def show_shortened(self, event: messages.Shortened) -> None:
        """Old messages are left out from now on."""
        self.conversation.dropped += event.dropped
        await self._tell(
            f"The conversation outgrew the context: its first {self.conversation.dropped} messages "
            "are no longer sent to the model.",
            before=self._answer,
        )

    @on(messages.Prefilling)
    def show_prefill(self, event: messages.Prefilling) -> None:
        """The prompt is being read."""
        self.activity.prefill(event.done, event.total)
        self._show_status()

    @on(messages.TokensReady)
    def expect_tokens(self) -> None:
        """Tokens are shown in batches, since a screen need not change oftener than that."""
        self.set_timer(BATCH_SECONDS, self.show_tokens)

    async def show_tokens(self) -> None:
        """Shows the tokens that have come."""
        tokens = self.engine.take()
        if not tokens or self._answer is None:
            return
        if self.activity.phase is Phase.READING:
            self._enter(Phase.WRITING)
        self.activity.count(tokens)
        await self._answer.add("".join(token.text for token in tokens))
        self._show_status()

    @on(messages.Answered)
    async def finish_answer(self, event: messages.Answered) -> None:
        """The answer is complete, or as complete as it will be."""
        await self.show_tokens()
        await self._finish(event.text)
        reasons = {
            "cancelled": "Stopped.",
            "length": f"Stopped at {self._max_tokens} tokens (-n changes that).",
            "context": "Stopped: the context is full. Ctrl+N begins a new conversation.",
        }
        if event.finish_reason in reasons:
            await self._tell(reasons[event.finish_reason])

    @on(messages.Failed)
    async def show_failed(self, event: messages.Failed) -> None:
        """The answer broke off; what was typed comes back if nothing was answered."""
        await self.show_tokens()
        await self._finish(self._answer.shown_text if self._answer else "")
        await self._tell(explain(event.error), "error")

    # Around

    async def _finish(self, text: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            await answer.finish()
        if text.strip():
            self.conversation.begin_answer().text = text
        else:
            question = self.conversation.path()[-1]
            self.conversation.remove(question.id)
            await self._give_back(question.text)
            if answer is not None:
                await answer.remove()
        self._enter(Phase.READY)

    async def _give_back(self, text: str) -> None:
        """What was asked in vain can be sent again, unless something else was typed meanwhile."""
        prompt = self.query_one(Prompt)
        if not prompt.text:
            prompt.load_text(text)
            prompt.move_cursor(prompt.document.end)
            if self._question is not None:
                await self._question.remove()

    async def _tell(self, text: str, kind: str = "info", before: Answer | None = None) -> None:
        transcript = self.query_one(Transcript)
        if before is None:
            await transcript.add(Notice(text, kind))
        else:
            await transcript.mount(Notice(text, kind), before=before)

    def _open(self) -> None:
        self.activity.send_when_open = False
        self._enter(Phase.OPENING)
        self.engine.open()

    def _wait_to_send(self, wait: bool) -> None:
        self.activity.send_when_open = wait
        self.refresh_bindings()
        self._show_status()

    def _enter(self, phase: Phase) -> None:
        self.activity.enter(phase)
        self.refresh_bindings()
        self._show_status()

    def _show_hint(self, text: str) -> None:
        self.activity.hint(text)
        self._show_status()

    def _show_status(self) -> None:
        with contextlib.suppress(IndexError):  # no screen any more
            for line in self.screen_stack[0].query(StatusLine):
                line.parts = self.activity.parts()

    def _post(self, message: Message) -> None:
        with contextlib.suppress(RuntimeError):  # the application has gone
            self.post_message(message)

    def _leave_on_signals(self) -> None:
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()

        def leave(number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.exit, None, 128 + number)
            # A terminal that has gone takes no more output, and writing to it may wait for ever.
            last_resort = threading.Timer(2 * CLOSE_SECONDS, os._exit, [128 + number])
            last_resort.daemon = True
            last_resort.start()

        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, leave)


def explain(error: BaseException) -> str:
    """An error in words for users."""
    if isinstance(error, FlashllmError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory; leave, and come back with a smaller --memory"
    return f"unexpected: {type(error).__name__}: {error}"


def run_app(app: ChatApp) -> int:
    """Runs the chat in the terminal; returns the exit code."""
    app.run()
    code = app.return_code or 0
    if not app.engine.close(CLOSE_SECONDS):
        # Opening, or a read that hangs: nothing that has to be saved is at stake.
        sys.stdout.flush()
        os._exit(code)
    return code
