"""Every key of the chat: its binding has an id, by which `[keys]` in config.toml gives it another.

The action of each id is `ChatApp.action_NAME`; slash commands and the palette use the same names.
"""

from __future__ import annotations

from textual.binding import Binding, BindingType


def _binding(
    keys: str, action: str, words: str, *, name: str = "", show: bool = False, first: bool = False
) -> Binding:
    # `first`: before whatever has the focus, a screen on top of the chat included.
    name = name or action
    return Binding(keys, f"app.{action}", words, show=show, priority=first, id=f"chat.{name}")


APP_BINDINGS: list[BindingType] = [
    _binding("escape", "stop", "Stop", show=True),
    _binding("ctrl+r", "reopen", "Open again", show=True),
    _binding("f1", "help", "Help", show=True),
    _binding("ctrl+n", "new_conversation", "New", show=True),
    _binding("f2", "io_panel", "I/O", show=True),
    _binding("f3", "neuron_map", "Neurons"),
    _binding("f4", "sessions", "Sessions", show=True),
    _binding("f5", "models", "Models", show=True),
    _binding("f6", "settings", "Settings"),
    _binding("ctrl+p", "palette", "Palette"),
    _binding("ctrl+g", "editor", "Editor"),
    _binding("ctrl+c", "copy_or_stop", "Copy or stop", first=True),
    _binding("ctrl+q", "quit", "Quit", show=True, first=True),
]

PROMPT_BINDINGS: list[BindingType] = [
    Binding("enter", "submit", "Send", id="chat.send"),
    Binding("ctrl+j,shift+enter", "break_line", "Line break", show=False, id="chat.break_line"),
    Binding("up", "earlier", "Earlier input", show=False, id="chat.history_earlier"),
    Binding("down", "later", "Later input", show=False, id="chat.history_later"),
    _binding("tab,shift+tab", "focus_transcript", "Messages", show=True),
    _binding("pageup", "scroll_transcript(-1)", "Page up", name="page_up"),
    _binding("pagedown", "scroll_transcript(1)", "Page down", name="page_down"),
]

TRANSCRIPT_BINDINGS: list[BindingType] = [
    _binding("up,k", "select(-1)", "Earlier", name="select_earlier"),
    _binding("down,j", "select(1)", "Later", name="select_later"),
    _binding("e", "edit", "Edit", show=True),
    _binding("r", "regenerate", "Regenerate", show=True),
    _binding("d", "delete", "Delete", show=True),
    _binding("c", "copy", "Copy", show=True),
    _binding("b", "code", "Copy code", show=True),
    _binding("left", "branch(-1)", "Branch before", name="branch_previous"),
    _binding("right", "branch(1)", "Branch after", name="branch_next"),
    _binding("t", "tokens", "Tokens"),
    _binding("enter", "continue", "Continue", show=True),
    _binding("escape", "focus_prompt(True)", "Back", name="focus_prompt", show=True),
    _binding("tab,shift+tab", "focus_prompt", "Back", name="focus_prompt_tab"),
]
