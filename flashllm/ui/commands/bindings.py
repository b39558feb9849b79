"""Every key of the chat: its binding has an id, by which `[keys]` in config.toml gives it another.

The action of `chat.NAME` is `ChatScreen.action_NAME`, for three of them `ChatApp.action_NAME`;
slash commands and the palette use the same names. Pages have keys of their own.
"""

from __future__ import annotations

from textual.binding import Binding, BindingType

from flashllm.ui.commands.keys import Place, bindings_in


def _binding(keys: str, action: str, words: str, *, name: str = "", show: bool = False) -> Binding:
    """A binding of the chat's screen."""
    return Binding(keys, action, words, show=show, id=f"chat.{name or action}")


def _part(keys: str, action: str, words: str, *, name: str = "", show: bool = False) -> Binding:
    """A binding of a part of it, which leaves the action to the screen."""
    return Binding(keys, f"screen.{action}", words, show=show, id=f"chat.{name or action}")


CHAT_BINDINGS: list[BindingType] = [
    _binding("escape", "stop", "Stop", show=True),
    _binding("ctrl+r", "reopen", "Open again", show=True),
    _binding("ctrl+t", "drop_waiting", "Remove waiting", show=True),
    _binding("f1", "help", "Help", show=True),
    _binding("ctrl+n", "new_conversation", "New", show=True),
    _binding("f2", "io_panel", "I/O", show=True),
    _binding("f3", "neuron_map", "Neurons"),
    _binding("f4", "sessions", "Sessions", show=True),
    _binding("f5", "models", "Models", show=True),
    _binding("f6", "settings", "Settings", show=True),
    _binding("f8", "measure", "Measure the disk"),
    _binding("ctrl+p", "palette", "Palette", show=True),
    _binding("ctrl+g", "editor", "Editor"),
]

QUIT = Binding("ctrl+q", "app.quit", "Quit", priority=True, id="chat.quit")
APP_BINDINGS: list[BindingType] = [
    # Before whatever has the focus, a page on top of the chat included.
    Binding("ctrl+c", "app.copy_or_stop", "Copy or stop", show=False, priority=True,
            id="chat.copy_or_stop"),
    QUIT,
    Binding("ctrl+z", "app.suspend", "Undo or suspend", show=False, id="chat.suspend"),
]  # fmt: skip
EVERYWHERE_BINDINGS: list[BindingType] = [*CHAT_BINDINGS, *APP_BINDINGS]
"""Those of the chat wherever the focus is."""

FOOTER_ORDER = (
    "chat.stop", "chat.reopen", "chat.send", "chat.edit", "chat.regenerate", "chat.copy",
    "chat.continue", "chat.focus_prompt", "invitation.ask", "invitation.back", "chat.help",
    "chat.quit", "chat.models", "chat.new_conversation", "chat.drop_waiting", "chat.sessions",
    "chat.focus_transcript", "chat.settings", "chat.delete", "chat.code", "chat.io_panel",
    "chat.palette",
)  # fmt: skip
"""The chat's keys in its last line, the most useful ones first: not all of them fit."""

PROMPT_BINDINGS: list[BindingType] = [
    Binding("enter", "submit", "Send", id="chat.send"),
    Binding("ctrl+j,shift+enter", "break_line", "Line break", show=False, id="chat.break_line"),
    Binding("up", "earlier", "Earlier input", show=False, id="chat.history_earlier"),
    Binding("down", "later", "Later input", show=False, id="chat.history_later"),
    _part("tab,shift+tab", "focus_transcript", "Messages", show=True),
    _part("pageup", "scroll_transcript(-1)", "Page up", name="page_up"),
    _part("pagedown", "scroll_transcript(1)", "Page down", name="page_down"),
]

INVITATION_BINDINGS: list[BindingType] = [
    Binding("enter", "ask", "Ask", id="invitation.ask"),
    Binding("up", "go(-1)", "Up", show=False, id="invitation.up"),
    Binding("down", "go(1)", "Down", show=False, id="invitation.down"),
    Binding("1", "ask(1)", "The first", show=False, id="invitation.first"),
    Binding("2", "ask(2)", "The second", show=False, id="invitation.second"),
    Binding("3", "ask(3)", "The third", show=False, id="invitation.third"),
    Binding("escape,tab,shift+tab", "screen.focus_prompt", "Back", id="invitation.back"),
]

TRANSCRIPT_BINDINGS: list[BindingType] = [
    _part("up,k", "select(-1)", "Earlier", name="select_earlier"),
    _part("down,j", "select(1)", "Later", name="select_later"),
    _part("e", "edit", "Edit", show=True),
    _part("r", "regenerate", "Regenerate", show=True),
    _part("d", "delete", "Delete", show=True),
    _part("c", "copy", "Copy", show=True),
    _part("b", "code", "Copy code", show=True),
    _part("left", "branch(-1)", "Branch before", name="branch_previous"),
    _part("right", "branch(1)", "Branch after", name="branch_next"),
    _part("t", "tokens", "Tokens"),
    _part("enter", "continue", "Continue", show=True),
    _part("escape", "focus_prompt(True)", "Back", name="focus_prompt", show=True),
    _part("tab,shift+tab", "focus_prompt", "Back", name="focus_prompt_tab"),
]

# The keys that leave a page for nothing have priority: they are done before the next key or pasted
# text, which is for what is below then, is shared out.
SESSIONS_BINDINGS: list[BindingType] = [
    Binding("escape", "back", "Back", priority=True, id="sessions.back"),
    Binding("up", "move(-1)", "Up", show=False, priority=True, id="sessions.up"),
    Binding("down", "move(1)", "Down", show=False, priority=True, id="sessions.down"),
    Binding("pageup", "move(-8)", "Page up", show=False, priority=True, id="sessions.page_up"),
    Binding("pagedown", "move(8)", "Page down", show=False, priority=True,
            id="sessions.page_down"),
    Binding("ctrl+n", "new", "New", priority=True, id="sessions.new"),
    Binding("ctrl+r", "rename", "Rename", priority=True, id="sessions.rename"),
    Binding("ctrl+d", "delete", "Delete", priority=True, id="sessions.delete"),
    Binding("ctrl+e", "export", "Export", priority=True, id="sessions.export"),
    Binding("ctrl+o", "import", "Import", priority=True, id="sessions.import"),
]  # fmt: skip

SETTINGS_BINDINGS: list[BindingType] = [
    Binding("ctrl+s", "apply", "Apply", priority=True, id="settings.apply"),
    Binding("escape", "leave", "Leave as it was", priority=True, id="settings.leave"),
    Binding("tab,down", "move(1)", "Next", show=False, id="settings.next"),
    Binding("shift+tab,up", "move(-1)", "Previous", show=False, id="settings.previous"),
]  # fmt: skip

PICKER_BINDINGS: list[BindingType] = [
    # Before the table and the filter, which have uses of their own for it.
    Binding("enter", "open", "Open", id="picker.open", priority=True),
    Binding("c", "convert", "Convert", id="picker.convert"),
    Binding("slash", "filter", "Filter", id="picker.filter"),
    Binding("f5", "scan", "Look again", id="picker.scan"),
    Binding("escape", "leave", "Close", priority=True, id="picker.leave"),
    Binding("up", "move(-1)", "Up", show=False, id="picker.up"),
    Binding("down", "move(1)", "Down", show=False, id="picker.down"),
]

CONVERT_BINDINGS: list[BindingType] = [
    Binding("ctrl+s", "start", "Convert", id="convert.start"),
    Binding("ctrl+x", "stop", "Stop", id="convert.stop"),
    Binding("ctrl+o", "open", "Open", id="convert.open"),
    Binding("ctrl+b", "again", "Another", id="convert.again"),
    Binding("escape", "leave", "Close", priority=True, id="convert.leave"),
]

HELP_BINDINGS: list[BindingType] = [
    Binding("escape,f1,enter,q", "dismiss", "Close", priority=True, id="help.close"),
    # Before the text, which would scroll sideways with them.
    Binding("right,tab", "turn(1)", "Next page", show=False, priority=True, id="help.next"),
    Binding(
        "left,shift+tab", "turn(-1)", "Page before", show=False, priority=True, id="help.previous"
    ),
]

LOG_BINDINGS: list[BindingType] = [
    Binding("escape,q", "dismiss", "Close", priority=True, id="log.close"),
    Binding("home", "scroll(False)", "First", show=False, priority=True, id="log.first"),
    Binding("end", "scroll(True)", "Last", priority=True, id="log.last"),
]

CONFIRM_BINDINGS: list[BindingType] = [
    Binding("y", "answer(True)", "Yes", id="confirm.yes"),
    Binding("n,escape", "answer(False)", "No", priority=True, id="confirm.no"),
    Binding("left,right", "app.focus_next", "Other", show=False, id="confirm.other"),
]

TOKEN_BINDINGS: list[BindingType] = [
    Binding("left,h", "go(-1)", "Token before", id="tokens.previous"),
    Binding("right,l", "go(1)", "Next token", id="tokens.next"),
    # Before the text, which scrolls with these keys where it is longer than the screen.
    Binding("home", "go(-1000000)", "First", show=False, priority=True, id="tokens.first"),
    Binding("end", "go(1000000)", "Last", show=False, priority=True, id="tokens.last"),
    Binding("escape,t,q", "dismiss", "Close", priority=True, id="tokens.close"),
]

_FIRST = bindings_in(APP_BINDINGS)

PLACES = (
    Place(bindings_in(EVERYWHERE_BINDINGS, PROMPT_BINDINGS), typed=True),
    Place(bindings_in(_FIRST, TRANSCRIPT_BINDINGS), typed=False),
    Place(bindings_in(_FIRST, INVITATION_BINDINGS), typed=False),
    Place(bindings_in(_FIRST, SESSIONS_BINDINGS), typed=True),
    Place(bindings_in(_FIRST, SETTINGS_BINDINGS), typed=True),
    Place(bindings_in(_FIRST, PICKER_BINDINGS), typed=False),
    Place(bindings_in(_FIRST, CONVERT_BINDINGS), typed=True),
    Place(bindings_in(_FIRST, HELP_BINDINGS), typed=False, has_field=False),
    Place(bindings_in(_FIRST, LOG_BINDINGS), typed=False, has_field=False),
    Place(bindings_in(_FIRST, CONFIRM_BINDINGS), typed=False, has_field=False),
    Place(bindings_in(_FIRST, TOKEN_BINDINGS), typed=False, has_field=False),
)
"""Where keys are looked for together; in each one a key has one action."""
