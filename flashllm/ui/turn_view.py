"""What the transcript is made of: a widget for each question, answer and remark."""

from __future__ import annotations

import re

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from flashllm.sanitize import Sanitizer, sanitize
from flashllm.ui.answer_markdown import AnswerMarkdown
from flashllm.ui.stretches import Stretches

SHOWN_CHARACTERS = 4000
"""Of a longer question only the beginning is shown; all of it is sent, kept and copied."""
# Textual takes these for ends of lines, its Markdown parser does not.
_OTHER_LINE_ENDS = re.compile("[\u2028\u2029]")


class TurnView(Widget):
    """One turn of the conversation; a click selects it."""

    turn_id: int

    class Chosen(Message):
        """The reader clicked on this turn."""

        def __init__(self, turn_id: int) -> None:
            super().__init__()
            self.turn_id = turn_id

    def on_click(self, event: events.Click) -> None:
        """Selects, unless the click was the end of marking text."""
        if not self.screen.get_selected_text():
            event.stop()
            self.post_message(self.Chosen(self.turn_id))

    def show_note(self, note: str) -> None:
        """A short remark below the turn: which branch it is, and how it ended."""
        raise NotImplementedError


class Question(Static, TurnView):
    """What the user sent, as it was typed."""

    def __init__(self, text: str, turn_id: int = 0, note: str = "") -> None:
        super().__init__(markup=False)
        self.turn_id = turn_id
        self._text = sanitize(text[: 2 * SHOWN_CHARACTERS])
        if len(text) > SHOWN_CHARACTERS:
            left_out = len(text) - SHOWN_CHARACTERS
            self._text = f"{self._text[:SHOWN_CHARACTERS]}\n... {left_out:,} characters more"
        self.show_note(note)

    def show_note(self, note: str) -> None:
        """On a line of its own."""
        if note:
            self.update(Content.assemble(self._text, ("\n" + note, "dim")))
        else:
            self.update(Content(self._text))


class Notice(Static):
    """A remark of the application; `kind` is info or error."""

    def __init__(self, text: str, kind: str = "info") -> None:
        super().__init__(sanitize(text), markup=False, classes=kind)


class Answer(Vertical, TurnView, can_focus=False):
    """An answer of the model: a column of documents, of which the last one may grow."""

    def __init__(self, text: str = "", turn_id: int = 0, note: str = "") -> None:
        super().__init__()
        self.turn_id = turn_id
        self.shown_text = ""
        """What is on the screen, harmless already."""
        self._note = note
        self._sanitizer = Sanitizer()
        self._cutter = Stretches()
        self._documents = [
            AnswerMarkdown(part) for part in self._cutter.feed(self._harmless(text)) if part.strip()
        ] or [AnswerMarkdown()]
        self._stream: MarkdownStream | None = None

    def compose(self) -> ComposeResult:
        """The documents, and the remark."""
        yield from self._documents
        yield Static(Content(self._note), classes="note", markup=False)

    def on_mount(self) -> None:
        """An empty remark takes no line."""
        self.show_note(self._note)

    async def add(self, text: str) -> None:
        """Shows more text, cut anywhere."""
        more = self._harmless(text)
        if not more:
            return
        first, *others = self._cutter.feed(more)
        await self._write(first)
        for part in others:
            await self._open_document()
            await self._write(part)

    async def finish(self) -> None:
        """Shows what is still on its way."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.stop()
            self._documents[-1].settle()

    def lay_out(self, near: range, far: range) -> None:
        """Documents that have lines in `near` take part in the layout, none outside of `far` does.

        Lines are counted from the first of the answer.
        """
        for document in self._documents:
            place = document.virtual_region
            if _overlap(place, near):
                document.lay_out(wanted=True)
            elif not _overlap(place, far):
                document.lay_out(wanted=False)

    def show_note(self, note: str) -> None:
        """On a line of its own, if there is something to say."""
        self._note = note
        for line in self.query(".note").results(Static):
            line.update(Content(note))
            line.display = bool(note)

    def _harmless(self, text: str) -> str:
        clean = _OTHER_LINE_ENDS.sub("\n", self._sanitizer.feed(text))
        if not self.shown_text:
            clean = clean.lstrip()  # four spaces in front would make it code
        self.shown_text += clean
        return clean

    async def _write(self, text: str) -> None:
        if self._stream is None:
            self._documents[-1].grow()
            self._stream = Markdown.get_stream(self._documents[-1])
        await self._stream.write(text)

    async def _open_document(self) -> None:
        await self.finish()
        document = AnswerMarkdown()
        await self.mount(document, after=self._documents[-1])
        self._documents.append(document)


def _overlap(place: Region, lines: range) -> bool:
    return place.y < lines.stop and place.bottom > lines.start
