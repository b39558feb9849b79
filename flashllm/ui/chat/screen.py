"""What keys, slash commands and the palette can ask for: each action by its name.

Pages are imported where they are opened, since the first frame would wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.app import SuspendNotSupported

from flashllm.errors import UsageError
from flashllm.library.models import ModelChoice
from flashllm.ui.base_app import RestoringApp
from flashllm.ui.chat import messages
from flashllm.ui.chat.status import Phase
from flashllm.ui.commands.bindings import APP_BINDINGS
from flashllm.ui.commands.keys import bindings_in, give_way, reworded, with_keys
from flashllm.ui.transcript.turn import TurnView
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.library.conversion_job import Conversions
    from flashllm.settings.resolve import ChatSettings
    from flashllm.ui.chat.answering import Answering
    from flashllm.ui.chat.context_meter import ContextMeter
    from flashllm.ui.chat.conversation_view import ConversationView
    from flashllm.ui.chat.engine_thread import EngineThread
    from flashllm.ui.chat.slash_commands import SlashActions
    from flashllm.ui.chat.status import Activity
    from flashllm.ui.chat.turn_actions import TurnActions
    from flashllm.ui.panels.panels import SidePanels
    from flashllm.ui.prompt.prompt import Prompt
    from flashllm.ui.screens.confirm import ConfirmScreen
    from flashllm.ui.screens.models import Models


class Actions(RestoringApp):
    """The actions of `ChatApp`, which has what they need."""

    activity: Activity
    answering: Answering
    choice: ModelChoice
    engine: EngineThread
    library: Callable[[], Models] | None
    meter: ContextMeter
    panels: SidePanels
    keymap: dict[str, str]
    prompt: Prompt
    settings: ChatSettings
    shown: ConversationView
    slash: SlashActions
    turns: TurnActions
    _asks_to_leave: ConfirmScreen | None = None

    if TYPE_CHECKING:

        @property
        def conversions(self) -> Conversions:
            """What is converted beside the chat."""

        async def tell(self, text: str, kind: str = "info", *, above_answer: bool = False) -> None:
            """A remark in the transcript."""

        def show_hint(self, text: str) -> None:
            """A remark on the status line, for a while."""

        def show_status(self) -> None:
            """The status line as it is now."""

        def open_model(self, choice: ModelChoice) -> None:
            """Closes the model that is open, and opens this one."""

        async def begin_conversation(self) -> None:
            """A new conversation; the one before is kept."""

        def stop(self) -> None:
            """Stops the answer, or what else waits or is begun."""

    @property
    def begun_conversions(self) -> Conversions | None:
        """None where nothing was to be converted: the code is not loaded to find that."""
        begun: Conversions | None = vars(self).get("conversions")  # a cached property
        return begun

    def take_keys(self) -> None:
        """Gives actions the keys of the configuration, before the text's own ones."""
        self.set_keymap(self.keymap)
        give_way(self.prompt, with_keys(bindings_in(APP_BINDINGS), self.keymap))

    def in_words(self, text: str) -> str:
        """A sentence with the keys as they are now."""
        return reworded(text, bindings_in(APP_BINDINGS), self.keymap) if self.keymap else text

    def action_stop(self) -> None:
        """Stops the answer, or keeps what waits for the model from being sent."""
        self.stop()

    def action_copy_or_stop(self) -> None:
        """Ctrl+C stops an answer; otherwise it copies, and says how to leave."""
        selected = self.screen.get_selected_text() or self.prompt.selected_text
        if self.activity.is_answering:
            self.action_stop()
        elif selected:
            self.copy_to_clipboard(selected)
            self.show_hint("copied")
        else:
            self.show_hint("Ctrl+Q leaves")

    async def action_quit(self) -> None:
        """Leaves; where that ends a conversion it is asked first, and a second time not."""
        begun = self.begun_conversions
        job = None if begun is None else begun.job
        if job is None or job.status.is_over or self.screen is self._asks_to_leave:
            await super().action_quit()
            return

        def leave(yes: bool | None) -> None:
            if yes:
                self.exit()

        from flashllm.library.formatting import clean
        from flashllm.ui.screens.confirm import ConfirmScreen

        name = clean(job.destination.name)
        words = f"{name} is being converted, which ends with the chat. Leave? Ctrl+Q again does."
        self._asks_to_leave = ConfirmScreen(self.in_words(words))
        self.push_screen(self._asks_to_leave, leave)

    async def action_new_conversation(self) -> None:
        """Begins a new conversation; the one before is kept."""
        await self.begin_conversation()

    def action_reopen(self) -> None:
        """Tries again to open the model."""
        if self.activity.phase is Phase.CLOSED:
            self.open_model(self.choice)

    async def action_retry(self) -> None:
        """Opens the model again; if it is open, the last question is asked again."""
        if self.activity.phase is Phase.CLOSED:
            self.open_model(self.choice)
        else:
            await self.turns.regenerate()

    def action_help(self) -> None:
        """Shows the page of help."""
        from flashllm.ui.screens.help import HelpScreen

        self.push_screen(HelpScreen(self.keymap))

    def action_io_panel(self) -> None:
        """Shows or hides where the time and the bytes go."""
        self.panels.toggle_io()

    def action_neuron_map(self) -> None:
        """Shows or hides the map of neurons."""
        self.panels.toggle_map()

    def action_sessions(self) -> None:
        """Shows the conversations that were kept."""
        self.slash.open_sessions()

    def action_models(self) -> None:
        """Shows the models on this machine."""
        if self.activity.is_answering:
            self.show_hint(self.answering.reason_not_ready())
        elif self.library is None:
            self.show_hint("no models are looked for here")
        else:
            from flashllm.ui.screens.models import ModelPicker

            picker = ModelPicker(self.library(), self.choice, self.conversions)
            self.push_screen(picker, self.take_model)

    def action_convert(self, source: str = "", destination: str = "") -> None:
        """Makes a converted model of a checkpoint."""
        if self.library is None:
            self.show_hint("nothing can be converted here")
            return
        from flashllm.ui.screens.convert import ConvertScreen

        def opened(made: Path | None) -> None:
            self.take_model(None if made is None else ModelChoice(made, sanitize_line(made.name)))

        page = ConvertScreen(self.conversions, self.library(), source, destination)
        self.push_screen(page, opened)

    def take_model(self, choice: ModelChoice | None) -> None:
        """Opens the model that was chosen, if one was."""
        if choice is None or (choice == self.choice and self.activity.phase is not Phase.CLOSED):
            return
        if self.activity.is_answering:
            self.show_hint(self.answering.reason_not_ready())
        else:
            self.open_model(choice)

    def action_settings(self) -> None:
        """Shows the system prompt and the sampling."""
        self.slash.open_settings()

    def action_palette(self) -> None:
        """Shows every command."""
        from flashllm.ui.chat.palette import CommandPaletteProvider, Palette

        words = "What to do? Type to search"
        self.push_screen(Palette([CommandPaletteProvider], placeholder=words))

    def action_tokens(self) -> None:
        """Shows the tokens of an answer, each with its numbers."""
        turn = self.turns.chosen(0, "assistant")
        numbers = self.panels.numbers(turn.id) if turn is not None else []
        if numbers:
            from flashllm.ui.screens.token_details import TokenView

            self.push_screen(TokenView(numbers))
        else:
            words = "numbers are kept of the answers of this run only"
            self.show_hint(f"{words}, while their conversation is open")

    async def action_editor(self) -> None:
        """Opens what was typed in $EDITOR."""
        from flashllm.ui.prompt.external_editor import edited

        try:
            with self.suspend():
                text = edited(self.prompt.whole_text, self.settings.editor)
        except UsageError as error:
            await self.tell(str(error), "error")
        except SuspendNotSupported:
            self.show_hint("this terminal cannot be given to an editor")
        else:
            self.prompt.put_text(text)

    async def action_focus_transcript(self) -> None:
        """Goes to the messages; the last one is selected. A command is completed instead."""
        if self.slash.complete():
            return
        self.shown.transcript.focus()
        await self.shown.transcript.step(-1)

    def action_focus_prompt(self, stop: bool = False) -> None:
        """Goes back to the prompt; nothing is selected. `stop`: an answer on its way is stopped."""
        if stop and self.activity.is_answering:
            self.action_stop()
        self.shown.transcript.select(None)
        self.prompt.focus()

    async def action_select(self, step: int) -> None:
        """Selects the message before or after."""
        await self.shown.transcript.step(step)

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

    @on(TurnView.Chosen)
    def choose_turn(self, event: TurnView.Chosen) -> None:
        """A click selects a message."""
        self.shown.transcript.focus()
        self.shown.transcript.select(event.turn_id)

    def action_edit(self, number: int = 0) -> None:
        """Takes a question into the prompt; what is sent then is a branch. 0: the selected one."""
        self.turns.edit(number)

    async def action_regenerate(self) -> None:
        """Answers the last question anew; the answer before stays as a branch."""
        await self.turns.regenerate()

    def action_delete(self, number: int = 0) -> None:
        """Deletes a message and what follows it, after asking. 0: the selected one."""
        self.turns.delete(number)

    def action_copy(self, number: int = 0) -> None:
        """Copies a message. 0: the selected one, or the last answer."""
        self.turns.copy(number)

    def action_code(self, number: int = 0) -> None:
        """Copies a message's code, the next block each time; or block n of the last answer."""
        self.turns.code(number)

    async def action_branch(self, step: int) -> None:
        """Shows the branch before or after."""
        await self.turns.branch(step)

    async def action_continue(self) -> None:
        """Goes on with an answer that was stopped."""
        await self.turns.go_on()

    async def action_context(self) -> None:
        """Says how full the context is."""
        await self.tell(self.meter.fill.words())

    async def action_clear(self) -> None:
        """Takes remarks off the screen."""
        await self.shown.transcript.clear_notices()

    def action_scroll_transcript(self, pages: int) -> None:
        """Scrolls by pages, wherever the cursor is."""
        transcript = self.shown.transcript
        scroll = transcript.action_page_up if pages < 0 else transcript.action_page_down
        scroll()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Keys that would do nothing now are not shown."""
        if action == "stop":
            waits = self.activity.send_when_open or self.turns.editing is not None
            return self.activity.is_answering or waits
        if action == "reopen":
            return self.activity.phase is Phase.CLOSED
        return True
