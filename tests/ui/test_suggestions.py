"""The list above the prompt while a command is typed: arrows, Enter, Tab, Esc, the mouse, paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flashllm.ui.app import ChatApp
from flashllm.ui.chat.status import Phase
from flashllm.ui.commands.table import COMMANDS
from flashllm.ui.prompt import paths
from flashllm.ui.prompt.suggestions import Suggestions
from flashllm.ui.screens.confirm import ConfirmScreen
from flashllm.ui.screens.help import HelpScreen
from flashllm.ui.screens.sessions import SessionsScreen
from flashllm.ui.transcript.turn import Notice
from tests.support.chat_pilot import answers, make_app, ready, screen_text, texts
from tests.support.fake_engine import FakeModel
from tests.support.screens import until


def offered(app: ChatApp) -> list[str]:
    return [one.shown for one in app.query_one(Suggestions).suggestions]


def marked(app: ChatApp) -> str | None:
    suggestions = app.query_one(Suggestions)
    return None if suggestions.marked is None else suggestions.suggestions[suggestions.marked].shown


async def test_arrows_walk_and_enter_takes_the_marked_one(tmp_path: Path) -> None:
    async with make_app(FakeModel(["x"]), store=tmp_path / "s.db").run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("slash", *"se")
        await until(pilot, lambda: marked(app) == "/set NAME VALUE")
        await pilot.press("down")
        assert marked(app) == "/settings"
        await pilot.press("up", "up")
        assert marked(app) == "/session ID|name"  # round the end
        await pilot.press("up")
        assert marked(app) == "/sessions"
        assert app.chat.prompt.text == "/se"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SessionsScreen))
        assert app.chat.prompt.text == ""


async def test_the_beginning_of_a_name_and_enter_are_enough() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("slash", *"he", "enter")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert texts(app, Notice) == []


async def test_what_needs_more_is_filled_in_and_its_arguments_are_walked() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("slash", *"them", "enter")
        await until(pilot, lambda: app.chat.prompt.text == "/theme " and len(offered(app)) > 2)
        assert marked(app) is None  # what is typed counts, until an arrow says otherwise
        await pilot.press(*"no", "down", "enter")
        await until(pilot, lambda: app.theme == "nord")
        await pilot.press("slash", *"set s", "down", "down", "tab")
        assert app.chat.prompt.text == "/set seed "


async def test_a_whole_name_is_itself_though_others_begin_with_it(tmp_path: Path) -> None:
    async with make_app(FakeModel(["x"]), store=tmp_path / "s.db").run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("slash", *"session")
        await until(pilot, lambda: offered(app) == ["/sessions", "/session ID|name"])
        assert marked(app) == "/session ID|name"
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.prompt.text == "/session ")


async def test_what_is_no_command_is_refused_as_before() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("slash", *"hepl", "enter")
        await until(pilot, lambda: "did you mean '/help'?" in "".join(texts(app, Notice)))
        assert app.chat.prompt.text == "/hepl"


async def test_escape_closes_the_list_and_nothing_else() -> None:
    import threading

    async with make_app(FakeModel(["begun", threading.Event()])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press(*"go", "enter")
        await until(pilot, lambda: answers(app) == ["begun"])
        await pilot.press("slash", *"st")
        await until(pilot, lambda: offered(app) == ["/stop"])
        await pilot.press("escape")
        await until(pilot, lambda: offered(app) == [])
        assert app.chat.activity.phase is Phase.WRITING
        assert app.chat.prompt.text == "/st"
        await pilot.press("o")
        await until(pilot, lambda: offered(app) == ["/stop"])
        await pilot.press("enter")  # stops the answer, though a list was open
        await until(pilot, lambda: app.chat.activity.phase is Phase.READY)


async def test_arrows_go_on_through_the_history_where_that_holds_commands() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        for line in ("/context", "/clear", "/show"):
            await pilot.press(*("slash" if c == "/" else c for c in line), "enter")
            await until(pilot, lambda: app.chat.prompt.text == "")
        for expected in ("/show", "/clear", "/context"):
            await pilot.press("up")
            assert app.chat.prompt.text == expected
        await pilot.press("down")
        assert app.chat.prompt.text == "/clear"
        await pilot.press("enter")
        await until(pilot, lambda: texts(app, Notice) == [])


async def test_a_click_takes_one_and_what_is_marked_is_shown() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("slash")
        await until(pilot, lambda: len(offered(app)) == len(COMMANDS))
        await pilot.press(*["down"] * 9)
        name = marked(app)
        assert name is not None
        assert name.split()[0] in screen_text(app)
        assert "/help" not in screen_text(app).replace("/help lists", "")
        await pilot.press("up", "backspace", "slash")
        await until(pilot, lambda: marked(app) == "/help")
        await pilot.click(Suggestions, offset=(3, 1))
        await until(pilot, lambda: app.chat.prompt.text == "" and offered(app) == [])
        await pilot.press("slash", *"dele")
        await until(pilot, lambda: offered(app) == ["/delete [n]"])
        await pilot.click(Suggestions, offset=(3, 0))
        await pilot.pause()
        assert not isinstance(app.screen, ConfirmScreen)  # there is no message yet


async def test_paths_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.txt").write_text("1")
    (tmp_path / "notes" / "two words.md").write_text("2")
    (tmp_path / "notes" / ".hidden").write_text("3")
    (tmp_path / "notes" / "bad\x1bname").write_text("4")
    monkeypatch.setenv("HOME", str(tmp_path))
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        app.chat.prompt.put_text("/file ~/no")
        await until(pilot, lambda: offered(app) == ["~/notes/"])
        await pilot.press("tab")
        assert app.chat.prompt.text == "/file ~/notes/"
        await until(pilot, lambda: offered(app) == ["~/notes/one.txt", "~/notes/two words.md"])
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: "[two words.md: " in app.chat.prompt.text)
        app.chat.prompt.put_text("/file ~/notes/.")
        await until(pilot, lambda: offered(app) == ["~/notes/.hidden"])
        app.chat.prompt.put_text("/file /nowhere-at-all/x")
        await pilot.pause(0.1)
        assert offered(app) == []


def test_folders_that_cannot_be_read_offer_nothing(tmp_path: Path) -> None:
    assert paths.list_folder("/nowhere-at-all/") == []
    assert paths.list_folder("a\0b/") == []
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "folder").mkdir()
    assert paths.list_folder(f"{tmp_path}/") == ["folder/", "link"]
    assert paths.completions("fo", ["folder/", "link"]) == ["folder/"]
    assert paths.completions("link", ["link"]) == []


def test_a_large_folder_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "ENTRIES_MAX", 3)
    for number in range(9):
        os.close(os.open(tmp_path / str(number), os.O_CREAT))
    assert len(paths.list_folder(f"{tmp_path}/")) == 3
