"""Answers cut into stretches: where, and that nothing is lost or read otherwise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.content import Content, Span
from textual.widgets import Label

from flashllm.ui.transcript.answer import Answer
from flashllm.ui.transcript.markdown import CodeBlock, make_parser
from flashllm.ui.transcript.markdown_split import MarkdownSplitter
from tests.support.chat_pilot import screen_text
from tests.support.screens import until

TEXT = """\
Some text
goes on.

# Head

1. one

   more of it

2. two

```python
def f():

    return 1

print("x")
```

- a

  ~~~
  code

  code in a fence
  ~~~

> quote

> another

| a | b |
|---|---|
| 1 | 2 |

End of it.
"""


def cut(pieces: list[str], target: int) -> list[str]:
    stretches, result = MarkdownSplitter(target), [""]
    for piece in pieces:
        first, *others = stretches.feed(piece)
        result[-1] += first
        result += others
    return result


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 60))
def test_where_the_text_is_cut_does_not_depend_on_how_it_arrives(
    sizes: list[int], target: int
) -> None:
    pieces, rest = [], TEXT
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    pieces.append(rest)
    stretches = cut(pieces, target)
    assert "".join(stretches) == TEXT
    assert stretches == cut([TEXT], target)


def test_a_fence_of_tildes_may_have_backticks_behind_it() -> None:
    text = "~~~ `x`\ncode\n\ncode\n~~~\n\nText.\n\nMore.\n"
    assert cut([text], 1) == ["~~~ `x`\ncode\n\ncode\n~~~\n\n", "Text.\n\n", "More.\n"]


def test_stretches_say_what_the_whole_says() -> None:
    def blocks(text: str) -> list[tuple[str, str, str]]:
        return [
            (token.type, token.tag, token.content)
            for token in make_parser().parse(text)
            if token.type not in ("paragraph_open", "paragraph_close")
        ]

    stretches = cut([TEXT], 1)
    assert len(stretches) > 4
    assert [block for stretch in stretches for block in blocks(stretch)] == blocks(TEXT)


LONG = (
    TEXT
    + "".join(f"{number}. item {number} of the list\n" for number in range(1, 13))
    + "\n- a\n  - nested\n  - more\n- b\n\n```python\nx = '''\nstring\n'''\n"
    + "".join(f"y{number} = {number}\n" for number in range(50))
    + "```\n\nLast **bold** words, so many that the width of this narrow screen wraps them.\n"
)


class Column(App[None]):
    """One answer."""

    CSS = "Answer { height: auto } .note { display: none }"

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.answer = Answer(text)

    def compose(self) -> ComposeResult:
        yield self.answer


async def test_an_answer_that_came_in_pieces_looks_as_if_it_had_come_whole() -> None:
    size = (60, 160)
    async with Column(LONG).run_test(size=size) as pilot:
        await until(pilot, lambda: "them." in screen_text(pilot.app))
        await pilot.pause(0.3)
        whole = screen_text(pilot.app)
        assert "y49 = 49" in whole
    draw = random.Random(1)
    async with Column().run_test(size=size) as pilot:
        answer, begin = pilot.app.query_one(Answer), 0
        while begin < len(LONG):
            end = begin + draw.choice([3, 8, 40])
            await answer.add(LONG[begin:end])
            begin = end
            if draw.random() < 0.3:
                await pilot.pause(0)
        await answer.finish()
        assert answer.shown_text == LONG
        await until(pilot, lambda: screen_text(pilot.app) == whole)
        colors = {str(span.style) for label in pilot.app.query(CodeBlock).first().query(Label)
                  for span in label.content.spans}  # fmt: skip
        assert len(colors) > 1


@pytest.mark.parametrize(
    "end", ["Some text\ngoes", "2. two", "- nested\n  - mo", "def f", "y20 = 20\ny2", "narrow\nscr"]
)
async def test_an_answer_that_goes_on_looks_as_if_it_had_come_whole(end: str) -> None:
    """It was there, as it is when a conversation is opened, and is gone on with."""
    text = LONG.replace("narrow screen", "narrow\nscreen")
    begun = text.index(end) + len(end)
    async with Column(text).run_test(size=(60, 160)) as pilot:
        await until(pilot, lambda: "them." in screen_text(pilot.app))
        await pilot.pause(0.3)
        whole = screen_text(pilot.app)
    async with Column(text[:begun]).run_test(size=(60, 160)) as pilot:
        await pilot.pause(0.3)
        answer = pilot.app.query_one(Answer)
        for begin in range(begun, len(text), 40):
            await answer.add(text[begin : begin + 40])
        await answer.finish()
        await until(pilot, lambda: screen_text(pilot.app) == whole)


async def test_code_that_came_whole_is_coloured_as_a_whole() -> None:
    """A string that begins in one label and goes on in the next is a string there, too."""
    words = "\n".join(f"for word in {number}" for number in range(45))
    async with Column(f"```python\nx = '''\n{words}\n'''\n```\n").run_test() as pilot:
        await until(pilot, lambda: len(pilot.app.query(CodeBlock)) == 1)
        block = pilot.app.query_one(CodeBlock)
        wanted = [line.spans for line in block._colored(block.code).split("\n")]

        def shown() -> list[list[Span]]:
            contents = [label.content for label in block.query(Label)]
            assert all(isinstance(content, Content) for content in contents)
            return [line.spans for content in contents for line in content.split("\n")]

        await until(pilot, lambda: shown() == wanted)
        assert len(block.query(Label)) == 3
