"""Answers cut into stretches: where, and that nothing is lost or read otherwise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content

from flashllm.ui.answer_markdown import CodeBlock, make_parser
from flashllm.ui.stretches import Stretches

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
    stretches, result = Stretches(target), [""]
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


CODE = "\n".join(f"def f{i}(x):\n    '''Doc {i}.'''\n\n    return x + {i}\n" for i in range(60))


def test_code_that_grows_is_shown_whole_at_each_length() -> None:
    for end in range(0, len(CODE), 29):
        code = CODE[:end].rstrip()
        assert CodeBlock.highlight(code, "python").plain == code


def test_code_is_coloured_and_code_of_no_language_is_plain() -> None:
    assert CodeBlock.highlight("def f(): pass", "python").spans
    assert CodeBlock.highlight("def f(): pass", "") == Content("def f(): pass")
    assert CodeBlock.highlight("x\x00y", "nonsense").plain == "x\x00y"
