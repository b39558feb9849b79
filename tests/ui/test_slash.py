"""Slash commands and the palette, through the chat."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

import pytest
from textual import events
from textual.command import CommandPalette
from textual.widgets import Input

from flashllm.conversations.database import set_aside
from flashllm.conversations.store import SessionStore
from flashllm.engine.sampling import Sampling
from flashllm.library.models import ModelChoice
from flashllm.library.names import ModelNames
from flashllm.ui.app import ChatApp
from flashllm.ui.commands.table import COMMANDS
from flashllm.ui.prompt.suggestions import Suggestions
from flashllm.ui.screens.convert import ConvertScreen
from flashllm.ui.screens.help import HelpScreen
from flashllm.ui.screens.settings import SettingsScreen
from flashllm.ui.transcript.turn import Notice, Question
from tests.support.chat_pilot import ask, make_app, ready, say, status, texts
from tests.support.fake_engine import FakeModel
from tests.support.fake_library import FakeLibrary
from tests.support.screens import shown, until


def suggestions(app: ChatApp) -> list[str]:
    return [one.shown for one in app.query_one(Suggestions).suggestions]


async def test_an_unknown_command_says_so_and_stays() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        for line, words in (
            ("/hepl me", "there is no command /hepl; did you mean '/help'?"),
            ("/set temp", "/set needs more: /set NAME VALUE"),
            ("/set temp hot", "temp: 'hot' is not a number"),
            ("/set tmep 1", "there is no setting 'tmep'; did you mean 'temp'?"),
            ("/edit x", "'x' is no number of a message; 1 is the last one"),
            ("/branch up", "/branch: 'up' is neither next nor prev"),
            ("/theme nrod", "there is no theme 'nrod'; did you mean 'nord'?"),
            ("/export pdf", "/export: 'pdf' is neither md nor json"),
            ("/export md", "/export: there is nothing to export yet"),
            ("/rename x", "/rename: nothing is kept yet; ask something first"),
            ("/session 1", "conversations are not kept in this chat"),
            ("/import a.json", "conversations are not kept in this chat"),
            ("/model /nowhere/at/all", "/nowhere/at/all: there is no such directory"),
            ("/model ~nobody-at-all/x", "~nobody-at-all/x: there is no such directory"),
            (f"/model {'a' * 300}", "aaaa: there is no model of that name"),
            ("/stop", "/stop: there is nothing to stop now"),
        ):
            await say(pilot, line)
            await until(pilot, lambda words=words: any(words in t for t in texts(app, Notice)))
            assert app.chat.prompt.text == line
        assert app.chat.conversation.turns == {}


async def test_two_slashes_and_paths_are_sent() -> None:
    model = FakeModel(["fine"])
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "//help is a command")
        await ask(pilot, "/usr/bin is a path")
        assert texts(app, Question) == ["/help is a command", "/usr/bin is a path"]


async def test_settings_are_changed_shown_and_used() -> None:
    model = FakeModel(["fine"])
    async with make_app(model).run_test(size=(100, 40)) as pilot:
        app = await ready(pilot)
        for line in ("/set temp 0.7", "/set n 9", "/set seed 3", "/system Be brief."):
            await say(pilot, line)
            await until(pilot, lambda: app.chat.prompt.text == "")
        await say(pilot, "/show")
        await until(pilot, lambda: any("seed" in text for text in texts(app, Notice)))
        rows = dict(
            line.split(None, 1) for line in texts(app, Notice)[-1].splitlines() if " " in line
        )
        assert rows["temp"] == "0.7"
        assert rows["system"] == "Be brief."
        await ask(pilot, "go")
        assert model.requests[-1]["max_tokens"] == 9
        assert model.requests[-1]["sampling"] == Sampling(0.7, seed=3)
        assert model.tokenizer is not None
        assert model.tokenizer.conversations[-1][0] == {"role": "system", "content": "Be brief."}


async def test_a_conversation_goes_on_with_its_own_settings(tmp_path: Path) -> None:
    model = FakeModel(["fine"])
    async with make_app(model, store=tmp_path / "s.db", given=["seed"]).run_test() as pilot:
        app = await ready(pilot)
        for line in ("/set temp 0.7", "/set seed 3"):
            await say(pilot, line)
            await until(pilot, lambda: app.chat.prompt.text == "")
        await ask(pilot, "go")
        await say(pilot, "/set temp 0")
        await until(pilot, lambda: app.chat.prompt.text == "")
        await say(pilot, "/new")
        await until(pilot, lambda: texts(app, Question) == [])
        await ask(pilot, "other")
        assert model.requests[-1]["sampling"] == Sampling(seed=3)
        await say(pilot, "/set temp 1")
        await say(pilot, "/set seed 5")
        await until(pilot, lambda: app.chat.answer_settings.sampling == Sampling(1.0, seed=5))
        await say(pilot, "/session 1")
        await until(pilot, lambda: texts(app, Question) == ["go"])
        assert app.chat.answer_settings.sampling == Sampling(0.0, seed=5)


@pytest.mark.parametrize(("given", "system"), [(["system"], "Be brief."), ([], "Rhyme.")])
async def test_a_system_prompt_that_was_given_is_that_of_the_conversation_that_was_asked_for(
    given: list[str], system: str, tmp_path: Path
) -> None:
    with SessionStore(tmp_path / "s.db") as store:
        asked, other = (store.create(system=text) for text in ("Rhyme.", "Sing."))
    options = {"store": tmp_path / "s.db", "session": asked, "system": "Be brief.", "given": given}
    async with make_app(FakeModel(["fine"]), **options).run_test() as pilot:
        app = await ready(pilot)
        assert app.chat.conversation.system == system
        assert app.chat.saving.flush(5.0)
        with SessionStore(tmp_path / "s.db") as store:
            assert store.summary(asked).system == system
        await say(pilot, f"/session {other}")
        await until(pilot, lambda: app.chat.conversation.system == "Sing.")


async def test_what_is_not_kept_can_be_exported_and_what_is_not_there_is_said(
    tmp_path: Path,
) -> None:
    async with make_app(FakeModel(["Water."])).run_test() as pilot:
        app = await ask(pilot, "What is a river?")
        await say(pilot, f"/export md {tmp_path}/a.md")
        await until(pilot, lambda: (tmp_path / "a.md").exists())
        assert "Water." in (tmp_path / "a.md").read_text()
        await say(pilot, "/export md ~nobody-at-all/a.md")
        await until(
            pilot, lambda: any("~nobody-at-all/a.md: cannot" in t for t in texts(app, Notice))
        )
        await pilot.press("f4")
        await until(pilot, lambda: "not kept" in status(app))
        await say(pilot, "/models")
        await until(pilot, lambda: "no models are looked for here" in status(app))
        await say(pilot, "/convert")
        await until(pilot, lambda: "nothing can be converted here" in status(app))


async def test_a_conversion_is_asked_for_with_its_places() -> None:
    async with make_app(FakeModel(["one"]), library=FakeLibrary).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "/convert ~no-such-user/a '/to b'")
        await until(pilot, lambda: isinstance(app.screen, ConvertScreen))
        values = [app.screen.query_one(name, Input).value for name in ("#source", "#destination")]
        assert values == ["~no-such-user/a", "/to b"]


async def test_what_cannot_be_saved_can_be_exported(tmp_path: Path) -> None:
    model = FakeModel(["Water."], ["Salt water."])
    async with make_app(model, store=tmp_path / "s.db").run_test() as pilot:
        app = await ask(pilot, "What is a river?")
        await say(pilot, "/rename Waters")
        app.chat.saving.flush(5.0)
        with sqlite3.connect(tmp_path / "s.db", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")  # as if another program wrote for ever
            await ask(pilot, "What is a sea?")
            await say(pilot, f"/export json {tmp_path}/a.json")
            await until(pilot, lambda: any("Written" in text for text in texts(app, Notice)))
        other.close()
        written = json.loads((tmp_path / "a.json").read_text())
        assert [turn["text"] for turn in written["turns"]][-1] == "Salt water."
        assert (written["name"], written["settings"]["max_tokens"]) == ("Waters", 512)


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_name_that_is_not_kept_is_not_said_to_be(tmp_path: Path, is_deleted: bool) -> None:
    path = tmp_path / "s.db"
    async with make_app(FakeModel(["Water."]), store=path).run_test(size=(120, 30)) as pilot:
        app = await ask(pilot, "What is a river?")
        await say(pilot, "/rename Waters")
        await until(pilot, lambda: "is called “Waters” now" in status(app))
        if is_deleted:
            with SessionStore(path) as store:
                store.delete(1)
        else:
            set_aside(path)
        await say(pilot, "/rename Rivers")
        await until(pilot, lambda: "the name is not kept" in status(app))
        await until(pilot, lambda: any("not being saved" in text for text in texts(app, Notice)))
        assert "Rivers" not in status(app)


async def test_nothing_is_imported_while_an_answer_is_on_its_way(tmp_path: Path) -> None:
    never = threading.Event()
    model = FakeModel(["Water."], ["Salt", never])
    async with make_app(model, store=tmp_path / "s.db").run_test() as pilot:
        app = await ask(pilot, "What is a river?")
        await say(pilot, f"/export json {tmp_path}/a.json")
        await until(pilot, lambda: (tmp_path / "a.json").exists())
        await say(pilot, "What is a sea?")
        await until(pilot, lambda: app.chat.activity.is_answering)
        await say(pilot, f"/import {tmp_path}/a.json")
        await until(pilot, lambda: any("/stop first" in text for text in texts(app, Notice)))
        with SessionStore(tmp_path / "s.db") as store:
            assert len(store.list()) == 1
        await pilot.press("escape")
        await ready(pilot)


async def test_sessions_are_opened_and_deleted_from_the_list(tmp_path: Path) -> None:
    async with make_app(FakeModel(["fine"]), store=tmp_path / "s.db").run_test() as pilot:
        app = await ask(pilot, "the first")
        await pilot.press("ctrl+n")
        await ask(pilot, "the second")
        await pilot.press("f4")
        await until(pilot, lambda: "2 sessions" in shown(app))
        await pilot.press("down", "enter")
        await until(pilot, lambda: texts(app, Question) == ["the first"])
        await pilot.press("f4")
        await until(pilot, lambda: "2 sessions" in shown(app))
        await pilot.press("ctrl+d", "enter")
        await until(pilot, lambda: texts(app, Question) == [])
        with SessionStore(tmp_path / "s.db") as store:
            await until(pilot, lambda: [one.id for one in store.list()] == [2])


async def test_another_of_the_same_number_is_not_the_one_that_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with make_app(FakeModel(["fine"]), store=path).run_test() as pilot:
        app = await ask(pilot, "the first")
        assert app.chat.saving.flush(10)
        set_aside(path)
        with SessionStore(path) as store:
            assert store.create(name="another") == app.chat.session_id
        await pilot.press("f4")
        await until(pilot, lambda: "1 session" in shown(app))
        assert "● another" not in shown(app)
        await pilot.press("ctrl+d", "enter")
        await until(pilot, lambda: "“another” is deleted." in shown(app))
        assert texts(app, Question) == ["the first"]


async def test_what_is_typed_is_completed() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("slash")
        await until(pilot, lambda: len(suggestions(app)) == len(COMMANDS))
        assert "Tab completes" in shown(app)
        await pilot.press(*"the")
        await until(pilot, lambda: suggestions(app) == ["/theme NAME"])
        await pilot.press("tab")
        assert app.chat.prompt.text == "/theme "
        await pilot.press(*"nor", "tab")
        assert app.chat.prompt.text == "/theme nord"
        await pilot.press("enter")
        await until(pilot, lambda: app.theme == "nord")
        await until(pilot, lambda: suggestions(app) == [])
        await pilot.press("n", "o")
        assert suggestions(app) == []


async def test_the_palette_runs_and_begins_commands() -> None:
    async with make_app(FakeModel(["x"])).run_test(size=(100, 30)) as pilot:
        app = await ready(pilot)
        app.chat.prompt.put_text("a draft")
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await until(pilot, lambda: "/regenerate" in shown(app))
        app.screen.query_one(Input).value = "theme nord"
        await until(pilot, lambda: "/theme nord" in shown(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.theme == "nord")
        assert app.chat.prompt.text == "a draft"
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        app.screen.query_one(Input).value = "rename"
        await until(pilot, lambda: "/rename NAME" in shown(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.prompt.text == "/rename ")
        await pilot.press("up")
        await until(pilot, lambda: app.chat.prompt.text == "a draft")


async def test_what_is_pasted_into_the_palette_does_not_act_on_the_terminal() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        line = app.screen.query_one(Input)
        line.post_message(events.Paste("ren\x1b]52;c;eA==\x07a\x1b[2Jm\u202ee"))
        await until(pilot, lambda: line.value == "rename")
        await until(pilot, lambda: "/rename NAME" in shown(app))


@pytest.mark.usefixtures("footer")
async def test_changed_keys_work_are_in_the_footer_and_in_help() -> None:
    keymap = {"chat.help": "ctrl+k", "chat.settings": "f12", "chat.quit": "f9"}
    keymap["settings.leave"], keymap["help.close"] = "f10", "x"
    async with make_app(FakeModel(["x"]), keymap=keymap).run_test(size=(100, 90)) as pilot:
        app = await ready(pilot)
        await until(pilot, lambda: "^k Help" in shown(app))
        await pilot.press("f1", "f6")
        assert len(app.screen_stack) == 1
        await pilot.press("ctrl+k")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await until(pilot, lambda: "F12" in shown(app) and "x closes" in shown(app))
        await pilot.press("right")
        await until(pilot, lambda: "Ctrl+K" in shown(app))
        await pilot.press("escape")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("x", "f12")
        await until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        await until(pilot, lambda: "f10 Leave as it was" in shown(app))
        await pilot.press("escape")
        assert isinstance(app.screen, SettingsScreen)
        await pilot.press("f10", "ctrl+c")
        await until(pilot, lambda: "F9 leaves" in status(app))
        await until(pilot, lambda: "Ctrl+K explains keys" in shown(app))


async def test_a_home_of_nobody_is_a_folder_that_is_not_there() -> None:
    async with make_app(FakeModel(["fine"]), library=FakeLibrary).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "/model ~nobody-of-that-name/a")
        await until(
            pilot, lambda: any("there is no such directory" in text for text in texts(app, Notice))
        )
        await say(pilot, "/convert ~nobody-of-that-name/a")
        await until(pilot, lambda: isinstance(app.screen, ConvertScreen))


def put_model(directory: Path) -> Path:
    """What looks like a converted model."""
    directory.mkdir(parents=True)
    (directory / "manifest.json").touch()
    return directory


async def test_a_model_is_named_and_its_name_is_completed(tmp_path: Path) -> None:
    big = put_model(tmp_path / "big.flash")
    names = ModelNames((tmp_path,))
    async with make_app(FakeModel(["fine"]), names=names).run_test() as pilot:
        app = await ready(pilot)
        app.chat.prompt.load_text("/model ")
        await until(pilot, lambda: suggestions(app) == ["demo", "demo-moe", "big"])
        put_model(tmp_path / "brown")  # is there the next time
        app.chat.prompt.load_text("/model bi")
        await until(pilot, lambda: suggestions(app) == ["big"])
        await pilot.press("tab")
        assert app.chat.prompt.text == "/model big"
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.choice == ModelChoice(big))
        await ready(pilot)
        await say(pilot, "/model demo")
        await until(pilot, lambda: app.chat.choice == ModelChoice(None))
        assert app.chat.choice.name == "demo"
        await ready(pilot)
        await say(pilot, "/model bg")
        await until(pilot, lambda: any("did you mean big?" in text for text in texts(app, Notice)))
        assert app.chat.choice == ModelChoice(None)
        await say(pilot, "/model demo-moe")
        await until(pilot, lambda: app.chat.choice == ModelChoice(None, "", "demo-moe"))
