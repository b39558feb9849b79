"""Every key and every slash command does something: a table says which scenario shows what.

A scenario presses keys in states where they act, and asserts what can be seen of it. What was
pressed is noted as it happens, by the binding that took the key, so the table cannot claim more.
A binding or a command that no scenario names fails `test_nothing_is_left_out`.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from textual.binding import Binding
from textual.command import CommandPalette
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, OptionList, RichLog, Static, TextArea

import flashllm.ui
from flashllm.conversations.store import SessionStore
from flashllm.engine.sampling import Sampling
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.options import ReasoningOptions
from flashllm.settings.resolve import ChatSettings
from flashllm.ui.chat.status import Phase
from flashllm.ui.commands.table import COMMANDS, SlashCommand
from flashllm.ui.screens.confirm import ConfirmScreen
from flashllm.ui.screens.convert import ConvertScreen
from flashllm.ui.screens.help import HelpScreen
from flashllm.ui.screens.log import LogScreen
from flashllm.ui.screens.models import ModelPicker
from flashllm.ui.screens.sessions import SessionsScreen
from flashllm.ui.screens.settings import SettingsScreen
from flashllm.ui.screens.token_details import TokenView
from flashllm.ui.transcript.invitation import SuggestedQuestion
from flashllm.ui.transcript.turn import Notice, Question
from tests.support.chat_pilot import (
    CountingApp,
    answers,
    make_app,
    ready,
    say,
    status,
    texts,
    waiting,
)
from tests.support.costs import RATES
from tests.support.fake_engine import FakeModel
from tests.support.fake_library import FakeLibrary, scripted_job
from tests.support.screens import until

Scenario = Callable[[Path], Awaitable[set[str]]]


class Walk:
    """Presses keys and types commands, and keeps which bindings and commands took them."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self.pilot = pilot
        self.app = cast("CountingApp", pilot.app)
        self.done: set[str] = set()
        self._key = ""
        self._run_action = self.app.run_action
        self.app.run_action = self._note  # type: ignore[method-assign]

    async def _note(
        self, action: Any, default_namespace: DOMNode | None = None, namespaces: Any = None
    ) -> bool:
        # An action that is not possible now leaves the key to the next binding around it.
        done = await self._run_action(action, default_namespace, namespaces)
        if done and self._key and default_namespace is not None:
            owner = default_namespace._bindings
            for binding in owner.key_to_bindings.get(self._key, ()):
                if binding.action == action:
                    self.done.add(_name(type(default_namespace), binding))
        return done

    async def press(self, *keys: str) -> None:
        for self._key in keys:
            await self.pilot.press(self._key)
        self._key = ""

    async def say(self, line: str) -> None:
        """A command, or a question of which nothing is waited for."""
        self.done.add(line.split()[0])
        await say(self.pilot, line)

    async def ask(self, text: str) -> None:
        """A question, until it is answered."""
        count = len(answers(self.app))
        await say(self.pilot, text)
        await self.until(lambda: len(answers(self.app)) > count)
        await ready(self.pilot)

    async def answer(self, *shown: str) -> None:
        """Waits for answers that are complete."""
        await self.until(lambda: answers(self.app) == list(shown))
        await ready(self.pilot)

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(self.pilot, condition)

    async def opens(self, kind: type[Any]) -> None:
        await self.until(lambda: isinstance(self.app.screen, kind))

    async def closes(self) -> None:
        await self.until(lambda: len(self.app.screen_stack) == 1)

    async def hints(self, words: str) -> None:
        await self.until(lambda: words in status(self.app))

    async def tells(self, words: str) -> None:
        await self.until(lambda: any(words in text for text in texts(self.app, Notice)))


@asynccontextmanager
async def chat(model: FakeModel, **options: Any) -> AsyncIterator[Walk]:
    async with make_app(model, **options).run_test(size=(80, 16)) as pilot:
        await ready(pilot)
        yield Walk(pilot)


async def stopped_and_answered_again(_: Path) -> set[str]:
    never = threading.Event()
    model = FakeModel(
        ["one", never], [" two", never], [" three", never], ["four"], ["five"], ["six"]
    )
    async with chat(model, sampling=Sampling(0.7)) as walk:
        app = walk.app
        app.chat.prompt.load_text("go")
        await walk.press("enter")
        await walk.until(lambda: answers(app) == ["one"])
        await walk.press("escape")
        await walk.answer("one")
        await walk.press("tab")
        assert app.chat.shown.transcript.selected == 2
        await walk.press("enter")
        await walk.until(lambda: answers(app) == ["one two"])
        await walk.press("ctrl+c")
        await walk.answer("one two")
        await walk.press("escape")
        assert app.focused is app.chat.prompt
        await walk.say("/continue")
        await walk.until(lambda: answers(app) == ["one two three"])
        await walk.say("/stop")
        await walk.answer("one two three")
        await walk.press("shift+tab", "r")
        await walk.answer("four")
        await walk.press("left")
        await walk.answer("one two three")
        await walk.press("right")
        await walk.answer("four")
        await walk.press("tab")
        assert app.focused is app.chat.prompt
        await walk.say("/regenerate")
        await walk.answer("five")
        await walk.say("/branch prev")
        await walk.answer("four")
        await walk.say("/branch next")
        await walk.answer("five")
        await walk.say("/retry")
        await walk.answer("six")
        return walk.done


async def in_the_prompt(tmp_path: Path) -> set[str]:
    settings = ChatSettings(editor="sh -c 'printf edited > \"$0\"'")
    async with chat(FakeModel(["a line\n\n"] * 30, ["two"]), settings=settings) as walk:
        app = walk.app
        await walk.ask("first")
        await walk.ask("second")
        for key, text in (("up", "second"), ("up", "first"), ("down", "second")):
            await walk.press(key)
            assert app.chat.prompt.text == text
        for key, text in (("ctrl+j", "second\n"), ("shift+enter", "second\n\n")):
            await walk.press(key)
            assert app.chat.prompt.text == text
        bottom = app.chat.shown.transcript.scroll_y
        await walk.press("pageup")
        await walk.until(lambda: app.chat.shown.transcript.scroll_y < bottom)
        await walk.until(lambda: not app.chat.shown.transcript.is_scrolling)
        top = app.chat.shown.transcript.scroll_y
        await walk.press("pagedown")
        await walk.until(lambda: app.chat.shown.transcript.scroll_y > top)
        app.suspend = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        await walk.press("ctrl+g")
        await walk.until(lambda: app.chat.prompt.text == "edited")
        app.chat.prompt.select_all()
        await walk.press("ctrl+c")
        assert app.clipboard == "edited"
        await walk.press("ctrl+n")
        await walk.until(lambda: texts(app, Question) == [])
        await walk.ask("third")
        await walk.say("/new")
        await walk.until(lambda: texts(app, Question) == [])
        await walk.say("/context")
        await walk.tells("context")
        await walk.say("/clear")
        await walk.until(lambda: texts(app, Notice) == [])
        await walk.say("/theme nord")
        await walk.until(lambda: app.theme == "nord")
        await walk.say("/set temp 0.7")
        await walk.until(lambda: app.chat.answer_settings.sampling == Sampling(0.7))
        await walk.say("/think on")
        await walk.say("/effort low")
        reasoning = ReasoningOptions("on", "low")
        await walk.until(lambda: app.chat.answer_settings.reasoning == reasoning)
        await walk.say("/system Be brief.")
        await walk.until(lambda: app.chat.conversation.system == "Be brief.")
        await walk.say("/show")
        await walk.tells("Be brief.")
        await walk.press("ctrl+z")
        await walk.hints("there is no shell to go to")
        return walk.done


async def with_a_message_selected(_: Path) -> set[str]:
    async with chat(FakeModel(["```\na = 1\n```\n\n```\nb = 2\n```"], ["two"])) as walk:
        app, transcript = walk.app, walk.app.chat.shown.transcript
        await walk.ask("first")
        await walk.ask("second")
        for key, turn in (("tab", 4), ("up", 3), ("k", 2), ("down", 3), ("j", 4)):
            await walk.press(key)
            assert transcript.selected == turn, key
        await walk.press("c")
        assert app.clipboard == "two"
        await walk.press("up", "up", "b")
        assert app.clipboard == "a = 1\n"
        await walk.press("e")
        assert app.chat.prompt.text == "first"
        await walk.press("escape")
        assert app.chat.prompt.editing is None
        await walk.press("shift+tab", "d")
        question = app.screen
        assert isinstance(question, ConfirmScreen)
        before = question.focused
        await walk.press("left")
        assert question.focused is not before
        await walk.press("right")
        assert question.focused is before
        for key in ("n", "escape"):
            await walk.press(key)
            await walk.closes()
            assert len(app.chat.conversation.turns) == 4
            await walk.press("d")
        await walk.press("escape", "shift+tab")
        assert app.focused is app.chat.prompt
        await walk.say("/copy 2")
        await walk.until(lambda: app.clipboard.startswith("```"))
        await walk.say("/branch next")
        await walk.hints("one version only")
        await walk.say("/edit 2")
        await walk.until(lambda: app.chat.prompt.text == "first")
        await walk.press("escape", "tab", "d", "y", "escape")
        await walk.until(lambda: len(app.chat.conversation.turns) == 3)
        await walk.say("/code 2")
        await walk.until(lambda: app.clipboard == "b = 2\n")
        assert app.chat.shown.transcript.selected is None
        await walk.say("/delete 3")
        await walk.opens(ConfirmScreen)
        await walk.press("y")
        await walk.until(lambda: app.chat.conversation.turns == {})
        return walk.done


async def an_empty_conversation(_: Path) -> set[str]:
    async with chat(FakeModel(["fine"])) as walk:
        app = walk.app
        for number, key in enumerate(("1", "2", "3", "enter")):
            questions = list(app.query(SuggestedQuestion))
            await walk.press("tab")
            assert app.focused is questions[0]
            for move, place in (("down", 1), ("up", 0)):
                await walk.press(move)
                assert app.focused is questions[place]
            for leave in ("escape", "tab", "shift+tab"):
                await walk.press(leave)
                assert app.focused is app.chat.prompt
                await walk.press("tab")
            asked = questions[number % 3].question
            await walk.press(key)
            await walk.until(lambda asked=asked: texts(app, Question) == [asked])
            await ready(walk.pilot)
            await walk.press("ctrl+n")
            await walk.until(lambda: len(app.query(SuggestedQuestion)) == 3)
        return walk.done


async def what_is_sent_besides(tmp_path: Path) -> set[str]:
    gate = threading.Event()
    (tmp_path / "notes.txt").write_text("the sea")
    async with chat(FakeModel(["one", gate], ["two"], ["a summary"])) as walk:
        app = walk.app
        await say(walk.pilot, "first")
        await walk.until(lambda: answers(app) == ["one"])
        for text in ("second", "third"):
            await say(walk.pilot, text)
            await walk.until(lambda text=text: waiting(app)[-1:] == [text])
        await walk.press("ctrl+t")
        await walk.until(lambda: waiting(app) == ["second"])
        await walk.say("/queue edit")
        await walk.until(lambda: app.chat.prompt.text == "second")
        gate.set()
        await ready(walk.pilot)
        await walk.press("enter")
        await walk.answer("one", "two")
        await walk.say("/compact")
        await walk.tells("summed up here")
        await ready(walk.pilot)
        await walk.say(f"/file {tmp_path}/notes.txt")
        await walk.until(lambda: "notes.txt" in app.chat.prompt.text)
        return walk.done


async def panels_and_pages(tmp_path: Path) -> set[str]:
    log_file = tmp_path / "log"
    log_file.write_text("a line\n" * 99)
    model = FakeModel(["one", " two", " three"])
    model.device_rates = RATES
    async with chat(model, log_file=log_file) as walk:
        app = walk.app
        await walk.ask("go")
        for begin in ("f8", "/measure"):
            app.chat.show_hint("")
            await (walk.say if begin[0] == "/" else walk.press)(begin)
            await walk.hints("already known better")
        for panel, key, line in (
            (app.chat.panels.io, "f2", "/io"),
            (app.chat.panels.map, "f3", "/map"),
        ):
            await walk.press(key)
            assert panel.display
            await walk.say(line)
            await walk.until(lambda panel=panel: not panel.display)
        transcript = app.chat.shown.transcript
        for shows in (True, False):
            await walk.say("/thoughts")
            await walk.until(lambda shows=shows: transcript.shows_reasoning is shows)
        for begin, key in (("f1", "q"), ("/help", "f1"), ("/?", "enter"), ("f1", "escape")):
            await (walk.say if begin[0] == "/" else walk.press)(begin)
            await walk.opens(HelpScreen)
            for turn, page in (("right", 1), ("tab", 2), ("left", 1), ("shift+tab", 0)):
                await walk.press(turn)
                assert cast("HelpScreen", app.screen)._place == page
            await walk.press(key)
            await walk.closes()
        for key in ("q", "escape"):
            await walk.say("/log")
            await walk.opens(LogScreen)
            log = app.screen.query_one(RichLog)
            await walk.until(lambda log=log: log.max_scroll_y > 0)
            await walk.press("home")
            await walk.until(lambda log=log: log.scroll_y == 0)
            await walk.press("end")
            await walk.until(lambda log=log: log.scroll_y > 0)
            await walk.press(key)
            await walk.closes()
        await walk.press("ctrl+p")
        await walk.opens(CommandPalette)
        await walk.press("escape")
        await walk.closes()
        for keys, close in ((("tab", "t"), "t"), (("t",), "q"), ((), "escape")):
            await (walk.press(*keys) if keys else walk.say("/tokens"))
            await walk.opens(TokenView)
            if close == "t":
                view = cast("TokenView", app.screen)
                places = [("home", 0), ("l", 1), ("right", 2), ("h", 1), ("left", 0), ("end", 2)]
                for key, place in places:
                    await walk.press(key)
                    assert view.place == place, key
            await walk.press(close)
            await walk.closes()
            if close == "q":
                app.chat.action_focus_prompt()
        return walk.done


async def settings_page(_: Path) -> set[str]:
    async with chat(FakeModel(["one"])) as walk:
        app = walk.app
        for begin in ("/settings", "/system", "f6"):
            await (walk.say if begin[0] == "/" else walk.press)(begin)
            await walk.opens(SettingsScreen)
            await walk.until(lambda: app.screen.focused is not None)
            app.screen.query_one(TextArea).text = "Hi"
            await walk.press("tab")
            app.screen.query_one(Input).value = "0.5"
            if begin != "f6":
                await walk.press("escape")
                await walk.closes()
                assert app.chat.conversation.system == ""
                assert app.chat.answer_settings.sampling == Sampling()
        assert isinstance(app.screen, SettingsScreen)
        names = [app.screen.setting.name]
        for key in ("tab", "down", "shift+tab", "up"):
            await walk.press(key)
            names.append(app.screen.setting.name)
        assert names == ["temp", "top_k", "top_p", "top_k", "temp"]
        await walk.press("ctrl+s")
        await walk.closes()
        assert app.chat.conversation.system == "Hi"
        assert app.chat.answer_settings.sampling == Sampling(0.5)
        return walk.done


async def conversations(tmp_path: Path) -> set[str]:
    async with chat(FakeModel(["fine"]), store=tmp_path / "s.db") as walk:
        app = walk.app
        await walk.ask("a river")
        await walk.say("/rename Long rivers")
        await walk.hints("is called “Long rivers” now")
        for kind in ("md", "json"):
            file = tmp_path / f"a b.{kind}"
            await walk.say(f"/export {kind} '{file}'")
            await walk.tells(f"Written: {file}")
            assert "a river" in file.read_text()
        await walk.say(f"/import '{file}'")
        await walk.until(lambda: app.chat.session_id == 2)
        assert texts(app, Question) == ["a river"]
        await walk.say("/session 1")
        await walk.until(lambda: app.chat.session_id == 1)
        await walk.say("/rename By the sea")
        await walk.hints("is called “By the sea” now")
        await walk.say("/session long rivers")
        await walk.until(lambda: app.chat.session_id == 2)
        await walk.say("/session nothing")
        await walk.tells("there is no conversation")
        with SessionStore(tmp_path / "s.db") as store:
            for number in range(12):
                store.create(name=f"number {number}")
        await walk.say("/sessions")
        await _sessions_screen(walk, tmp_path)
        return walk.done


async def _sessions_screen(walk: Walk, tmp_path: Path) -> None:
    app = walk.app

    async def listed(count: int) -> OptionList:
        await walk.opens(SessionsScreen)
        options = app.screen.query_one(OptionList)
        await walk.until(lambda: options.option_count == count)
        return options

    def typed() -> Input:
        return app.screen.query_one(Input)

    async def says(words: str) -> None:
        said = app.screen.query_one("#said", Static)
        await walk.until(lambda: words in str(said.content))

    options = await listed(14)
    options.highlighted = 0
    for key, row in (("down", 1), ("pagedown", 9), ("up", 8), ("pageup", 0)):
        await walk.press(key)
        assert options.highlighted == row, key
    await walk.press("ctrl+r")
    typed().value = "another name"
    await walk.press("enter")
    await says("It is called “another name” now.")
    await walk.press("ctrl+e")
    typed().value = str(tmp_path / "b.json")
    await walk.press("enter")
    await walk.until((tmp_path / "b.json").exists)
    await says("Written")
    await walk.press("ctrl+o")
    typed().value = str(tmp_path / "a b.json")
    await walk.press("enter")
    await listed(15)
    await walk.press("ctrl+d", "enter")
    await listed(14)
    await walk.press("ctrl+n")
    await walk.until(lambda: len(app.screen_stack) == 1 and texts(app, Question) == [])
    await walk.press("f4")
    await listed(14)
    await walk.press("escape")
    await walk.closes()


async def models_and_conversions(tmp_path: Path) -> set[str]:
    library = FakeLibrary()
    script = "phase(5); time.sleep(60) if destination.name == 'slow' else make()"
    async with chat(FakeModel(["one"]), library=lambda: library) as walk:
        app = walk.app
        app.chat.conversions._make = scripted_job(script)
        await walk.press("f5")
        await _picker(walk, library)
        await walk.press("c")
        await _convert_screen(walk, tmp_path)
        await walk.until(lambda: app.chat.choice.path == tmp_path / "made")
        await walk.closes()
        await ready(walk.pilot)
        await walk.say("/convert /some/where")
        await walk.opens(ConvertScreen)
        await walk.press("escape")
        await walk.closes()
        await walk.say("/models")
        await walk.opens(ModelPicker)
        await walk.until(lambda: app.screen.query_one(DataTable).row_count == 4)
        await walk.press("down", "enter")
        await walk.until(lambda: app.chat.choice == library.models[1].choice)
        await ready(walk.pilot)
        await walk.say(f"/model {tmp_path}")
        await walk.until(lambda: app.chat.choice.path == tmp_path)
        await ready(walk.pilot)
        return walk.done


async def _picker(walk: Walk, library: FakeLibrary) -> None:
    await walk.opens(ModelPicker)
    table = walk.app.screen.query_one(DataTable)
    await walk.until(lambda: table.row_count == 4)
    await walk.press("slash")
    assert isinstance(walk.app.screen.focused, Input)
    walk.app.screen.focused.value = "org"
    await walk.until(lambda: table.row_count == 2)
    for key, row in (("down", 1), ("up", 0)):
        await walk.press(key)
        assert table.cursor_row == row, key
    await walk.press("escape")
    await walk.until(lambda: table.row_count == 4)
    await walk.press("f5")
    await walk.until(lambda: library.searches == 2 and table.row_count == 4)


async def _convert_screen(walk: Walk, tmp_path: Path) -> None:
    app = walk.app
    await walk.opens(ConvertScreen)

    async def start(name: str) -> None:
        app.screen.query_one("#source", Input).value = "/some/where"
        app.screen.query_one("#destination", Input).value = str(tmp_path / name)
        await walk.press("ctrl+s")

    def possible(key: str) -> bool:
        return key in app.screen.active_bindings

    await start("slow")
    await walk.until(lambda: app.chat.conversions.is_running)
    await walk.until(lambda: possible("ctrl+x"))
    await walk.press("ctrl+x")
    await walk.until(lambda: not app.chat.conversions.is_running and possible("ctrl+b"))
    await walk.press("ctrl+b")
    await start("made")
    await walk.until(lambda: possible("ctrl+o"))
    await walk.press("ctrl+o")


async def a_closed_model(_: Path) -> set[str]:
    model = FakeModel(["fine"])
    failures = [MemoryCeilingTooSmall("too small", 1)] * 2
    app = make_app(model)

    def open_engine(_choice: object) -> Any:
        if failures:
            raise failures.pop()
        return model

    app.chat.engine._open_engine = open_engine
    async with app.run_test() as pilot:
        walk = Walk(pilot)
        await walk.until(lambda: app.chat.activity.phase is Phase.CLOSED)
        await walk.press("ctrl+r")
        await walk.until(lambda: not failures and app.chat.activity.phase is Phase.CLOSED)
        await walk.say("/retry")
        await ready(pilot)
        return walk.done


async def leaving(_: Path) -> set[str]:
    async with chat(FakeModel(["fine"])) as walk:
        left: list[str] = []
        for line in ("/exit", "/bye", "ctrl+q"):
            walk.app.exit = lambda line=line: left.append(line)  # type: ignore[method-assign,misc]
            await (walk.say if line[0] == "/" else walk.press)(line)
            await walk.until(lambda line=line: line in left)
        del walk.app.exit
        await walk.say("/quit")
        await walk.until(lambda: not walk.app.is_running)
        return walk.done


def _name(owner: type[Any], binding: Binding) -> str:
    """`chat.stop escape`; what has no id is called by its screen and what it does."""
    return f"{binding.id or f'{owner.__name__}.{binding.action}'} {binding.key}"


def _everything() -> Iterator[str]:
    """Names of all keys of all widgets of the chat, and of all commands."""
    for module in pkgutil.iter_modules(flashllm.ui.__path__):
        importlib.import_module(f"flashllm.ui.{module.name}")
    classes = list(DOMNode.__subclasses__())
    for owner in classes:
        classes += owner.__subclasses__()
        if owner.__module__.startswith("flashllm.ui.") and "BINDINGS" in vars(owner):
            for binding in Binding.make_bindings(owner.BINDINGS):
                yield _name(owner, binding)
    for command in COMMANDS:
        yield from (f"/{name}" for name in (command.name, *command.others))


EXERCISED: dict[Scenario, str] = {
    stopped_and_answered_again: """
        chat.send enter, chat.stop escape, chat.copy_or_stop ctrl+c, chat.continue enter,
        chat.focus_transcript tab, chat.focus_transcript shift+tab, chat.focus_prompt escape,
        chat.focus_prompt_tab tab, chat.regenerate r, chat.branch_previous left,
        chat.branch_next right, /continue, /stop, /regenerate, /branch
    """,
    in_the_prompt: """
        chat.history_earlier up, chat.history_later down, chat.break_line ctrl+j,
        chat.break_line shift+enter, chat.page_up pageup, chat.page_down pagedown,
        chat.editor ctrl+g, chat.copy_or_stop ctrl+c, chat.suspend ctrl+z,
        chat.new_conversation ctrl+n,
        /new, /context, /clear, /theme, /set, /think, /effort, /system, /show
    """,
    with_a_message_selected: """
        chat.select_earlier up, chat.select_earlier k, chat.select_later down,
        chat.select_later j, chat.copy c, chat.code b, chat.edit e, chat.stop escape,
        chat.delete d, chat.focus_prompt_tab shift+tab, confirm.other left,
        confirm.other right, confirm.no n,
        confirm.no escape, confirm.yes y,
        /copy, /code, /edit, /delete
    """,
    panels_and_pages: """
        chat.io_panel f2, chat.neuron_map f3, chat.help f1, chat.palette ctrl+p, chat.tokens t,
        chat.measure f8, /measure,
        help.close escape, help.close f1, help.close enter,
        help.close q, help.next right, help.next tab, help.previous left,
        help.previous shift+tab, log.close escape, log.close q, log.first home, log.last end,
        tokens.previous left, tokens.previous h, tokens.next right,
        tokens.next l, tokens.first home, tokens.last end,
        tokens.close escape, tokens.close t, tokens.close q,
        /io, /map, /thoughts, /help, /?, /tokens, /log
    """,
    what_is_sent_besides: "chat.drop_waiting ctrl+t, /queue, /compact, /file",
    an_empty_conversation: """
        invitation.ask enter, invitation.up up, invitation.down down,
        invitation.first 1, invitation.second 2, invitation.third 3, invitation.back escape,
        invitation.back tab, invitation.back shift+tab
    """,
    settings_page: """
        chat.settings f6, settings.next tab, settings.next down, settings.previous shift+tab,
        settings.previous up, settings.apply ctrl+s, settings.leave escape, /settings, /system
    """,
    conversations: """
        chat.sessions f4, sessions.up up, sessions.down down, sessions.page_up pageup,
        sessions.page_down pagedown, sessions.rename ctrl+r, sessions.export ctrl+e,
        sessions.import ctrl+o, sessions.delete ctrl+d, sessions.new ctrl+n,
        sessions.back escape, /rename, /export, /import, /session, /sessions
    """,
    models_and_conversions: """
        chat.models f5, picker.filter slash, picker.down down, picker.up up,
        picker.leave escape, picker.scan f5, picker.convert c, picker.open enter,
        convert.start ctrl+s, convert.stop ctrl+x, convert.again ctrl+b, convert.open ctrl+o,
        convert.leave escape, /convert, /models, /model
    """,
    a_closed_model: "chat.reopen ctrl+r, /retry",
    leaving: "chat.quit ctrl+q, /quit, /exit, /bye",
}


def _named(scenario: Scenario) -> set[str]:
    return {name.strip() for name in EXERCISED[scenario].split(",")}


def _left_out() -> list[str]:
    return sorted(set(_everything()).difference(*map(_named, EXERCISED)))


def test_nothing_is_left_out() -> None:
    assert _left_out() == [], "no scenario exercises these"
    unknown = set().union(*map(_named, EXERCISED)).difference(_everything())
    assert unknown == set(), "these are no keys and no commands any more"


@pytest.mark.parametrize("scenario", EXERCISED, ids=lambda scenario: scenario.__name__)
async def test_all_that_a_scenario_names_acts(scenario: Scenario, tmp_path: Path) -> None:
    done = await scenario(tmp_path)
    assert _named(scenario) - done == set(), "named, but not what took the key"


def test_what_nothing_exercises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [*HelpScreen.BINDINGS, Binding("f9,f10", "dismiss", "Close")]
    monkeypatch.setattr(HelpScreen, "BINDINGS", keys)
    commands = (*COMMANDS, SlashCommand("dance", "", "dances", "dance"))
    monkeypatch.setattr(f"{__name__}.COMMANDS", commands)
    assert _left_out() == ["/dance", "HelpScreen.dismiss f10", "HelpScreen.dismiss f9"]
