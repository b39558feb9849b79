"""The transcript: what was asked, what was answered, and remarks between."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from flashllm.sanitize import Sanitizer, sanitize

# Textual takes these for ends of lines, its Markdown parser does not.
_OTHER_LINE_ENDS = re.compile("[\u2028\u2029]")


def make_parser() -> MarkdownIt:
    """Markdown for answers: HTML stays visible text, nothing becomes a link by itself.

    Models end lines where they mean it, so a line end in a paragraph is kept.
    """
    parser = MarkdownIt("gfm-like", {"html": False, "linkify": False})
    parser.core.ruler.push("keep_line_ends", _keep_line_ends)
    return parser


def _keep_line_ends(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


class Question(Static):
    """What the user sent, as it was typed."""

    def __init__(self, text: str) -> None:
        super().__init__(sanitize(text), markup=False)


class Notice(Static):
    """A remark of the application; `kind` is info or error."""

    def __init__(self, text: str, kind: str = "info") -> None:
        super().__init__(sanitize(text), markup=False, classes=kind)


class Answer(Vertical):
    """An answer of the model, growing while it comes."""

    def __init__(self) -> None:
        super().__init__()
        self._markdown = Markdown(parser_factory=make_parser, open_links=False)
        self._sanitizer = Sanitizer()
        self._stream: MarkdownStream | None = None
        self.shown_text = ""
        """What is on the screen, harmless already."""

    def compose(self) -> ComposeResult:
        """One Markdown document."""
        yield self._markdown

    async def add(self, text: str) -> None:
        """Shows more text, cut anywhere."""
        clean = _OTHER_LINE_ENDS.sub("\n", self._sanitizer.feed(text))
        if not self.shown_text:
            clean = clean.lstrip()  # four spaces in front would make it code
        if not clean:
            return
        self.shown_text += clean
        if self._stream is None:
            self._stream = Markdown.get_stream(self._markdown)
        await self._stream.write(clean)

    async def finish(self) -> None:
        """Shows what is still on its way; nothing can be added afterwards."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.stop()


class Transcript(VerticalScroll):
    """All of it; stays at the end while answers grow, unless the reader scrolled away."""

    def on_mount(self) -> None:
        """Sticks to the end."""
        self.anchor()

    async def add(self, widget: Question | Answer | Notice) -> None:
        """Appends, and goes to the end."""
        await self.mount(widget)
        self.anchor()
