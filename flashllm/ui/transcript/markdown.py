"""Markdown as models write it: shown while it comes, harmless, and cheap to add to.

Textual's own blocks are made anew, or laid out anew, with each word that is added to them. These
keep what is settled; for that they need a few names of its blocks that are not public.
"""
# ruff: noqa: SLF001

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Label, Markdown
from textual.widgets._markdown import (
    MarkdownBullet,
    MarkdownBulletList,
    MarkdownListItem,
    MarkdownOrderedList,
    MarkdownParagraph,
    MarkdownTable,
    MarkdownTableContent,
)
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from flashllm.ui.widgets.single_layout import SingleLayout
from flashllm.untrusted.terminal import sanitize

if TYPE_CHECKING:
    from textual.css.styles import RulesMap
    from textual.widgets._markdown import MarkdownList as _List
else:
    _List = object  # styles follow the first base that is a widget, so this must not be one

_SPACES = re.compile(r"\s+")
GROUP_LINES = 20
"""Of code, in one label."""


@lru_cache(maxsize=1)
def make_parser() -> MarkdownIt:
    """Markdown for answers: HTML stays visible text, nothing becomes a link by itself.

    Models end lines where they mean it, so a line end in a paragraph is kept. One parser for all,
    since making one takes longer than parsing what it is made for.
    """
    parser = MarkdownIt("gfm-like", {"html": False, "linkify": False})
    parser.core.ruler.push("keep_line_ends", _keep_line_ends)
    parser.core.ruler.push("make_harmless", _make_harmless)
    return parser


def _keep_line_ends(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


def _make_harmless(state: StateCore) -> None:
    # What is spelled out, such as `&#x202e;`, is a character only now.
    for token in state.tokens:
        for child in token.children or ():
            child.content = sanitize(child.content)
            for part in child.children or ():  # what is shown of an image
                part.content = sanitize(part.content)


def plain_paragraph(markdown: str) -> Content | None:
    """The text of what is one paragraph without any style or link; None for all else."""
    tokens = make_parser().parse(markdown)
    if [token.type for token in tokens] != ["paragraph_open", "inline", "paragraph_close"]:
        return None
    parts = tokens[1].children or []
    if any(part.type not in {"text", "hardbreak"} for part in parts):
        return None
    lines = ("\n" if part.type == "hardbreak" else _SPACES.sub(" ", part.content) for part in parts)
    return Content("".join(lines))


class Paragraph(SingleLayout, MarkdownParagraph):
    """Text that grows; the screen is laid out anew only where it becomes higher by that."""

    def set_content(self, content: Content) -> None:
        """Most words that are added find room on the last line."""
        self._content = content
        width, height = self.size
        rules = cast("RulesMap", self.styles)
        same = width > 0 and content.get_height(rules, width) == height
        # Being mounted is a reason for a layout already.
        self.update(content, layout=self.is_mounted and not same)


class _Lines(SingleLayout, Label):
    """Some lines of code."""


class CodeBlock(SingleLayout, MarkdownFence):
    """Code that grows, some lines to a label, of which only the last one changes.

    A line takes half a millisecond to highlight and to render, and code may have hundreds of them.
    """

    DEFAULT_CSS = """
    CodeBlock {
        padding: 1 0;
    }
    CodeBlock > Label {
        padding: 0 2;
    }
    """

    def __init__(self, markdown: Markdown, token: Token, code: str) -> None:
        # Not that of the fence, which highlights all of the code at each word.
        super(MarkdownFence, self).__init__(markdown, token)
        self.code = code
        self.lexer = token.info.strip().partition(" ")[0]
        self.auto_links = False
        self._highlighted_code = Content(code)
        self._labelled: list[str] = []

    def compose(self) -> ComposeResult:
        """A label for every few lines."""
        self._labelled = groups_of(self.code)
        for group in self._labelled:
            yield _Lines(self._colored(group), expand=True)

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if not isinstance(block, CodeBlock):
            await super()._update_from_block(block)
            return
        self._copy_context(block)
        labels = list(self.query_children(Label))
        groups = groups_of(self.code)
        for label, shown, group in zip(labels, self._labelled, groups, strict=False):
            if shown != group:
                width, height = label.size
                label.update(self._colored(group), layout=height != group.count("\n") + 1)
                if width < max(map(len, group.split("\n"))):
                    label.refresh(layout=True)
        more = groups[len(labels) :]
        self._labelled = groups
        if more:
            await self.mount_all([_Lines(self._colored(group), expand=True) for group in more])

    def notify_style_update(self) -> None:
        """Other colours."""
        self.settle()
        MarkdownBlock.notify_style_update(self)

    def settle(self) -> None:
        """All of it is there: highlighted as a whole, as strings may go over many lines."""
        labels = list(self.query_children(Label))
        if len(labels) < 2 or not self.lexer:
            for label, group in zip(labels, self._labelled, strict=False):
                label.update(self._colored(group))
            return
        lines = self._colored(self.code).split("\n")
        for index, label in enumerate(labels):
            part = lines[index * GROUP_LINES : (index + 1) * GROUP_LINES]
            label.update(Content("\n").join(part))

    def _colored(self, code: str) -> Content:
        # Without a language it stays plain: to guess takes a tenth of a second, each time.
        if not self.lexer:
            return Content(code)
        dark, ansi = self.app.current_theme.dark, self.app.native_ansi_color
        colored = self.highlight(code, self.lexer, ansi=ansi, dark=dark)
        # Lexers add or drop ends of lines at the end.
        lines = colored.split("\n")[: code.count("\n") + 1]
        same = Content("\n").join(lines)
        return same if same.plain == code else Content(code)


def _last_block_line(text: str) -> int:
    for token in reversed(make_parser().parse(text)):
        if token.level == 0 and token.map is not None:
            return token.map[0]
    return 0


def groups_of(code: str) -> list[str]:
    """The code, a few lines at a time."""
    lines = code.split("\n")
    return [
        "\n".join(lines[begin : begin + GROUP_LINES]) for begin in range(0, len(lines), GROUP_LINES)
    ]


class _Bullet(SingleLayout, MarkdownBullet):
    """What stands before an item."""


class _Item(SingleLayout, Vertical):
    """The blocks of an item."""


class _Row(SingleLayout, Horizontal):
    """An item of a list."""

    def __init__(self, symbol: str, item: MarkdownListItem) -> None:
        bullet = _Bullet()
        bullet.symbol = symbol
        super().__init__(bullet, _Item(*item._blocks))


class _Growing(SingleLayout, _List):
    """A list whose last item grows, or gets a successor; the items before stay as they are."""

    def compose(self) -> ComposeResult:
        """A row for each item."""
        items = [block for block in self._blocks if isinstance(block, MarkdownListItem)]
        yield from map(_Row, self._symbols(items), items)
        self._blocks.clear()

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        rows = list(self.query_children(Horizontal))
        items = [item for item in block._blocks if isinstance(item, MarkdownListItem)]
        bullets = [row.query_one(MarkdownBullet).symbol for row in rows]
        symbols = self._symbols(items, len(bullets[-1])) if rows else []
        if type(block) is not type(self) or not rows or symbols[: len(rows)] != bullets:
            await super()._update_from_block(block)
            return
        self._copy_context(block)
        last = len(rows) - 1
        grown, new = list(rows[last].query_one(Vertical).children), items[last]._blocks
        if [type(one) for one in grown] == [type(one) for one in new]:
            for one, other in zip(grown, new, strict=True):
                assert isinstance(one, MarkdownBlock)
                await one._update_from_block(other)
        else:
            await rows[last].remove()
            rows.pop()
        more = list(map(_Row, symbols[len(rows) :], items[len(rows) :]))
        if more:
            await self.mount_all(more)

    def _symbols(self, items: list[MarkdownListItem], width: int = 0) -> list[str]:
        """What stands before each item, at least `width` characters."""
        return [item.bullet.rjust(width) for item in items]


class BulletList(_Growing, MarkdownBulletList):
    """Of items without numbers."""


class OrderedList(_Growing, MarkdownOrderedList):
    """Of items with numbers; they are aligned, so that a longer one changes all."""

    def _symbols(self, items: list[MarkdownListItem], width: int = 0) -> list[str]:
        start = int(items[0].bullet) if items and items[0].bullet.isdecimal() else 1
        numbers = range(start, start + len(items))
        longest = max((len(f"{number}. ") for number in numbers), default=0) + 1
        return [f"{number}. ".rjust(max(longest, width)) for number in numbers]


class _Cells(MarkdownTableContent):
    """What a cell says stands in its tooltip too, as text: as markup it could be wrong."""

    def compose(self) -> ComposeResult:
        """The cells."""
        for cell in super().compose():
            if isinstance(cell.tooltip, str):
                cell.tooltip = Content(cell.tooltip)
            yield cell


class Table(MarkdownTable):
    """Cells in a grid."""

    def compose(self) -> ComposeResult:
        """The grid."""
        self._headers, self._rows = self._get_headers_and_rows()
        yield _Cells(self._headers, self._rows)


class AnswerMarkdown(SingleLayout, Markdown):
    """One stretch of an answer; links are never opened."""

    BLOCKS: dict[str, type[MarkdownBlock]] = {  # noqa: RUF012  as the base does
        **Markdown.BLOCKS,
        "paragraph_open": Paragraph,
        "bullet_list_open": BulletList,
        "ordered_list_open": OrderedList,
        "table_open": Table,
        "fence": CodeBlock,
        "code_block": CodeBlock,
    }

    class HeightKept(Message):
        """Its blocks may be left out of the layout from now on."""

    def __init__(self, text: str | None = None) -> None:
        super().__init__(text, parser_factory=make_parser, open_links=False)
        # A text that is given is complete; of one that is streamed, `settle` tells the end.
        self._settled = bool(text)
        self._settled_width = 0
        self._laid_out = True

    async def expect(self) -> None:
        """Make room for the first words, so that showing them needs no layout."""
        if not self.children:
            await self.mount(Paragraph(self, Token("paragraph_open", "p", 1)))

    def settle(self) -> None:
        """Nothing will be added, until `grow`."""
        self._settled = True
        self.call_after_refresh(self._settle_blocks)

    def grow(self) -> None:
        """More will be added."""
        self._settled = False
        # Of a text that was given at once, Textual takes the last line for all of the last block.
        self._last_parsed_line = _last_block_line(self.source)
        self._release_height()

    def lay_out(self, wanted: bool) -> None:
        """Whether its blocks take part in the layout; without them it stays as high as it is.

        A layout goes through every widget there is, seen or not: of a long conversation that is
        what keys would wait for. One whose height is not known yet takes part.
        """
        wanted = wanted or self._settled_width == 0
        if wanted != self._laid_out:
            self._laid_out = wanted
            for block in self.children:
                block.display = wanted

    def on_resize(self, event: events.Resize) -> None:
        """In other columns, the text has other lines."""
        if self._settled and self._settled_width != event.size.width:
            self._release_height()
            self.call_after_refresh(self._keep_height)

    async def _settle_blocks(self) -> None:
        # A stream that is stopped waits no more for what it adds; that is still being added.
        async with self.lock:
            if self._settled:
                for block in self.query(CodeBlock):
                    block.settle()
        self.call_after_refresh(self._keep_height)

    def _keep_height(self) -> None:
        # Asked for its height, a document lays out all that it has, whenever anything on the
        # screen changes: of a long answer that would be most of the work.
        width = self.size.width
        if self._settled and width and self._laid_out:
            height = self.get_content_height(self.container_size, self.app.size, width)
            self._settled_width = width
            self.styles.height = height
            self.post_message(self.HeightKept())

    def _release_height(self) -> None:
        if self._settled_width == 0:
            return  # it was not kept: setting it would be a layout
        self._settled_width = 0
        self.lay_out(wanted=True)
        self.styles.height = None
