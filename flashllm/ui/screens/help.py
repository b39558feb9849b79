"""The page of help: keys as they are bound now, commands, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from flashllm.ui.commands.bindings import (
    EVERYWHERE_BINDINGS,
    HELP_BINDINGS,
    PROMPT_BINDINGS,
    TRANSCRIPT_BINDINGS,
)
from flashllm.ui.commands.keys import bindings_in, format_key, format_page_text, with_keys
from flashllm.ui.commands.table import COMMANDS

NUMBERS = (
    ("tok", "tokens of this answer"),
    ("tok/s", "tokens a second, the prompt apart"),
    ("MB/tok", "read from flash for each token"),
    ("hit", "share of the active neurons that were in memory already"),
    ("RSS", "memory of the processes, and its ceiling (--memory)"),
    ("ctx", "tokens of the context in use"),
)
MOUSE = (
    ("click", "chooses a message, presses a key of the line at the bottom"),
    ("wheel", "scrolls"),
    ("drag", "selects text; the key that copies copies it"),
)
_NARROW = 56


@dataclass(frozen=True, slots=True)
class HelpSection:
    """A heading, and rows of something and what it does."""

    title: str
    rows: tuple[tuple[str, str], ...]

    def text(self, width: int) -> Content:
        """The section in so many columns; few ones give explanations lines of their own."""
        lines = [Content.styled(self.title, "bold underline")]
        column = max((len(name) for name, _ in self.rows), default=0) + 2
        for name, explained in self.rows:
            if width < _NARROW or column > width // 2:
                lines += [Content.styled(name, "bold"), Content(f"  {explained}")]
            else:
                lines.append(Content.assemble((f"{name:<{column}}", "bold"), explained))
        return Content("\n").join(lines)


def _begun_small(text: str) -> str:
    return f"{text[0].lower()}{text[1:]}" if text[1:2].islower() else text


def key_section(title: str, bindings: Iterable[Binding]) -> HelpSection:
    """The keys of some bindings; one action, one row."""
    keys: dict[str, list[str]] = {}
    for binding in bindings:
        described = binding.tooltip or binding.description
        if described:
            keys.setdefault(described, []).append(format_key(binding.key))
    rows = ((" or ".join(names), _begun_small(text)) for text, names in keys.items())
    return HelpSection(title, tuple(rows))


class HelpScreen(ModalScreen[None]):
    """Sections, one below the other; any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [*HELP_BINDINGS]
    DEFAULT_CSS = """
    HelpScreen {
        align: center middle;
        background: $background 60%;
    }
    HelpScreen > #help {
        width: 88;
        max-width: 100%;
        height: auto;
        max-height: 100%;
        padding: 0 1;
        border: round $border;
        background: $surface;
    }
    HelpScreen Static {
        height: auto;
        margin-bottom: 1;
    }
    """

    def __init__(self, keymap: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._sections = help_sections(keymap or {})

    def compose(self) -> ComposeResult:
        """One scrolling text; its title says how to leave."""
        with VerticalScroll(id="help") as scroll:
            scroll.border_title = "Help"
            scroll.border_subtitle = format_page_text(self, "Esc closes, Up and Down scroll")
            for _ in self._sections:
                yield Static(markup=False)

    def on_mount(self) -> None:
        """The arrows scroll at once."""
        self.query_one("#help").focus()

    def on_resize(self) -> None:
        """Lays the rows out for the width that there is."""
        self.call_after_refresh(self._lay_out)

    def _lay_out(self) -> None:
        width = self.query_one("#help").size.width
        for section, static in zip(self._sections, self.query(Static), strict=True):
            static.update(section.text(width))


def help_sections(keymap: Mapping[str, str]) -> list[HelpSection]:
    """All of the page, with the keys that the configuration has changed."""

    def keys(title: str, bindings: Iterable[BindingType]) -> HelpSection:
        return key_section(title, with_keys(bindings_in(bindings), keymap))

    commands = tuple((command.usage, command.help) for command in COMMANDS)
    return [
        keys("In the prompt", PROMPT_BINDINGS),
        keys("Everywhere", EVERYWHERE_BINDINGS),
        keys("With a message selected", TRANSCRIPT_BINDINGS),
        HelpSection("Commands, typed into the prompt (// sends a slash)", commands),
        HelpSection("The line below the prompt", NUMBERS),
        HelpSection("Mouse", MOUSE),
    ]
