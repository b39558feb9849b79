"""The model dialog: converted models on this machine, the memory they need, their speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Protocol

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import DataTable, Input, Static
from textual.worker import get_current_worker

from flashllm.library.conversion_job import Conversions
from flashllm.library.directories import shown_name
from flashllm.library.formatting import clean, figures, format_least_memory, speed_sentence
from flashllm.library.models import FoundModel, ModelChoice
from flashllm.ui.commands.bindings import PICKER_BINDINGS
from flashllm.ui.commands.keys import format_page_text
from flashllm.ui.screens.convert import ConvertScreen, Preparation
from flashllm.ui.screens.page import Page
from flashllm.ui.widgets.footer import KeyFooter
from flashllm.ui.widgets.line_input import LineInput
from flashllm.ui.widgets.thread_work import thread_work

NARROW = 70
"""Below so many columns only the most wanted cells are shown."""
WIDE = 100
"""From so many columns on, long names leave room for a problem."""
NO_TOKENIZER = "no tokenizer"
TOO_LARGE = "too large"


class Models(Preparation, Protocol):
    """Where models come from; `flashllm.library.library.Library` is one."""

    def scan(self) -> Iterator[FoundModel]:
        """Models as they are found."""
        ...


class NameSuggester(Suggester):
    """Shows how the name that is being typed goes on; Right takes it."""

    def __init__(self, names: Callable[[], list[str]]) -> None:
        super().__init__(use_cache=False, case_sensitive=False)  # more are found all the time
        self._names = names

    async def get_suggestion(self, value: str) -> str | None:
        """The first name that begins so; `value` is in small letters."""
        return next((name for name in self._names() if name.lower().startswith(value)), None)


class ModelPicker(Page[ModelChoice | None]):
    """Chooses a model to open; None where it was left without choosing."""

    BINDINGS: ClassVar[list[BindingType]] = [*PICKER_BINDINGS]
    DEFAULT_CSS = """
    ModelPicker { align: center middle; }
    ModelPicker #picker { width: 110; max-width: 100%; height: 30; max-height: 100%;
        background: $surface; border: round $border; padding: 0 1; }
    ModelPicker #picker-title { height: 1; color: $text-muted; text-wrap: nowrap;
        text-overflow: ellipsis; }
    ModelPicker DataTable { height: 1fr; min-height: 3; background: $surface;
        scrollbar-size-horizontal: 0; }
    ModelPicker #details { height: auto; max-height: 6; padding: 0; color: $text-muted; }
    ModelPicker.-narrow #picker { border: none; padding: 0; }
    ModelPicker.-narrow #details { max-height: 4; }
    """

    class Found(Message):
        """The search found a model, or knows more of one."""

        def __init__(self, model: FoundModel) -> None:
            super().__init__()
            self.model = model

    class Searched(Message):
        """The search is over; `problem` says why it broke off."""

        def __init__(self, problem: str = "") -> None:
            super().__init__()
            self.problem = problem

    def __init__(
        self,
        library: Models,
        current: ModelChoice | None = None,
        conversions: Conversions | None = None,
    ) -> None:
        super().__init__()
        self._library = library
        self._current = current
        self._conversions = conversions or Conversions()
        self._models: dict[Path, FoundModel] = {}
        self._shown: list[FoundModel] = []
        self._chosen: Path | None = None
        self._placed_row = 0
        """Where the cursor was put, rather than moved to."""
        self._looking = True
        self._is_stale = False
        """What is shown waits to be drawn anew."""
        self._problem = ""

    def compose(self) -> ComposeResult:
        """A line, what is looked for, the table, what is known of the chosen one, keys."""
        with Vertical(id="picker"):
            yield Static(id="picker-title", markup=False)
            names = NameSuggester(lambda: [model.name for model in self._models.values()])
            yield LineInput(
                placeholder="type to filter", compact=True, id="filter", suggester=names
            )
            yield DataTable(cursor_type="row", zebra_stripes=True, cell_padding=1)
            yield Static(id="details", markup=False)
            yield KeyFooter()

    def on_mount(self) -> None:
        """The search begins at once."""
        self.query_one(DataTable).focus()
        self._show()
        self.action_scan()

    # What the user does

    def action_scan(self) -> None:
        """Looks for models anew."""
        self._models.clear()
        self._looking, self._problem = True, ""
        self._show()
        self._search()

    def action_open(self) -> None:
        """Takes the chosen model; one that cannot be opened says why."""
        model = self._selected()
        if model is None:
            return
        if chat_problem(model):
            self.app.bell()
            return
        self.dismiss(model.choice)

    def action_filter(self) -> None:
        """Begins to filter."""
        self.query_one(Input).focus()

    def action_leave(self) -> None:
        """Takes the filter away, or leaves."""
        field = self.query_one(Input)
        if field.value or field.has_focus:
            field.value = ""
            self.query_one(DataTable).focus()
        else:
            self.dismiss(None)

    def action_move(self, by: int) -> None:
        """Moves the cursor while the filter has the focus."""
        table = self.query_one(DataTable)
        table.move_cursor(row=max(0, min(table.cursor_row + by, len(self._shown) - 1)))

    def action_convert(self) -> None:
        """Converts a checkpoint; what is made is opened."""

        def take(made: Path | None) -> None:
            if made is None:
                self.action_scan()  # something may have been made all the same
            else:
                self.dismiss(ModelChoice(made, shown_name(made)))

        self.app.push_screen(ConvertScreen(self._conversions, self._library), take)

    def on_key(self, event: events.Key) -> None:
        """A letter that is no key of the table begins to filter."""
        field = self.query_one(Input)
        if event.key in self.active_bindings or field.has_focus:
            return
        if event.is_printable and event.character:
            event.stop()
            field.focus()
            field.insert_text_at_cursor(event.character)

    @on(DataTable.RowSelected)
    def open_row(self) -> None:
        """A click on the chosen row."""
        self.action_open()

    @on(Input.Changed, "#filter")
    def filter_rows(self) -> None:
        """Only what fits is shown."""
        self._show()

    @on(DataTable.RowHighlighted)
    def show_chosen(self, event: DataTable.RowHighlighted) -> None:
        """The details follow the cursor."""
        # Filling the table moves its cursor too, and says so later.
        if event.cursor_row == self.query_one(DataTable).cursor_row != self._placed_row:
            self._placed_row = -1
            self._chosen = model.path if (model := self._selected()) else None
        self._show_details()

    def on_resize(self) -> None:
        """Few columns show few cells."""
        narrow = self.size.width < NARROW
        if narrow != self.has_class("-narrow"):
            self.set_class(narrow, "-narrow")
            self._show()

    # The search

    @thread_work("search")
    def _search(self) -> None:
        worker = get_current_worker()
        try:
            for model in self._library.scan():
                if worker.is_cancelled:
                    return
                self.post_message(self.Found(model))
        except Exception as problem:  # noqa: BLE001  told on the screen, which stays usable
            over = self.Searched(clean(f"the search broke off: {problem}"))
        else:
            over = self.Searched()
        if not worker.is_cancelled:  # another search has begun
            self.post_message(over)

    @on(Found)
    def _take(self, event: Found) -> None:
        if self._chosen is None and event.model.choice == self._current:
            self._chosen = event.model.path
        self._models[event.model.path] = event.model
        if not self._is_stale:  # one drawing for all that have come: a disk may hold hundreds
            self._is_stale = True
            self.call_later(self._show)

    @on(Searched)
    def _finish(self, event: Searched) -> None:
        self._looking, self._problem = False, event.problem
        self._show()

    # What is shown

    def _selected(self) -> FoundModel | None:
        row = self.query_one(DataTable).cursor_row
        return self._shown[row] if 0 <= row < len(self._shown) else None

    def _show(self) -> None:
        self._is_stale = False
        words = self.query_one(Input).value.lower().split()
        self._shown = [
            model
            for model in self._models.values()
            if all(word in _searched(model) for word in words)
        ]
        narrow = self.size.width < NARROW
        name_width = 36 if self.size.width >= WIDE else 24
        table = self.query_one(DataTable)
        table.clear(columns=True)
        for label in _columns(narrow):
            table.add_column(label)
        for model in self._shown:
            current = model.choice == self._current
            row = _row(model, narrow, name_width, current)
            table.add_row(*(_cell(text, model) for text in row))
        paths = [model.path for model in self._shown]
        if self._chosen in paths:
            table.move_cursor(row=paths.index(self._chosen))
        self._placed_row = table.cursor_row
        self.query_one("#picker-title", Static).update(Content(self._title()))
        self._show_details()

    def _title(self) -> str:
        if self._problem:
            return self._problem
        count = f"{len(self._shown)} of {len(self._models)} models"
        return f"{count}, looking for more ..." if self._looking else count

    def _show_details(self) -> None:
        model = self._selected()
        lines = [] if model is None else details(model)
        if model is None and not self._looking:
            lines = [format_page_text(self, "Nothing fits. c converts a checkpoint.")]
        self.query_one("#details", Static).update(Content("\n".join(lines)))


def _searched(model: FoundModel) -> str:
    """What a filter looks at."""
    named = (model.name, model.source, str(model.path))
    words = (*named, model.encoding, model.features, *model.remarks)
    return " ".join(words).lower()


def _columns(narrow: bool) -> list[str]:
    if narrow:
        return ["model", "needs", "tok/s"]
    return ["model", "size", "precision", "needs", "tok/s", "problem"]


def chat_problem(model: FoundModel) -> str:
    """Why the chat cannot open a model; empty where it can."""
    return model.problem or ("" if model.has_tokenizer else NO_TOKENIZER)


def _row(model: FoundModel, narrow: bool, name_width: int, current: bool) -> list[str]:
    problem = chat_problem(model)
    name = f"{'●' if current else ' '} {'! ' if problem else ''}{model.name}"
    size, precision, needs, speed = figures(model)
    if narrow:
        return [name[:22], needs, speed]
    doubt = problem or (TOO_LARGE if model.is_too_large else "")
    return [name[:name_width], size, precision, needs, speed, doubt[:60]]


def _cell(text: str, model: FoundModel) -> Text:
    # Not a plain string, which the table would read as markup.
    style = "dim" if chat_problem(model) else ""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def details(model: FoundModel) -> list[str]:
    """Everything that is known of a model, in sentences, the most wanted first."""
    lines = []
    needs = model.smallest_ceiling_bytes
    if model.problem:
        lines.append(f"Cannot be opened: {model.problem}")
    elif problem := chat_problem(model):
        lines.append(f"Not for a chat: {problem}; `flashllm run MODEL --ids 1,2,3` runs it")
    else:
        lines.append(speed_sentence(model))
        if needs is not None:
            lines.append(f"Needs {format_least_memory(needs, model.application_bytes)}")
    if model.features:
        made = f", made from {model.source}" if model.source not in ("", model.name) else ""
        lines.append(f"{model.features}, in {model.encoding}{made}")
    if model.remarks:
        lines.append("; ".join(model.remarks))
    return [*lines, clean(str(model.path))]
