"""The conversations that were kept: search, open, rename, delete, export, import."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from flashllm.conversations.files import export, export_name, import_file
from flashllm.conversations.records import SessionSummary
from flashllm.conversations.store import NEWEST_MAX, SessionStore
from flashllm.errors import FlashllmError
from flashllm.library.directories import shown_name
from flashllm.ui.commands.bindings import SESSIONS_BINDINGS
from flashllm.ui.commands.keys import format_page_text
from flashllm.ui.screens.page import Page
from flashllm.ui.widgets.footer import KeyFooter
from flashllm.ui.widgets.line_input import LineInput
from flashllm.untrusted.terminal import sanitize_line

ROWS_BEYOND = 8
"""More rows than a screen has are made below what is seen; others when one comes near them."""
_Value = TypeVar("_Value")
OpenSessions = Callable[[], SessionStore]
"""Opens the store, on whatever thread it is called."""


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """What the user chose: to open a session, to begin a new one, or to delete the one shown."""

    action: Literal["open", "new", "delete"]
    id: int | None = None
    created: float | None = None
    """Of one to be deleted: by now its id may be another's."""


class _Asking(Enum):
    """What the one line of input is for."""

    SEARCH = auto()
    NAME = auto()
    EXPORT = auto()
    IMPORT = auto()
    DELETE = auto()


class SessionsScreen(Page[SessionChoice | None]):
    """A line to type into, and the list. The store is asked on a thread of its own.

    Renaming, exporting and importing are done here; only a deletion of the session `current`, which
    the chat shows and goes on writing, is left to the chat.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*SESSIONS_BINDINGS]
    DEFAULT_CSS = """
    SessionsScreen {
        align: center middle;
        background: $background 60%;
    }
    SessionsScreen > Vertical {
        width: 100;
        max-width: 100%;
        height: 90%;
        border: round $border;
        background: $surface;
    }
    SessionsScreen Input {
        border: none;
        height: 1;
        padding: 0 1;
    }
    SessionsScreen OptionList {
        border: none;
        height: 1fr;
        padding: 0;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        scrollbar-size-vertical: 1;
    }
    SessionsScreen OptionList > .option-list--option-highlighted {
        color: $block-cursor-foreground;
        background: $block-cursor-background;
        text-style: $block-cursor-text-style;
    }
    SessionsScreen #said {
        height: auto;
        max-height: 3;
        padding: 0 1;
        color: $text-muted;
    }
    SessionsScreen #said.error {
        color: $text-error;
    }
    """

    def __init__(
        self,
        open_sessions: OpenSessions,
        current: int | None = None,
        folder: Path | None = None,
        *,
        began: float | None = None,
    ) -> None:
        super().__init__()
        self._open_sessions = open_sessions
        self._current, self._began = current, began
        self._folder = folder or Path.cwd()
        self._asking = _Asking.SEARCH
        self._about: SessionSummary | None = None
        """What is asked for concerns this one, whatever the list shows meanwhile."""
        self._query = ""
        self._shown: list[SessionSummary] = []
        """What was found; the list has rows of the first ones."""

    def compose(self) -> ComposeResult:
        """A box with all of it."""
        with Vertical() as box:
            box.border_title = "Sessions"
            yield LineInput(placeholder="Type to search", compact=True, select_on_focus=False)
            options = OptionList(markup=False)
            options.can_focus = False  # keys always go to the line
            yield options
            yield Static(id="said", markup=False)
            yield KeyFooter()

    def on_mount(self) -> None:
        """Shows all of them."""
        self.query_one(Input).focus()
        self.watch(self.query_one(OptionList), "scroll_y", lambda: self._make_rows(), init=False)
        self._search()

    def on_resize(self) -> None:
        """A higher screen shows more of them."""
        self._make_rows()

    # Keys

    def action_back(self) -> None:
        """Gives up what is asked for; then the search; then the screen."""
        if self._asking is not _Asking.SEARCH:
            self._ask(_Asking.SEARCH)
        elif self._query:
            self._ask(_Asking.SEARCH, "")
        else:
            self.dismiss(None)

    def action_move(self, rows: int) -> None:
        """Another row of the list, unless something is asked about one."""
        options = self.query_one(OptionList)
        if options.option_count and self._asking is _Asking.SEARCH:
            row = max(0, min((options.highlighted or 0) + rows, len(self._shown) - 1))
            self._make_rows(row)
            options.highlighted = row

    def action_new(self) -> None:
        """A new conversation."""
        self.dismiss(SessionChoice("new"))

    def action_rename(self) -> None:
        """Asks for another name."""
        if (chosen := self._chosen()) is not None:
            words = "Another name; Enter keeps it."
            self._ask(_Asking.NAME, sanitize_line(chosen.name), words, chosen)

    def action_delete(self) -> None:
        """Asks whether it is meant."""
        if (chosen := self._chosen()) is not None:
            words = f"Delete “{_title(chosen)}”, {_count(chosen.turns, 'message')}?"
            keys = format_page_text(self, "Enter deletes for ever, Esc keeps it.")
            self._ask(_Asking.DELETE, "", f"{words} {keys}", chosen)

    def action_export(self) -> None:
        """Asks for a file."""
        if (chosen := self._chosen()) is not None:
            path = self._folder / export_name(chosen.id, chosen.name, "md")
            words = "A file; .md is to read, .json can be imported."
            self._ask(_Asking.EXPORT, str(path), words, chosen)

    def action_import(self) -> None:
        """Asks for a file."""
        self._ask(_Asking.IMPORT, "", "A file that was exported as JSON.")

    @on(Input.Changed)
    def follow(self, event: Input.Changed) -> None:
        """Searches while one types."""
        if self._asking is _Asking.SEARCH and event.value != self._query:
            self._query = event.value
            self._search()

    @on(Input.Submitted)
    def accept(self, event: Input.Submitted) -> None:
        """Enter does what was asked for."""
        text = event.value.strip()
        chosen = self._chosen() if self._asking is _Asking.SEARCH else self._about
        if self._asking is _Asking.IMPORT:
            self._import(text)
        elif chosen is None:
            return
        elif self._asking is _Asking.SEARCH:
            self.dismiss(SessionChoice("open", chosen.id))
        elif self._asking is _Asking.NAME:
            self._rename(chosen, sanitize_line(text))
        elif self._asking is _Asking.EXPORT:
            self._export(chosen.id, text)
        elif self._is_current(chosen):
            self.dismiss(SessionChoice("delete", chosen.id, chosen.created))
        else:
            self._delete(chosen)

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        """A click opens."""
        if self._asking is _Asking.SEARCH:
            self.dismiss(SessionChoice("open", self._shown[event.option_index].id))

    # What takes time

    @work(exclusive=True, group="search")
    async def _search(self, said: str = "", wanted: int | None = None) -> None:
        query = self._query
        found = await self._with_store(lambda store: list(store.list(query)))
        if found is None or not self.query(OptionList):  # the page was left meanwhile
            return
        if wanted is None:
            kept = self._chosen()
            wanted = kept.id if kept is not None else self._current
        self._shown = found
        options = self.query_one(OptionList)
        options.clear_options()
        ids = [summary.id for summary in found]
        row = ids.index(wanted) if wanted in ids else 0
        self._make_rows(row)
        options.highlighted = row if ids else None
        if self._asking is _Asking.SEARCH:
            self._say(said or self._format_found())

    @work
    async def _rename(self, chosen: SessionSummary, name: str) -> None:
        if not name:
            self._say("A name needs a letter or more.", error=True)
            return

        def rename(store: SessionStore) -> bool:
            store.rename(chosen.id, name, chosen.created)
            return True

        if await self._with_store(rename):
            self._ask(_Asking.SEARCH, None, "")
            self._search(f"It is called “{name}” now.")

    @work
    async def _delete(self, chosen: SessionSummary) -> None:
        def delete(store: SessionStore) -> bool:
            store.delete(chosen.id, chosen.created)
            return True

        if await self._with_store(delete):
            self._ask(_Asking.SEARCH)
            self._search(f"“{_title(chosen)}” is deleted.")

    @work
    async def _export(self, session_id: int, path: str) -> None:
        written = await self._with_store(lambda store: export(store, session_id, path))
        if written is not None:
            self._ask(_Asking.SEARCH, None, f"Written: {written}")

    @work
    async def _import(self, path: str) -> None:
        imported = await self._with_store(lambda store: import_file(store, path))
        if imported is not None:
            self._ask(_Asking.SEARCH, "")
            self._query = ""
            self._search(f"Imported as session {imported}.", imported)

    async def _with_store(self, work: Callable[[SessionStore], _Value]) -> _Value | None:
        def call() -> _Value:
            with self._open_sessions() as store:
                return work(store)

        try:
            return await asyncio.to_thread(call)
        except FlashllmError as error:
            self._say(str(error), error=True)
            return None

    # Around

    def _make_rows(self, wanted: int = 0) -> None:
        """Rows as far as row `wanted` and what is seen, and a screen below it."""
        options = self.query_one(OptionList)
        there, top = options.option_count, max(wanted, int(options.scroll_y))
        more = self._shown[there : top + self.app.size.height + ROWS_BEYOND]
        if more:
            options.add_options([Option(_row(one, self._is_current(one))) for one in more])

    def _chosen(self) -> SessionSummary | None:
        row = self.query_one(OptionList).highlighted
        return self._shown[row] if row is not None and row < len(self._shown) else None

    def _is_current(self, summary: SessionSummary) -> bool:
        is_same = self._began is None or summary.created == self._began
        return summary.id == self._current and is_same

    def _format_found(self) -> str:
        found = len(self._shown)
        if not found:
            empty = "Nothing found; Esc shows all." if self._query else "Nothing is kept yet."
            return format_page_text(self, empty)
        if found == NEWEST_MAX:
            return f"The latest {found} sessions; type to find others."
        return _count(found, "session")

    def _ask(
        self,
        asking: _Asking,
        text: str | None = None,
        said: str | None = None,
        about: SessionSummary | None = None,
    ) -> None:
        """The line is for something else now; without a text, what was searched for comes back."""
        self._asking, self._about = asking, about
        line = self.query_one(Input)
        line.value = self._query if text is None else text
        line.cursor_position = len(line.value)
        words = {
            _Asking.SEARCH: "Type to search",
            _Asking.DELETE: "Enter deletes, Esc keeps it",
        }.get(asking, "Esc gives it up")
        line.placeholder = format_page_text(self, words)
        line.focus()
        self._say(self._format_found() if said is None else said)

    def _say(self, text: str, error: bool = False) -> None:
        with contextlib.suppress(LookupError):  # the screen has gone meanwhile
            said = self.query_one("#said", Static)
            said.update(Content(sanitize_line(text)))
            said.set_class(error, "error")


def _title(summary: SessionSummary) -> str:
    return sanitize_line(summary.name or summary.preview)[:60] or f"session {summary.id}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _row(summary: SessionSummary, is_current: bool) -> Content:
    updated = time.localtime(summary.updated)
    is_recent = updated.tm_year == time.localtime().tm_year
    day = time.strftime("%d %b %H:%M" if is_recent else "%d %b %Y %H:%M", updated)
    mark = "● " if is_current else "  "
    model = shown_name(summary.model)[:24]
    end = f"  {day}  {_count(summary.turns, 'message')}  {model}"
    return Content.assemble(mark, (_title(summary), "bold"), (end, "dim"))
