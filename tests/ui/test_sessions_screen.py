"""The list of sessions over a store in memory."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import Input, OptionList

from flashllm.conversations.database import set_aside
from flashllm.conversations.files import export, export_name, import_file
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Turn
from flashllm.errors import CannotCreate, FlashllmError, ReadFailed, UsageError
from flashllm.ui.screens.sessions import ROWS_BEYOND, SessionChoice, SessionsScreen
from tests.support.screens import Around, shown, until


@dataclass(frozen=True)
class Kept:
    id: int
    name: str
    model: str = "demo"
    updated: float = 1_700_000_000.0
    turns: int = 4
    preview: str = "What is an ocean?"
    created: float = 1_600_000_000.0


class Store:
    def __init__(self, *kept: Kept) -> None:
        self.kept = list(kept)
        self.broken: FlashllmError | None = None
        self.threads: set[int] = set()

    def list(self, query: str = "", limit: int = 200) -> list[Kept]:
        if self.broken:
            raise self.broken
        self.threads.add(threading.get_ident())
        found = [
            kept for kept in self.kept if query.lower() in f"{kept.name} {kept.preview}".lower()
        ]
        return found[:limit]

    def rename(self, session_id: int, name: str, created: float) -> None:
        if self.broken:
            raise self.broken
        self.kept = [replace(k, name=name) if k.id == session_id else k for k in self.kept]

    def load(self, session_id: int) -> Any:
        raise ReadFailed(f"session {session_id} cannot be read")

    def delete(self, session_id: int, created: float) -> None:
        self.kept = [kept for kept in self.kept if kept.id != session_id]


def three() -> Store:
    return Store(Kept(3, "Rivers"), Kept(2, "", preview="Oceans\x1b[2J and seas"), Kept(1, "Lakes"))


class Screened(Around):
    def __init__(
        self, store: Store, current: int | None = None, folder: Path | None = None
    ) -> None:
        @contextmanager
        def opened() -> Iterator[Any]:
            yield store

        def open_store() -> AbstractContextManager[Any]:
            return opened()

        super().__init__(lambda: SessionsScreen(open_store, current, folder))


async def test_what_is_pasted_does_not_act_on_the_terminal() -> None:
    app = Screened(three())
    async with app.run_test() as pilot:
        await until(pilot, lambda: "3 sessions" in shown(app))
        line = app.screen.query_one(Input)
        line.post_message(events.Paste("La\x1b]52;c;eA==\x07k\x1b[2J\u202ees"))
        await until(pilot, lambda: "1 session" in shown(app))
        assert line.value == "Lakes"


async def test_a_year_is_shown_where_it_is_not_this_one() -> None:
    store = Store(Kept(2, "Rivers", updated=time.time()), Kept(1, "Lakes"))
    async with Screened(store).run_test() as pilot:
        await until(pilot, lambda: "Lakes" in shown(pilot.app))
        lines = {line.split()[1]: line for line in shown(pilot.app).splitlines() if "demo" in line}
    assert " Nov 2023 " in lines["Lakes"]
    assert time.strftime("%Y") not in lines["Rivers"]


@pytest.mark.parametrize("size", [(40, 12), (80, 24)])
async def test_it_lists_and_opens(size: tuple[int, int]) -> None:
    store = three()
    app = Screened(store, current=1)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "3 sessions" in shown(app))
        assert "Rivers" in shown(app)
        assert "Oceans and seas" in shown(app)
        assert "● Lakes" in shown(app)
        assert "\x1b" not in shown(app)
        assert app.screen.query_one(OptionList).highlighted == 2
        await pilot.press("up", "up", "up", "down", "enter")
        assert app.results == [SessionChoice("open", 2)]
    assert threading.get_ident() not in store.threads


@pytest.mark.parametrize(
    ("second", "result"), [("enter", SessionChoice("open", 3)), ("escape", None)]
)
async def test_a_second_key_does_not_leave_another_screen(
    second: str, result: SessionChoice | None
) -> None:
    app = Screened(three())
    async with app.run_test() as pilot:
        await until(pilot, lambda: "3 sessions" in shown(app))
        for key in ("enter", second):  # both are there before the page does anything
            app.post_message(events.Key(key, None))
        await until(pilot, lambda: bool(app.results))
        await pilot.pause(0.1)
        assert app.results == [result]
        assert len(app.screen_stack) == 1


async def test_it_searches_while_one_types() -> None:
    app = Screened(three())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "3 sessions" in shown(app))
        await pilot.press(*"seas")
        await until(pilot, lambda: "1 session" in shown(app) and "Rivers" not in shown(app))
        await pilot.press(*"xx")
        await until(pilot, lambda: "Nothing found" in shown(app))
        await pilot.press("enter", "ctrl+r", "ctrl+d", "ctrl+e")
        assert app.results == []
        await pilot.press("escape")
        await until(pilot, lambda: "Rivers" in shown(app))
        await pilot.press("escape")
        assert app.results == [None]


async def test_nothing_kept_and_a_new_one() -> None:
    app = Screened(Store())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "Nothing is kept yet." in shown(app))
        await pilot.press("down", "enter", "pagedown", "pageup", "ctrl+n")
        assert app.results == [SessionChoice("new")]


async def test_a_click_opens() -> None:
    app = Screened(three())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "3 sessions" in shown(app))
        await pilot.click(OptionList, offset=(5, 1))
        assert app.results == [SessionChoice("open", 2)]


async def test_it_renames() -> None:
    store = three()
    app = Screened(store)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "3 sessions" in shown(app))
        await pilot.press("ctrl+r")
        assert app.screen.query_one(Input).value == "Rivers"
        await pilot.press("ctrl+u", "enter")
        await until(pilot, lambda: "A name needs a letter or more." in shown(app))
        await pilot.press(*"Streams", "enter")
        await until(pilot, lambda: "It is called “Streams” now." in shown(app))
        assert store.kept[0].name == "Streams"
        await pilot.press("ctrl+r", "escape")
        assert app.results == []


async def test_it_deletes_after_asking() -> None:
    store = three()
    app = Screened(store)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "3 sessions" in shown(app))
        await pilot.press("ctrl+d")
        assert "Delete “Rivers”, 4 messages?" in shown(app)
        await pilot.press("escape")
        assert len(store.kept) == 3
        await pilot.press("ctrl+d", "enter")
        await until(pilot, lambda: "“Rivers” is deleted." in shown(app))
        assert [kept.id for kept in store.kept] == [2, 1]
        assert app.results == []


@pytest.mark.parametrize("key", ["ctrl+d", "ctrl+r", "ctrl+e"])
async def test_what_is_asked_stays_about_the_one_it_was_asked_of(key: str, tmp_path: Path) -> None:
    store = three()
    app = Screened(store, folder=tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "3 sessions" in shown(app))
        await pilot.press(key)
        said = str(app.screen.query_one("#said").render())
        await pilot.press("down")
        await pilot.click(OptionList, offset=(5, 2))
        app.screen._search()  # type: ignore[attr-defined]  # as it is while one types
        await pilot.pause(0.1)
        assert str(app.screen.query_one("#said").render()) == said
        await pilot.press("enter")
        if key == "ctrl+d":
            await until(pilot, lambda: "“Rivers” is deleted." in shown(app))
            assert [kept.id for kept in store.kept] == [2, 1]
        elif key == "ctrl+r":
            await until(pilot, lambda: "It is called" in shown(app))
            assert [kept.name for kept in store.kept] == ["Rivers", "", "Lakes"]
        else:
            await until(pilot, lambda: "session 3 cannot be read" in shown(app))


async def test_that_there_are_more_than_are_shown_is_said() -> None:
    app = Screened(Store(*(Kept(number, f"n{number}") for number in range(1, 300))))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "The latest 200 sessions; type to find others." in shown(app))


def many() -> Store:
    return Store(*(Kept(number, f"n{number}") for number in range(1, 121)))


async def test_rows_are_made_when_they_are_near() -> None:
    app = Screened(many())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "120 sessions" in shown(app))
        options = app.screen.query_one(OptionList)
        assert options.option_count == 24 + ROWS_BEYOND
        for key in ("pagedown", "down", "pagedown"):
            await pilot.press(key)
        reached = options.highlighted
        assert reached is not None
        assert reached + ROWS_BEYOND < options.option_count < 120
        for row in range(200):
            options.scroll_to(y=row, animate=False, immediate=True)
        await until(pilot, lambda: options.option_count == 120)
        await until(pilot, lambda: " n120 " in shown(app))
        await pilot.press("enter")
        assert app.results == [SessionChoice("open", reached + 1)]


async def test_a_session_far_below_is_shown_at_once() -> None:
    app = Screened(many(), current=77)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "● n77 " in shown(app))
        options = app.screen.query_one(OptionList)
        assert options.highlighted == 76
        assert options.option_count < 120
        await pilot.press(*["pagedown"] * 12)
        await until(pilot, lambda: " n120 " in shown(app))
        assert options.highlighted == 119


async def test_a_higher_screen_shows_more_rows() -> None:
    app = Screened(many())
    async with app.run_test(size=(80, 12)) as pilot:
        await until(pilot, lambda: "120 sessions" in shown(app))
        assert " n30 " not in shown(app)
        await pilot.resize_terminal(80, 50)
        await until(pilot, lambda: " n40 " in shown(app))


async def test_the_one_shown_is_left_to_the_chat() -> None:
    store = three()
    app = Screened(store, current=3)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "3 sessions" in shown(app))
        await pilot.press("ctrl+d", "enter")
        assert app.results == [SessionChoice("delete", 3, 1_600_000_000.0)]
    assert len(store.kept) == 3


def real(folder: Path) -> SessionStore:
    store = SessionStore(folder / "sessions.db")
    session_id = store.create(name="Rivers")
    store.save_turn(session_id, Turn(1, None, "user", "What is a river?"))
    store.save_turn(session_id, Turn(2, 1, "assistant", "Water that flows."))
    return store


@pytest.mark.parametrize("key", ["ctrl+d", "ctrl+r"])
async def test_what_took_its_number_meanwhile_is_left_alone(key: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    real(tmp_path).close()
    app = Around(lambda: SessionsScreen(lambda: SessionStore(path)))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "1 session" in shown(app))
        await pilot.press(key)
        set_aside(path)
        with SessionStore(path) as store:
            assert store.create(name="another") == 1
            await pilot.press("enter")
            await until(pilot, lambda: "there is no conversation 1" in shown(app))
            assert [kept.name for kept in store.list()] == ["another"]


async def test_it_exports_and_imports(tmp_path: Path) -> None:
    with real(tmp_path) as store:
        app = Screened(store, folder=tmp_path)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "1 session" in shown(app))
            await pilot.press("ctrl+e", "enter")
            await until(pilot, lambda: "Written:" in shown(app))
            assert "Water that flows." in (tmp_path / "flashllm-1-rivers.md").read_text()
            await pilot.press("ctrl+e", "enter")
            await until(pilot, lambda: "choose another name" in shown(app))
            line = app.screen.query_one(Input)
            line.value = str(tmp_path / "a.json")
            await pilot.press("enter")
            await until(pilot, lambda: "a.json" in shown(app) and "Written:" in shown(app))
            await pilot.press("ctrl+o")
            line.value = str(tmp_path / "a.json")
            await pilot.press("enter")
            await until(pilot, lambda: "Imported as session 2." in shown(app))
            assert [kept.name for kept in store.list()] == ["Rivers", "Rivers"]
            await pilot.press("enter")
            assert app.results == [SessionChoice("open", 2)]


async def test_a_store_that_fails_says_so_and_stays() -> None:
    store = three()
    store.broken = ReadFailed("sessions.db: is locked; close the other chat")
    app = Screened(store)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "is locked; close the other chat" in shown(app))
        store.broken = None
        await pilot.press("a")
        await until(pilot, lambda: "Lakes" in shown(app))
        store.broken = ReadFailed("disk full")
        await pilot.press("ctrl+r", "x", "enter")
        await until(pilot, lambda: "disk full" in shown(app))
        assert app.screen.query_one(Input).value.endswith("x")


def test_names_of_files() -> None:
    assert export_name(3, "What is ../../it?", "md") == "flashllm-3-what-is-it.md"
    assert export_name(3, "\x1b[2J", "json") == "flashllm-3.json"


def test_files_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    store = real(tmp_path)
    with pytest.raises(UsageError, match=r"end the name in .md or .json"):
        export(store, 1, str(tmp_path / "a.txt"))
    with pytest.raises(CannotCreate, match="No such file"):
        export(store, 1, str(tmp_path / "no" / "a.md"))
    with pytest.raises(UsageError, match="cannot be read"):
        import_file(store, str(tmp_path / "none.json"))
    with pytest.raises(CannotCreate, match="~nobody-of-that-name"):
        export(store, 1, "~nobody-of-that-name/a.md")
    for call in (lambda: import_file(store, "a\0.json"), lambda: export(store, 1, "a\0.md")):
        with pytest.raises(UsageError, match="no file can be called that"):
            call()
    for content in ("{", "[" * 100_000, "[1]", json.dumps({"x": 1}), "\xff"):
        (tmp_path / "b.json").write_text(content, encoding="latin-1")
        with pytest.raises(FlashllmError):
            import_file(store, str(tmp_path / "b.json"))
    store.close()
