"""The application: the chat's screen in a terminal, its colours, and how one leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from flashllm.ui.base_app import CLOSE_SECONDS, RestoringApp
from flashllm.ui.chat.screen import ChatScreen
from flashllm.ui.commands.bindings import APP_BINDINGS
from flashllm.ui.lean_strips import make_strips_lean
from flashllm.ui.widgets import themes

if TYPE_CHECKING:
    from flashllm.ui.screens.confirm import ConfirmScreen


class ChatApp(RestoringApp):
    """Shows a chat, and pages above it."""

    CSS_PATH = Path(__file__).with_name("chat.tcss")
    TITLE = "flashllm"
    ENABLE_COMMAND_PALETTE = False
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-tall")]  # noqa: RUF012  as the base does
    BINDINGS: ClassVar[list[BindingType]] = [*APP_BINDINGS]

    def __init__(self, chat: ChatScreen) -> None:
        make_strips_lean()
        super().__init__(ansi_color=themes.ansi_color())
        self.chat = chat
        self._asks_to_leave: ConfirmScreen | None = None
        wanted = chat.settings.theme or self.theme
        self.theme = themes.find_theme(wanted, sorted(self.available_themes))

    def get_default_screen(self) -> ChatScreen:
        """The chat."""
        return self.chat

    def on_mount(self) -> None:
        """Takes the keys of the configuration."""
        self.set_keymap(self.chat.keymap)
        self.leave_on_signals()

    def save_at_once(self) -> None:
        """Gives the disk a moment for what was said last; what is typed is not kept."""
        self.chat.saving.flush(CLOSE_SECONDS / 2)

    def action_copy_or_stop(self) -> None:
        """Ctrl+C stops an answer; otherwise it copies, and says how to leave."""
        selected = self.screen.get_selected_text() or self.chat.prompt.selected_text
        if self.chat.activity.is_answering:
            self.chat.action_stop()
        elif selected:
            self.copy_to_clipboard(selected)
            self.chat.show_hint("copied")
        else:
            self.chat.show_hint("Ctrl+Q leaves")

    def action_suspend(self) -> None:
        """Undoes what was typed; where nothing is to be undone, gives the terminal to the shell."""
        prompt = self.chat.prompt
        if prompt.has_focus and prompt.history.undo_stack:
            prompt.undo()
        elif not self.suspend_to_shell():
            self.chat.show_hint("there is no shell to go to")

    async def action_quit(self) -> None:
        """Leaves; where that ends a conversion it is asked first, and a second time not."""
        begun = self.chat.begun_conversions
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
        self._asks_to_leave = ConfirmScreen(self.chat.with_keys(words))
        self.push_screen(self._asks_to_leave, leave)
