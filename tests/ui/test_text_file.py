"""`/file`: a text file in the next message, and what is no text file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flashllm.errors import UsageError
from flashllm.ui.prompt import text_file
from flashllm.ui.prompt.text_file import read_text_file
from flashllm.ui.transcript.turn import Notice, Question
from tests.support.chat_pilot import make_app, ready, say, sent_last, texts
from tests.support.fake_engine import FakeModel
from tests.support.screens import until


def test_a_text_is_read_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a b.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo \x1b[31mred\x1b[0m\r")
    expected = ("a b.txt", "a b.txt:\n```\none\ntwo red\n```\n")
    for typed in (f"{tmp_path}/a b.txt", "~/a b.txt", "'~/a b.txt'", '  "~/a b.txt" '):
        assert read_text_file(typed) == expected


def test_a_fence_is_longer_than_those_in_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("```\ncode\n```")
    assert read_text_file(str(tmp_path / "a.md"))[1] == "a.md:\n````\n```\ncode\n```\n````\n"


def test_what_is_no_text_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "BYTES_MAX", 1 << 10)
    (tmp_path / "large").write_bytes(b"x" * 1025)
    (tmp_path / "binary").write_bytes(b"ab\0c")
    (tmp_path / "latin").write_bytes("Stra\u00dfe".encode("latin-1"))
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        ("large", "has 1.0 KiB, and at most 1.0 KiB go into a message"),
        ("binary", "is a binary file (byte 2 is zero)"),
        ("latin", r"is no text in UTF-8 (byte 4); convert it"),
        ("pipe", "is no regular file"),
        ("", "is a directory; name a file in it"),
        ("gone", "No such file or directory"),
        ("a\0b", "that is no name of a file"),
    ):
        with pytest.raises(UsageError) as caught:
            read_text_file(f"{tmp_path}/{name}")
        assert words in str(caught.value)
        assert str(caught.value).startswith("/file: ")
    (tmp_path / "most").write_bytes(b"x" * 1024)
    assert read_text_file(str(tmp_path / "most"))[0] == "most"


async def test_it_stands_behind_a_few_words_and_is_sent_whole(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the sea is large\n")
    (tmp_path / "more.txt").write_text("the lake is small\n")
    model = FakeModel(["fine"])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        prompt = app.chat.prompt
        await say(pilot, f"/file {tmp_path}/notes.txt")
        await until(pilot, lambda: prompt.text == "[notes.txt: 36 characters]")
        await pilot.press("ctrl+j", *"Which", "ctrl+j")
        prompt.insert(f"/file {tmp_path}/more.txt")  # below a message too
        await pilot.press("enter")
        words = "[notes.txt: 36 characters]\nWhich\n[more.txt: 36 characters]"
        await until(pilot, lambda: prompt.text == words)
        await pilot.press("backspace", "enter")  # the words go as one
        await until(pilot, lambda: model.requests != [])
        await ready(pilot)
        assert sent_last(model) == "notes.txt:\n```\nthe sea is large\n```\n\nWhich"
        assert texts(app, Question) == [sent_last(model)]


async def test_the_same_name_twice_stays_two_texts(tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text(f"in {folder}")
    async with make_app(FakeModel(["fine"])).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, f"/file {tmp_path}/a/x.txt")
        await until(pilot, lambda: app.chat.prompt.text == "[x.txt: 20 characters]")
        await pilot.press("ctrl+j")
        app.chat.prompt.insert(f"/file {tmp_path}/b/x.txt")
        await pilot.press("enter")
        await until(pilot, lambda: "[x.txt: 20 characters, 2]" in app.chat.prompt.text)
        whole = app.chat.prompt.whole_text
        assert whole.index("in a") < whole.index("in b")


async def test_what_cannot_be_read_stays_in_the_prompt(tmp_path: Path) -> None:
    async with make_app(FakeModel(["fine"])).run_test() as pilot:
        app = await ready(pilot)
        for line in (f"/file {tmp_path}/gone", f"Compare this:\n/file {tmp_path}/gone"):
            await say(pilot, line)
            await until(pilot, lambda: "No such file" in "".join(texts(app, Notice)))
            await until(pilot, lambda line=line: app.chat.prompt.text == line)
            await say(pilot, "/clear")
            await until(pilot, lambda: texts(app, Notice) == [])


async def test_a_file_that_waits_is_sent_whole(tmp_path: Path) -> None:
    import threading

    (tmp_path / "notes.txt").write_text("the sea")
    gate = threading.Event()
    model = FakeModel(["a", gate], ["b"])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "first")
        await until(pilot, lambda: app.chat.activity.is_answering)
        await say(pilot, f"/file {tmp_path}/notes.txt")
        await until(pilot, lambda: "notes.txt" in app.chat.prompt.text)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.chat.waiting.drafts) == 1)
        gate.set()
        await until(pilot, lambda: len(model.requests) == 2)
        assert "the sea" in sent_last(model)
        await ready(pilot)
