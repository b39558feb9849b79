"""Lines of the screen that remember little, and look the same."""

from __future__ import annotations

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from flashllm.ui import lean_strips


@pytest.fixture
def lean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Strip, "__init__", Strip.__init__)  # as it was, afterwards
    lean_strips.make_strips_lean()


def strip() -> Strip:
    return Strip([Segment("one ", Style(bold=True)), Segment("漢字 and three")])


def shapes(line: Strip) -> list[Strip]:
    """A line in all the ways that Textual makes others of it, twice."""
    return [
        made
        for _ in range(2)
        for made in (
            line.crop(2, 9),
            line.crop_extend(1, 30, Style(italic=True)),
            line.adjust_cell_length(7),
            line.adjust_cell_length(40, Style(dim=True)),
            line.apply_style(Style(underline=True)),
            line.apply_offsets(3, 1),
            *line.divide([3, 6, 12]),
        )
    ]


def test_lines_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Strip, "__init__", lean_strips._make_strip)
    expected = [list(made) for made in shapes(strip())]
    lean_strips.make_strips_lean()
    line = strip()
    assert [list(made) for made in shapes(line)] == expected
    assert not hasattr(line._crop_cache, "__len__")
    assert line.divide([3, 6, 12]) is line.divide([3, 6, 12]), "what is asked for again is kept"


@pytest.mark.usefixtures("lean")
def test_lines_share_what_is_empty() -> None:
    line, other = strip(), strip()
    caches = {id(getattr(one, name)) for one in (line, other) for name in lean_strips.RARELY_ASKED}
    assert len(caches) == 1
    assert line._filter_cache is not other._filter_cache


@pytest.mark.usefixtures("lean")
def test_the_last_answer_is_remembered_and_no_other() -> None:
    line = strip()
    first = line.divide([3, 6])
    assert line.divide([3, 6]) is first
    other = line.divide([4, 8])
    assert line.divide([4, 8]) is other
    again = line.divide([3, 6])
    assert again is not first
    assert [list(part) for part in again] == [list(part) for part in first]


def test_lines_with_other_caches_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Strip.__init__
    monkeypatch.setattr(lean_strips, "RARELY_ASKED", ("_fold_cache",))
    monkeypatch.setattr(Strip, "__init__", made)
    lean_strips.make_strips_lean()
    assert Strip.__init__ is made
