"""When the first word of an answer was on the screen, found once the whole answer is known."""

from __future__ import annotations

import re

from benchmarks.chat.terminal import ChatTerminal
from flashllm.errors import BenchmarkInvalid, ReadFailed

PARAGRAPH_COLUMN = 4
"""Where the lines of an answer begin; the cursor is moved there for what changes of them."""
WORD = re.compile(r"\w+")


def first_word_seconds(
    terminal: ChatTerminal, since: int, entered: float, answer: str, before: str = ""
) -> float:
    """Seconds from Enter, at `entered`, to the first character of the first word of `answer`.

    Looked for is text behind position `since` that stands where a paragraph of an answer begins,
    and begins as `answer` does; the word may come in parts. `before` is the answer that is on the
    screen already: `BenchmarkInvalid` where both begin with the same word or there is none, and
    `ReadFailed` where the word was not shown.
    """
    wanted = WORD.search(answer)
    if wanted is None:
        raise BenchmarkInvalid(f"the answer {answer[:40]!r} has no word to look for")
    word, other = wanted[0], WORD.search(before)
    if other is not None and other[0] == word:
        raise BenchmarkInvalid(f"two answers begin with {word!r}; it is not known whose it is")
    part_there: float | None = None
    for written in terminal.texts(since):
        shown = WORD.search(written.text)
        if written.column != PARAGRAPH_COLUMN or shown is None:
            continue
        if shown[0] == word:
            return (written.when if part_there is None else part_there) - entered
        if part_there is None and word.startswith(shown[0]):
            is_last = not written.text[shown.end() :].strip()
            part_there = written.when if is_last else None
    raise ReadFailed(f"the chat never showed {word!r}; it ended with {terminal.last_words!r}")
