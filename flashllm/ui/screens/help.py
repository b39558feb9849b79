"""The pages of help: what one needs first, on one screen; then all keys, commands and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from flashllm.ui.commands.bindings import (
    EVERYWHERE_BINDINGS,
    HELP_BINDINGS,
    PROMPT_BINDINGS,
    TRANSCRIPT_BINDINGS,
)
from flashllm.ui.commands.keys import (
    bindings_in,
    format_key,
    format_page_text,
    reworded,
    with_keys,
)
from flashllm.ui.commands.table import COMMANDS
from flashllm.ui.screens.page import Page

FIRST_KEYS = (
    ("Enter", "sends; during an answer it waits. Ctrl+J breaks the line"),
    ("Esc", "stops an answer; takes back what waits"),
    ("Up", "what was sent before"),
    ("Tab", "to the messages: e edits, r answers again, c copies, d deletes"),
    ("F5", "models on this machine, and converting others"),
    ("F4", "conversations; Ctrl+N begins a new one"),
    ("F6", "settings: temperature, memory, context, colours"),
    ("F2", "where time and bytes go; F3: which neurons are in memory"),
    ("Ctrl+Q", "leaves; everything is kept"),
)
FIRST_COMMANDS = (
    ("/", "lists all commands; Up and Down choose, Enter takes"),
    ("/file, /compact", "put a text file into a message; make room in the context"),
)
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


@dataclass(frozen=True, slots=True)
class HelpPage:
    """Sections that are shown together."""

    name: str
    sections: tuple[HelpSection, ...]


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


class HelpScreen(Page[None]):
    """One page at a time, of which the first fits into 80 columns and 24 lines."""

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
    }
    """

    def __init__(self, keymap: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._pages = help_pages(keymap or {})
        self._place = 0

    def compose(self) -> ComposeResult:
        """One text; its frame says which page it is, and how to leave."""
        with VerticalScroll(id="help") as scroll:
            words = "Esc closes, Left and Right turn pages, Up and Down scroll"
            scroll.border_subtitle = format_page_text(self, words)
            yield Static(markup=False)

    def on_mount(self) -> None:
        """The arrows scroll at once."""
        self.query_one("#help").focus()

    def on_resize(self) -> None:
        """Lays the rows out for the width that there is."""
        self.call_after_refresh(self._lay_out)

    def action_turn(self, by: int) -> None:
        """Another page; behind the last one comes the first."""
        self._place = (self._place + by) % len(self._pages)
        self._lay_out()
        self.query_one("#help").scroll_home(animate=False)

    def _lay_out(self) -> None:
        page, scroll = self._pages[self._place], self.query_one("#help")
        names = [f"[{one.name}]" if one is page else one.name for one in self._pages]
        scroll.border_title = Content(f"Help: {', '.join(names)}")
        texts = [section.text(scroll.size.width) for section in page.sections]
        self.query_one(Static).update(Content("\n\n").join(texts))


def help_pages(keymap: Mapping[str, str]) -> list[HelpPage]:
    """All pages, with the keys that the configuration has changed."""

    def keys(title: str, bindings: Iterable[BindingType]) -> HelpSection:
        return key_section(title, with_keys(bindings_in(bindings), keymap))

    commands = tuple((command.usage, command.help) for command in COMMANDS)
    return [
        HelpPage("start", _first_sections(keymap)),
        HelpPage(
            "keys",
            (
                keys("In the prompt", PROMPT_BINDINGS),
                keys("Everywhere", EVERYWHERE_BINDINGS),
                keys("With a message selected", TRANSCRIPT_BINDINGS),
                HelpSection("Mouse", MOUSE),
            ),
        ),
        HelpPage(
            "commands",
            (HelpSection("Commands, typed into the prompt (// sends a slash)", commands),),
        ),
    ]


def _first_sections(keymap: Mapping[str, str]) -> tuple[HelpSection, ...]:
    """What one needs first. Its words name keys, which may be others now."""
    groups = (EVERYWHERE_BINDINGS, PROMPT_BINDINGS, TRANSCRIPT_BINDINGS)
    bindings = bindings_in(*groups)

    def now(rows: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        return tuple(
            (reworded(key, bindings, keymap), reworded(text, bindings, keymap))
            for key, text in rows
        )

    return (
        HelpSection("Keys", now(FIRST_KEYS)),
        HelpSection("Commands", FIRST_COMMANDS),
        HelpSection("The line below the prompt", NUMBERS),
    )
