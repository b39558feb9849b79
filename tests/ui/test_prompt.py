"""The field in which a message is written: history, long pastes, the user's editor."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.screen import Screen

from flashllm.errors import UsageError
from flashllm.library.conversion_job import Conversions
from flashllm.telemetry.token_report import answer_numbers
from flashllm.ui.prompt.external_editor import edited, editor_command
from flashllm.ui.prompt.history import InputHistory
from flashllm.ui.screens.convert import ConvertScreen
from flashllm.ui.screens.models import ModelPicker
from flashllm.ui.screens.token_details import TokenView
from flashllm.ui.transcript.turn import Notice, Question
from tests.support.chat_pilot import (
    ask,
    make_app,
    ready,
    screen_text,
    sent_last,
    status,
    texts,
)
from tests.support.costs import RATES, FakeToken, cost, plan
from tests.support.fake_engine import FakeModel
from tests.support.fake_library import DEMO, FakeLibrary, scripted_job
from tests.support.screens import until


async def test_what_was_sent_comes_back_also_in_the_next_chat(tmp_path: Path) -> None:
    file = tmp_path / "of the user" / "history.jsonl"
    async with make_app(FakeModel(["x"]), history=file).run_test() as pilot:
        await ask(pilot, "first")
        await ask(pilot, "second\nof two lines")
    assert file.stat().st_mode & 0o077 == 0
    async with make_app(FakeModel(["x"]), history=file).run_test() as pilot:
        app = await ready(pilot)
        app.chat.prompt.put_text("a draft")
        await pilot.press("up")
        assert app.chat.prompt.text == "second\nof two lines"
        await pilot.press("up")
        assert app.chat.prompt.text == "second\nof two lines"  # a line up, no more
        await pilot.press("up")
        assert app.chat.prompt.text == "first"
        await pilot.press("up")
        assert app.chat.prompt.text == "first"
        await pilot.press("down", "down", "down")
        assert app.chat.prompt.text == "a draft"


def test_a_history_keeps_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashllm.ui.prompt.history.ENTRIES_MAX", 3)
    inputs = InputHistory()
    for number in range(9):
        inputs.add(f"question {number}")
    found = [inputs.earlier("") for _ in range(4)]
    assert found == ["question 8", "question 7", "question 6", None]


def test_a_history_takes_so_much_memory_and_keeps_the_last_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flashllm.ui.prompt.history.MEMORY_BYTES_MAX", 2 * sys.getsizeof("12345"))
    inputs = InputHistory(tmp_path / "history.jsonl")
    for text in ("oldest", "12345", "67890"):
        inputs.add(text)
    assert [inputs.earlier("") for _ in range(3)] == ["67890", "12345", None]
    again = InputHistory(tmp_path / "history.jsonl")
    assert [again.earlier("") for _ in range(3)] == ["67890", "12345", None]
    inputs.add("longer than all that may be kept")
    assert [inputs.earlier("") for _ in range(2)] == ["longer than all that may be kept", None]


def test_a_history_that_cannot_be_kept_is_no_loss(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = InputHistory(tmp_path / "file" / "history.jsonl")
    history.add("one")
    assert history.earlier("") == "one"


def test_lines_that_are_not_ours_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_bytes(b'"one"\n{"no": 1}\nnot json\n\xff\xfe\n"two"\n"cut of')
    history = InputHistory(file)
    assert [history.earlier("draft"), history.earlier("")] == ["two", "one"]
    assert history.earlier("") is None
    assert [history.later(), history.later(), history.later()] == ["two", "draft", None]


async def test_a_megabyte_is_pasted_behind_a_few_words_and_sent_whole() -> None:
    text = "line of text \x1b[31m\n" * 60_000
    model = FakeModel(["x"], context=10**6)
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press(*"see ")
        app.chat.prompt.post_message(events.Paste(text))
        await until(pilot, lambda: "[text 1: 840,000 characters]" in app.chat.prompt.text)
        await pilot.press(*"end")
        assert app.chat.prompt.text == "see [text 1: 840,000 characters]end"
        await pilot.press("enter")
        await until(pilot, lambda: model.requests != [])
        await ready(pilot)
        assert sent_last(model) == "see " + text.replace("\x1b[31m", "") + "end"
        assert len(texts(app, Question)[0]) < 5000
        assert "characters more" in screen_text(app)
        await pilot.press("up")
        assert app.chat.prompt.text == "[text 1: 840,007 characters]"


@pytest.mark.parametrize(("opens", "closes"), [("f1", "escape"), ("f1", "q")])
async def test_what_comes_right_behind_a_closing_key_is_for_the_prompt(
    opens: str, closes: str
) -> None:
    """Nothing is typed on that page."""
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press(opens)
        await until(pilot, lambda: app.screen is not app.chat)
        app.post_message(events.Key(closes, None))
        app.post_message(events.Paste("an ocean"))
        app.post_message(events.Key("s", "s"))
        await until(pilot, lambda: app.chat.prompt.text == "an oceans")


@pytest.mark.parametrize(
    "page",
    [
        lambda: ModelPicker(FakeLibrary(), DEMO.choice),
        lambda: ConvertScreen(Conversions(scripted_job("")), FakeLibrary()),
        lambda: TokenView(answer_numbers([FakeToken("an", cost())], RATES, plan(), {0: 1})),
    ],
)
async def test_what_comes_right_behind_esc_on_a_page_is_for_the_prompt(
    page: Callable[[], Screen[Any]],
) -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        opened = page()
        await app.push_screen(opened)
        await until(pilot, lambda: app.screen is opened and opened.is_running)
        app.post_message(events.Key("escape", None))
        app.post_message(events.Paste("an ocean"))
        await until(pilot, lambda: app.chat.prompt.text == "an ocean")


async def test_words_for_what_is_held_back_go_as_one() -> None:
    text = "word " * 3000
    words = "[text 1: 15,000 characters]"
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        prompt = app.chat.prompt
        await pilot.press(*"see ")
        prompt.post_message(events.Paste(text))
        await until(pilot, lambda: prompt.text == f"see {words}")
        await pilot.press("left", "left", "a")  # amid them
        assert prompt.text == f"see {words}a"
        assert prompt.whole_text == f"see {text}a"
        await pilot.press("b")
        assert prompt.text == f"see {words}ab"
        await pilot.press("left", "left", "backspace")
        assert prompt.text == "see ab"
        await pilot.press("ctrl+z")
        assert prompt.whole_text == f"see {text}ab"
        prompt.move_cursor((0, 2))
        await pilot.press("shift+end", *["shift+left"] * 4, "delete")
        assert prompt.text == "seab"


async def test_the_editor_gets_the_text_and_gives_it_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    editor = tmp_path / "my editor"
    editor.write_text('#!/bin/sh\nprintf " and\\033[2J more" >> "$2"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", f"'{editor}' --flag")

    @contextlib.contextmanager
    def suspended() -> Iterator[None]:
        yield

    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        monkeypatch.setattr(app, "suspend", suspended)
        await pilot.press(*"text", "ctrl+g")
        assert app.chat.prompt.text == "text and more"
        monkeypatch.setenv("VISUAL", "/nonexistent/editor")
        await pilot.press("ctrl+g")
        assert any("set $EDITOR" in text for text in texts(app, Notice))
        assert app.chat.prompt.text == "text and more"


async def test_where_the_terminal_cannot_be_lent_that_is_said() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("ctrl+g")
        assert "cannot be given to an editor" in status(app)


def test_an_editor_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="ended with code 1"):
        edited("text", "false")
    with pytest.raises(UsageError, match="cannot be run: embedded null"):
        edited("text", "v\0i")
    monkeypatch.setenv("EDITOR", "nano -w")
    monkeypatch.delenv("VISUAL", raising=False)
    assert editor_command() == ["nano", "-w"]
    assert editor_command("code --wait") == ["code", "--wait"]
    with pytest.raises(UsageError, match="cannot be run"):
        editor_command("'unclosed")


def test_a_full_disk_is_said_before_the_editor_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(descriptor: int, *_: object, **__: object) -> Full:
        os.close(descriptor)
        return Full()

    with monkeypatch.context() as patch:
        patch.setattr("os.fdopen", full)
        with pytest.raises(UsageError, match=r"No space left on device; set \$TMPDIR"):
            edited("text", "true")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="No such file or directory"):
        edited("text", "true")


def test_an_interrupt_is_for_the_editor_alone() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        editor = "sh -c 'kill -INT $PPID; sleep 0.1; printf more >> \"$0\"'"
        assert edited("text ", editor) == "text more"
        assert heard == []
        signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
