"""The widget of an answer. What it needs to show Markdown is loaded with the first one."""

from __future__ import annotations

import re
from typing import ClassVar

from textual.app import ComposeResult, RenderResult
from textual.content import Content
from textual.geometry import Region
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from flashllm.tokenizer.reasoning import Kind, Piece, ReasoningSplitter, told
from flashllm.ui.transcript.markdown import AnswerMarkdown, plain_paragraph
from flashllm.ui.transcript.markdown_split import MarkdownSplitter
from flashllm.ui.transcript.reasoning import Reasoning
from flashllm.ui.transcript.tool_calls import ToolCallFormatter
from flashllm.ui.transcript.turn import TurnView
from flashllm.ui.widgets.single_layout import SingleLayout
from flashllm.untrusted.terminal import Sanitizer

# Textual takes these for ends of lines, its Markdown parser does not.
_OTHER_LINE_ENDS = re.compile("[\u2028\u2029]")


class Answer(SingleLayout, TurnView, can_focus=False):
    """An answer of the model: a column of documents, of which the last one may grow.

    One that is complete, and a single paragraph of plain text, has no widgets but itself: each
    takes some 40 KiB, and most answers of a small model are such a paragraph.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"note"}
    DEFAULT_CSS = """
    Answer {
        width: 1fr;
        height: auto;
    }
    """

    def __init__(self, text: str = "", turn_id: int = 0, note: str = "") -> None:
        super().__init__()
        self.turn_id = turn_id
        self.shown_text = ""
        """What came, harmless already; marks of reasoning are in it, which are not shown."""
        self._note = note
        self._is_composed = False
        self._note_line: Static | None = None
        """None until there is a remark: most answers have none, and each widget takes memory."""
        self._sanitizer = Sanitizer()
        self._cutter = MarkdownSplitter()
        self._splitter = ReasoningSplitter()
        self._tool_calls = ToolCallFormatter()
        self._answer = ""
        """What of it is not reasoning."""
        self._shows_reasoning = False
        self._reasoning: Reasoning | None = None
        """What the model thought before; None where it did not."""
        thought, answer = told([*self._splitter.feed(self._harmless(text)), *self._splitter.end()])
        if thought.strip():
            self._reasoning = Reasoning(thought)
            self._reasoning.end(answered=not self._splitter.is_inside)
        self._answer = answer.lstrip() if thought else answer
        markdown = self._tool_calls.feed(self._answer) + self._tool_calls.end()
        parts = [part for part in self._cutter.feed(markdown) if part.strip()]
        self._documents: list[AnswerMarkdown] = []
        self._stream: MarkdownStream | None = None
        self._plain: Content | None = None
        """All of the answer, where it is shown without a document."""
        self._plain_source = ""
        is_alone = self._reasoning is None and len(parts) == 1
        if not is_alone or not self._take_plain(parts[0]):
            self._documents = [AnswerMarkdown(part) for part in parts] or [AnswerMarkdown()]

    @property
    def source(self) -> str:
        """The Markdown that is shown, without what was thought before."""
        return self._plain_source or "".join(document.source for document in self._documents)

    @property
    def note(self) -> str:
        """The remark below it."""
        return self._note

    def render(self) -> RenderResult:
        """The text, where no widget shows it."""
        if self._plain is None:
            return super().render()
        return Content.assemble(self._plain, ("\n\n" + self._note, ".note") if self._note else "")

    def compose(self) -> ComposeResult:
        """What was thought, the documents, and the remark."""
        if self._reasoning is not None:
            yield self._reasoning
        yield from self._documents
        self._is_composed = True
        if self._note and self._plain is None:
            self._note_line = _make_note_line(self._note)
            yield self._note_line

    async def expect(self) -> None:
        """Text will come: the widget of a first paragraph is made while the prompt is read."""
        if self._documents:
            await self._documents[-1].expect()

    async def add(self, text: str) -> None:
        """Shows more text, cut anywhere."""
        for piece in self._splitter.feed(self._harmless(text)):
            await self._take(piece)

    async def finish(self) -> None:
        """Shows what is still on its way."""
        for piece in self._splitter.end():
            await self._take(piece)
        await self._show(self._tool_calls.end())
        await self._settle()
        if self._reasoning is not None and self._splitter.is_inside:
            self._reasoning.end(answered=False)
        await self._leave_document()

    def show_reasoning(self, is_open: bool) -> None:
        """All of what was thought, or a line."""
        self._shows_reasoning = is_open
        if self._reasoning is not None:
            self._reasoning.fold(is_open)

    async def _take(self, piece: Piece) -> None:
        """Shows a piece of reasoning, or of the answer."""
        await self._return_to_document()
        if piece.kind is Kind.REASONING:
            await self._think(piece.text)
        elif piece.kind is Kind.ALL_WAS_REASONING:
            thought, self._answer = self._answer, ""
            await self._settle()
            self._cutter, self._tool_calls = MarkdownSplitter(), ToolCallFormatter()
            gone, self._documents = self._documents, [AnswerMarkdown()]
            await self.mount(self._documents[0], before=gone[0])
            await self.remove_children(gone)
            await self._think(thought)
        else:
            await self._say(piece.text)

    async def _think(self, text: str) -> None:
        if self._reasoning is None:
            self._reasoning = Reasoning()
            self._reasoning.fold(self._shows_reasoning)
            await self.mount(self._reasoning, before=self._documents[0])
        self._reasoning.add(text)

    async def _say(self, text: str) -> None:
        if self._reasoning is not None:
            text = text if self._answer else text.lstrip()
            if text:
                self._reasoning.end()
        self._answer += text
        await self._show(self._tool_calls.feed(text))

    async def _show(self, markdown: str) -> None:
        """Shows more of the answer in its documents."""
        if not markdown:
            return
        first, *others = self._cutter.feed(markdown)
        await self._write(first)
        for part in others:
            await self._open_document()
            await self._write(part)

    async def _settle(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.stop()
            self._documents[-1].settle()

    def lay_out(self, near: range, far: range) -> None:
        """Document by document; those between near and far stay as they are."""
        for document in self._documents:
            place = document.virtual_region
            if _overlap(place, near):
                document.lay_out(wanted=True)
            elif not _overlap(place, far):
                document.lay_out(wanted=False)

    def show_note(self, note: str) -> None:
        """On a line of its own, if there is something to say."""
        self._note = note
        if not self._is_composed:
            return  # `compose` shows it
        if self._plain is not None:
            self._draw_anew()
        elif self._note_line is not None:
            self._note_line.update(Content(note))
            self._note_line.display = bool(note)
        elif note:
            self._note_line = _make_note_line(note)
            self.mount(self._note_line)

    async def _leave_document(self) -> None:
        """What is complete, and needs no widgets of its own, has none from now on."""
        if self._reasoning is not None or len(self._documents) != 1 or not self.is_attached:
            return
        document = self._documents[0]
        async with document.lock:  # what was written last may still be added
            if not self._take_plain(document.source):
                return
            with self.app.batch_update():
                self._note_line = None
                await self.remove_children()
                self._draw_anew()

    def _take_plain(self, markdown: str) -> bool:
        """Whether all of the answer can do without a document, and does from now on."""
        self._plain = plain_paragraph(markdown)
        if self._plain is None:
            return False
        self._plain_source, self._documents = markdown, []
        self.add_class("-plain")
        return True

    async def _return_to_document(self) -> None:
        """More comes to what had no widgets."""
        if self._plain is None:
            return
        self._documents = [AnswerMarkdown(self._plain_source)]
        self._plain, self._plain_source = None, ""
        self.remove_class("-plain")
        with self.app.batch_update():
            await self.mount(self._documents[0])
            self.show_note(self._note)

    def _draw_anew(self) -> None:
        self.clear_cached_dimensions()
        self.refresh(layout=True)

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
        await self._settle()
        document = AnswerMarkdown()
        await self.mount(document, after=self._documents[-1])
        self._documents.append(document)


def _make_note_line(note: str) -> Static:
    return Static(Content(note), classes="note", markup=False)


def _overlap(place: Region, lines: range) -> bool:
    return place.y < lines.stop and place.bottom > lines.start
