"""Lines of the screen that remember little, and look the same."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getattr_static

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from flashllm.ui import lean_strips

CACHES = (*lean_strips.RARELY_ASKED, *lean_strips.OFTEN_ASKED)


@pytest.fixture
def usual() -> Iterator[None]:
    """Textual's own caches, whatever an application made of them before."""
    found = {name: getattr_static(Strip, name) for name in CACHES}
    for name in CACHES:
        setattr(Strip, name, getattr(found[name], "place", found[name]))
    yield
    for name in CACHES:
        setattr(Strip, name, found[name])


@pytest.fixture
def lean(usual: None) -> None:
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


@pytest.mark.usefixtures("usual")
def test_lines_are_what_they_were() -> None:
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
    assert line._filter_cache is line._filter_cache


@pytest.mark.usefixtures("lean")
def test_a_line_that_is_not_asked_has_no_cache_of_its_own() -> None:
    line = strip()
    assert not [name for name in CACHES if has_own(line, name)]
    line.divide([3, 6])
    assert [name for name in CACHES if has_own(line, name)] == ["_divide_cache"]


def has_own(line: Strip, name: str) -> bool:
    place = getattr(getattr_static(Strip, name), "place", None)
    try:
        return place is not None and place.__get__(line, Strip) is not None
    except AttributeError:
        return False


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


@pytest.mark.usefixtures("usual")
def test_lines_with_other_caches_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [getattr_static(Strip, name) for name in CACHES]
    monkeypatch.setattr(lean_strips, "RARELY_ASKED", ("_fold_cache",))
    lean_strips.make_strips_lean()
    assert [getattr_static(Strip, name) for name in CACHES] == before


@pytest.mark.usefixtures("lean")
def test_lines_are_made_lean_once() -> None:
    before = [getattr_static(Strip, name) for name in CACHES]
    lean_strips.make_strips_lean()
    assert [getattr_static(Strip, name) for name in CACHES] == before
