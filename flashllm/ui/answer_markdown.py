"""Markdown as models write it: shown while it comes, harmless, and cheap to add to."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.content import Content
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

SETTLED_CHARACTERS = 1000
"""Code longer than this is highlighted a part at a time: the whole takes 0.2 ms for each line."""


@lru_cache(maxsize=1)
def make_parser() -> MarkdownIt:
    """Markdown for answers: HTML stays visible text, nothing becomes a link by itself.

    Models end lines where they mean it, so a line end in a paragraph is kept. One parser for all,
    since making one takes longer than parsing what it is made for.
    """
    parser = MarkdownIt("gfm-like", {"html": False, "linkify": False})
    parser.core.ruler.push("keep_line_ends", _keep_line_ends)
    return parser


def _keep_line_ends(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


class CodeBlock(MarkdownFence):
    """Code that grows: what is settled of it is not highlighted again until it is complete."""

    _settled: ClassVar[tuple[str, str, Content]] = ("", "", Content(""))

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Code without a language stays plain: to guess takes a tenth of a second, each time."""
        highlight = super().highlight
        if not language:
            return Content(code)
        key = f"{language} {ansi} {dark}"
        settled_key, settled, shown = cls._settled
        if settled_key != key or not code.startswith(settled):
            settled, shown = "", Content("")
        rest = code[len(settled) :]
        cut = rest.rfind("\n") + 1
        if cut >= SETTLED_CHARACTERS:
            shown += _exactly(rest[:cut], highlight(rest[:cut], language, ansi, dark))
            settled, rest = settled + rest[:cut], rest[cut:]
            cls._settled = (key, settled, shown)
        return shown + _exactly(rest, highlight(rest, language, ansi, dark)) if rest else shown

    def settle(self) -> None:
        """All of it is there: highlights it as a whole."""
        if len(self.code) >= SETTLED_CHARACTERS and self.lexer:
            CodeBlock._settled = ("", "", Content(""))
            self.notify_style_update()


def _exactly(code: str, shown: Content) -> Content:
    # Lexers add or drop line ends at the end, which would be missing in the middle.
    plain = code.rstrip("\n")
    shown = shown.rstrip("\n") if shown.plain.endswith("\n") else shown
    return shown + Content(code[len(plain) :]) if shown.plain == plain else Content(code)


class AnswerMarkdown(Markdown):
    """One stretch of an answer; links are never opened."""

    BLOCKS: dict[str, type[MarkdownBlock]] = {  # noqa: RUF012  as the base does
        **Markdown.BLOCKS,
        "fence": CodeBlock,
        "code_block": CodeBlock,
    }

    def __init__(self, text: str | None = None) -> None:
        super().__init__(text, parser_factory=make_parser, open_links=False)

    def settle(self) -> None:
        """Nothing will be added."""
        for block in self.query(CodeBlock):
            block.settle()
