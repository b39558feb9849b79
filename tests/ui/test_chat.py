"""The chat over a scripted engine: what is sent, shown, stopped, kept."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import threading
from typing import Any, cast

import pytest
from textual import events
from textual.widget import Widget
from textual.widgets import Markdown

from flashllm.errors import MemoryCeilingTooSmall, ModelNotFound, ReadFailed, UsageError
from flashllm.library.models import ModelChoice, OpenRequest
from flashllm.ui.app import ChatApp
from flashllm.ui.chat.engine_thread import EngineThread
from flashllm.ui.chat.header import EngineHeader
from flashllm.ui.chat.screen import ChatScreen
from flashllm.ui.chat.status import Phase
from flashllm.ui.prompt.prompt import Prompt
from flashllm.ui.screens.help import HelpScreen
from flashllm.ui.transcript.answer import Answer
from flashllm.ui.transcript.transcript import Transcript
from flashllm.ui.transcript.turn import Notice, Question
from tests.support.chat_pilot import (
    answers,
    ask,
    make_app,
    notes,
    ready,
    say,
    screen_text,
    status,
    texts,
    waiting,
)
from tests.support.fake_engine import End, FakeGeneration, FakeModel, Prefill, fake_cost
from tests.support.screens import WAIT_SECONDS, until


async def test_the_speed_of_a_complete_answer_is_that_of_its_report() -> None:
    model = FakeModel(["one", " two", End(fake_cost(wall_ns=150_000_000))])
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "hello")
        assert "2 tok | 10.0 tok/s" in status(app)
        decode = next(turn for turn in app.chat.conversation.path() if turn.numbers).numbers[
            "decode"
        ]
        assert decode["tokens_per_second"] == pytest.approx(10.0)


async def test_a_question_is_sent_and_the_answer_streams() -> None:
    gate = threading.Event()
    model = FakeModel(["An ocean", gate, " is", " water."])
    async with make_app(model, max_tokens=9, system="Be brief.").run_test() as pilot:
        app = await ready(pilot)
        await pilot.press(*"ocean", "enter")
        await until(pilot, lambda: answers(app) == ["An ocean"])
        assert app.chat.activity.phase is Phase.WRITING
        assert "An ocean" in screen_text(app)
        gate.set()
        await ready(pilot)
        assert texts(app, Question) == ["ocean"]
        assert answers(app) == ["An ocean is water."]
        assert app.query_one(Answer).source == "An ocean is water."
        assert "An ocean is water." in screen_text(app)
        assert app.query_one(Prompt).text == ""
        assert status(app) == ("3 tok | 20.0 tok/s | 0.30 MB/tok | hit 91 % | RSS 310 of 512 MiB")
    assert model.requests[0]["max_tokens"] == 9
    sent = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "ocean"}]
    assert model.tokenizer is not None
    assert model.tokenizer.conversations == [sent]
    assert app.chat.engine.close(WAIT_SECONDS)
    assert model.closed


async def test_the_conversation_is_sent_with_the_next_question() -> None:
    model = FakeModel(["one"], ["two"])
    async with make_app(model).run_test() as pilot:
        await ask(pilot, "a")
        await ask(pilot, "b")
    assert model.tokenizer is not None
    assert [message["content"] for message in model.tokenizer.conversations[1]] == ["a", "one", "b"]


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_key_stops_the_answer_and_keeps_what_is_there(key: str) -> None:
    model = FakeModel(["begun", threading.Event(), " never"], ["fine"])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: answers(app) == ["begun"])
        await pilot.press(key)
        await ready(pilot)
        assert answers(app) == ["begun"]
        assert notes(app) == ["stopped; Enter here, or /continue, goes on"]
        assert [m["content"] for m in app.chat.conversation.messages()] == ["go", "begun"]
        await ask(pilot, "again")


async def test_the_cursor_rests_while_an_answer_is_written() -> None:
    read = threading.Event()
    model = FakeModel([Prefill(64, 128), read, "begun", threading.Event(), "never"])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        assert app.chat.prompt.cursor_blink
        await say(pilot, "go")
        await until(pilot, lambda: "64 of 128 tokens" in status(app))
        assert not app.chat.prompt.cursor_blink
        read.set()
        await until(pilot, lambda: answers(app) == ["begun"])
        assert not app.chat.prompt.cursor_blink
        await pilot.press("escape")
        await ready(pilot)
        assert app.chat.prompt.cursor_blink


async def test_stopping_before_the_first_token_gives_the_question_back() -> None:
    model = FakeModel([Prefill(64, 128), threading.Event(), "never"])
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "a long question")
        await until(pilot, lambda: "64 of 128 tokens" in status(app))
        await pilot.press("escape")
        await ready(pilot)
        assert app.query_one(Prompt).text == "a long question"
        assert app.chat.conversation.messages() == []
        assert list(app.query(Question)) == []


async def test_stopping_while_the_engine_has_not_begun_is_not_lost() -> None:
    gate = threading.Event()
    model = FakeModel(["never shown", threading.Event()])
    assert model.tokenizer is not None
    encode = model.tokenizer.encode_chat

    def slow_encode(messages: Any, *_: object) -> list[int]:
        gate.wait(WAIT_SECONDS)
        return encode(messages)

    model.tokenizer.encode_chat = slow_encode  # type: ignore[method-assign]
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: app.chat.activity.phase is Phase.READING)
        await pilot.press("escape")
        await until(pilot, lambda: "stopping" in status(app))  # a slow machine takes its time
        gate.set()
        await ready(pilot)
        assert answers(app) == []


async def test_an_error_is_shown_and_the_partial_answer_kept() -> None:
    model = FakeModel(["half an"], [ReadFailed("ffn.bundles: offset 4096: I/O error")], ["fine"])
    model._answers[0] = ["half an", ReadFailed("ffn.bundles: layer 3: I/O error")]
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "first")
        assert answers(app) == ["half an"]
        assert "ffn.bundles: layer 3: I/O error" in texts(app, Notice)
        assert app.query_one(Prompt).text == ""
        await ask(pilot, "second")
        assert "ffn.bundles: offset 4096: I/O error" in texts(app, Notice)
        assert app.query_one(Prompt).text == "second"
        assert texts(app, Question) == ["first"]
        await pilot.press("enter")
        await until(pilot, lambda: answers(app) == ["half an", "fine"])
        await ready(pilot)


async def test_an_unforeseen_error_leaves_the_application_usable() -> None:
    model = FakeModel([RuntimeError("bug")], ["fine"])
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "first")
        assert "unexpected: RuntimeError: bug" in texts(app, Notice)
        await ask(pilot, "second")
        assert answers(app) == ["fine"]


async def test_a_model_that_does_not_open_says_why_and_can_be_tried_again() -> None:
    attempts: list[object] = [
        MemoryCeilingTooSmall("10 MB is too small; the smallest is 212 MiB", 212 << 20),
        FakeModel(["yes"]),
    ]

    def open_engine(_request: OpenRequest) -> Any:
        attempt = attempts.pop(0)
        if isinstance(attempt, Exception):
            raise attempt
        return attempt

    app = ChatApp(ChatScreen(open_engine, choice=ModelChoice(name="big")))
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.chat.activity.phase is Phase.CLOSED)
        notice = texts(app, Notice)[-1]
        assert "big cannot be opened: 10 MB is too small; the smallest is 212 MiB" in notice
        await say(pilot, "typed early")
        assert app.query_one(Prompt).text == "typed early"
        assert "Ctrl+R tries again" in status(app)
        await pilot.press("ctrl+r")
        await ready(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: answers(app) == ["yes"])


async def test_what_is_typed_while_opening_stays() -> None:
    gate = threading.Event()

    def open_engine(_request: OpenRequest) -> Any:
        gate.wait(WAIT_SECONDS)
        return FakeModel(["yes"])

    app = ChatApp(ChatScreen(open_engine, choice=ModelChoice(name="slow")))
    async with app.run_test() as pilot:
        await until(pilot, lambda: "opening slow" in status(app))
        await say(pilot, "early")
        await until(pilot, lambda: waiting(app) == ["early"])
        assert app.query_one(Prompt).text == ""
        await pilot.press("escape")
        await until(pilot, lambda: waiting(app) == [])
        gate.set()
        await ready(pilot)
        assert app.query_one(Prompt).text == "early"
        assert texts(app, Question) == []


async def test_what_is_sent_while_opening_is_answered_then() -> None:
    gate = threading.Event()

    def open_engine(_request: OpenRequest) -> Any:
        gate.wait(WAIT_SECONDS)
        return FakeModel(["yes"])

    app = ChatApp(ChatScreen(open_engine, choice=ModelChoice(name="slow")))
    async with app.run_test() as pilot:
        await pilot.pause()
        await say(pilot, "early")
        await until(pilot, lambda: waiting(app) == ["early"])
        gate.set()
        await until(pilot, lambda: answers(app) == ["yes"])
        assert texts(app, Question) == ["early"]


async def test_a_model_without_a_tokenizer_is_refused() -> None:
    model = FakeModel(["x"])
    model.has_tokenizer = False
    async with make_app(model).run_test() as pilot:
        app = cast("ChatApp", pilot.app)
        await until(pilot, lambda: app.chat.activity.phase is Phase.CLOSED)
        assert "--ids" in texts(app, Notice)[-1]
        assert model.closed


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40), (20, 6)])
async def test_small_terminals(size: tuple[int, int]) -> None:
    model = FakeModel(["An ocean is a large body of water. "] * 8)
    async with make_app(model).run_test(size=size) as pilot:
        app = await ask(pilot, "What does ocean mean?")
        await pilot.pause()
        screen = screen_text(app)
        assert "8 tok" in screen
        assert "water." in screen
        assert app.query_one(Transcript).size.height >= 1
        assert app.query_one(Prompt).region.bottom <= size[1]


async def test_growing_text_leaves_room_for_the_transcript() -> None:
    async with make_app(FakeModel(["x"])).run_test(size=(40, 12)) as pilot:
        app = await ready(pilot)
        app.query_one(Prompt).load_text("line\n" * 50)
        await pilot.pause()
        assert app.query_one(Prompt).size.height <= 3
        assert app.query_one(Transcript).size.height >= 5


PAYLOADS = (
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x1b]8;;https://example.org\x1b\\",
    "\x9b31m",
    "\x1bPq#0\x1b\\",
    "\x1b_G\x1b\\",
    "\u202e",
)


def clean(screen: str) -> bool:
    return not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", screen)


@pytest.mark.parametrize("payload", PAYLOADS, ids=[repr(payload) for payload in PAYLOADS])
async def test_escape_sequences_do_not_reach_the_screen(payload: str) -> None:
    split = len(payload) // 2
    model = FakeModel([f"one {payload}two", f" three {payload[:split]}", f"{payload[split:]}four"])
    directory = f"/models/na{payload.replace('/', '')}me.flash"
    model.info = dataclasses.replace(model.info, directory=directory)
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, f"do {payload}this")
        assert answers(app) == ["one two three four"]
        assert app.query_one(Answer).source == "one two three four"
        assert texts(app, Question) == ["do this"]
        assert "name" in str(app.query_one(EngineHeader).render())
        assert clean(screen_text(app))


async def test_escape_sequences_in_errors_do_not_reach_the_screen() -> None:
    model = FakeModel([ReadFailed("a\x1b]0;title\x07b\x1b[2Jc")])
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "go")
        assert "abc" in texts(app, Notice)


async def test_pasted_escape_sequences_are_dropped() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        prompt = app.query_one(Prompt)
        prompt.post_message(events.Paste("one\x1b]0;t\x07 two\r\nthree\rfour"))
        await until(pilot, lambda: prompt.text != "")
        assert prompt.text == "one two\nthree\nfour"


async def test_markup_and_html_stay_text() -> None:
    text = "[bold]b[/bold] [@click=app.quit]q[/] <b>html</b> [/wrong]"
    model = FakeModel([text])
    async with make_app(model, choice=ModelChoice(name="[red]x[/red]")).run_test(
        size=(100, 30)
    ) as pilot:
        app = await ask(pilot, text)
        screen = screen_text(app)
        assert screen.count(text) == 2
        assert texts(app, Question) == [text]
        await pilot.click(Answer)
        assert app.is_running


async def test_links_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    model = FakeModel(["[a link](https://example.org/%1b]0;t%07?&#x202e;%c2%9b2J)"])
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "link?")
        monkeypatch.setattr(app, "open_url", lambda url, **_: opened.append(url))
        await pilot.pause()
        await pilot.click(Markdown, offset=(3, 0))
        await until(pilot, lambda: "not opened: https://example.org/?" in status(app))
        assert opened == []
        assert clean(screen_text(app))
        strips = app.screen._compositor.render_strips()
        assert not any(
            segment.style and segment.style.link for strip in strips for segment in strip
        )


async def test_what_a_cell_says_is_text_in_its_tooltip_too() -> None:
    model = FakeModel(["| [/b] a&#x202e;b |\n| --- |\n| [/red] c |\n"])
    async with make_app(model).run_test(tooltips=True) as pilot:
        app = await ask(pilot, "table")
        await until(pilot, lambda: bool(app.query(".header")) and bool(app.query(".cell")))
        for cell, words in ((".header", "[/b] ab"), (".cell", "[/red] c")):
            app.screen._handle_tooltip_timer(app.query(cell).first(Widget))
            await until(pilot, lambda words=words: screen_text(app).count(words) == 2)


async def test_line_ends_of_an_answer_are_kept_and_nothing_is_lost() -> None:
    lines = [f"line {number}" for number in range(40)]
    model = FakeModel([piece for line in lines for piece in (line, "\n")])
    async with make_app(model).run_test(size=(60, 60)) as pilot:
        app = await ask(pilot, "lines")
        await pilot.pause()
        shown = [line.strip() for line in screen_text(app).splitlines()]
        assert [line for line in shown if line.startswith("line ")] == lines


async def test_a_full_context_drops_the_oldest_messages_and_says_so() -> None:
    model = FakeModel(["w "] * 10, context=50)
    async with make_app(model, max_tokens=20).run_test() as pilot:
        for number in range(3):
            await ask(pilot, f"question {number}")
        app = await ask(pilot, "question 3")
        assert any("its first 4 messages are no longer sent" in t for t in texts(app, Notice))
        assert model.tokenizer is not None
        sent = model.tokenizer.conversations[-1]
        assert sent[0]["content"] == "question 2"
        assert sent[-1]["content"] == "question 3"
        # The next turn begins as this one did.
        await ask(pilot, "question 4")
        assert model.tokenizer.conversations[-1][: len(sent)] == sent
        assert model.requests[-1]["ids"][:17] == model.requests[-2]["ids"]


async def test_a_larger_context_is_sent_what_a_smaller_one_had_no_room_for() -> None:
    model = FakeModel(["w "] * 10, context=50)
    assert model.tokenizer is not None
    async with make_app(model, max_tokens=20).run_test() as pilot:
        for number in range(4):
            app = await ask(pilot, f"question {number}")
        for context, first, is_said in ((50, "question 2", False), (200, "question 0", True)):
            model.plan = dataclasses.replace(model.plan, context=context)
            app.chat.open_model(app.chat.choice)
            await ask(pilot, "and now")
            assert model.tokenizer.conversations[-1][0]["content"] == first
            assert any("is sent to the model again" in t for t in texts(app, Notice)) == is_said


async def test_a_message_beyond_the_context_is_refused_and_kept() -> None:
    model = FakeModel(["x"], context=50)
    async with make_app(model).run_test() as pilot:
        long_text = "word " * 60
        app = await ask(pilot, long_text)
        assert any("this message has 61 tokens" in text for text in texts(app, Notice))
        assert app.query_one(Prompt).text == long_text.strip()
        assert model.requests == []


async def test_the_end_by_length_is_told() -> None:
    async with make_app(FakeModel(["a", "b", "c"]), max_tokens=2).run_test() as pilot:
        app = await ask(pilot, "go")
        assert answers(app) == ["ab"]
        assert "stopped at the most tokens" in notes(app)[0]


async def test_a_second_question_waits_for_the_first_answer() -> None:
    gate = threading.Event()
    async with make_app(FakeModel(["a", gate])).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "one")
        await until(pilot, lambda: answers(app) == ["a"])
        await say(pilot, "two")
        await pilot.press("ctrl+n")
        assert app.query_one(Prompt).text == ""
        assert waiting(app) == ["two"]
        assert texts(app, Question) == ["one"]
        gate.set()
        await until(pilot, lambda: texts(app, Question) == ["one", "two"])
        await ready(pilot)


async def test_a_new_conversation_forgets_the_old_one() -> None:
    model = FakeModel(["one"], ["two"])
    async with make_app(model).run_test() as pilot:
        await ask(pilot, "a")
        await pilot.press("ctrl+n")
        app = await ask(pilot, "b")
        assert texts(app, Question) == ["b"]
        assert model.tokenizer is not None
        assert [m["content"] for m in model.tokenizer.conversations[1]] == ["b"]


async def test_keys_of_the_prompt() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c")
        assert app.query_one(Prompt).text == "a\nb\nc"
        await pilot.press("enter")
        await until(pilot, lambda: texts(app, Question) == ["a\nb\nc"])
        await ready(pilot)
        await pilot.press("space", "enter")
        assert app.chat.activity.phase is Phase.READY


async def test_help_opens_and_closes() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        await pilot.press("f1")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpScreen)
        await pilot.press("f1", "f1")
        assert not isinstance(app.screen, HelpScreen)


async def test_an_answer_goes_on_behind_the_help() -> None:
    gate = threading.Event()
    async with make_app(FakeModel(["a", gate, "b"])).run_test() as pilot:
        app = await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: app.chat.activity.phase is Phase.WRITING)
        await pilot.press("f1")
        gate.set()
        await ready(pilot)
        await pilot.press("escape")
        assert answers(app) == ["ab"]


async def test_ctrl_c_copies_what_is_selected_and_never_quits() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        app.query_one(Prompt).load_text("copy me")
        app.query_one(Prompt).select_all()
        await pilot.press("ctrl+c")
        assert app.clipboard == "copy me"
        app.query_one(Prompt).clear()
        await pilot.press("ctrl+c")
        assert "Ctrl+Q leaves" in status(app)
        assert app.is_running


async def test_scrolling_away_and_back() -> None:
    model = FakeModel(["line\n\n"] * 60)
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "long")
        transcript = app.query_one(Transcript)
        await until(pilot, lambda: transcript.scroll_y > 20)
        before = transcript.scroll_y
        await pilot.press("pageup")
        await until(pilot, lambda: transcript.scroll_y < before)
        await pilot.press("pagedown")
        await until(pilot, lambda: transcript.scroll_y == before)


async def test_quitting_in_the_middle_of_an_answer_closes_the_model() -> None:
    model = FakeModel(["a", threading.Event()])
    app = make_app(model)
    async with app.run_test() as pilot:
        await ready(pilot)
        await say(pilot, "go")
        await until(pilot, lambda: app.chat.activity.phase is Phase.WRITING)
        await pilot.press("ctrl+q")
    assert await asyncio.to_thread(app.chat.engine.close, WAIT_SECONDS)
    assert model.closed


async def test_a_usage_error_from_the_template_is_told() -> None:
    model = FakeModel(["x"])
    assert model.tokenizer is not None

    def refuse(*_: object) -> list[int]:
        raise UsageError("the model's chat template refuses this conversation: no system")

    model.tokenizer.encode_chat = refuse  # type: ignore[method-assign]
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "hello")
        assert any("refuses this conversation" in text for text in texts(app, Notice))
        assert app.query_one(Prompt).text == "hello"


async def test_what_makes_it_slow_is_said() -> None:
    model = FakeModel(["x"])
    model.slow_because = ["reads go through the page cache, not direct (\x1b[2Jprobe)"]
    async with make_app(model).run_test() as pilot:
        app = await ready(pilot)
        await until(pilot, lambda: any("page cache" in str(n.render()) for n in app.query(Notice)))
        assert not any("\x1b" in str(notice.render()) for notice in app.query(Notice))


async def test_what_makes_it_slow_from_an_answer_on_is_said_once() -> None:
    model = FakeModel(["one"], ["two"], ["three"])
    async with make_app(model).run_test() as pilot:
        app = await ask(pilot, "first")
        assert not any("page cache" in text for text in texts(app, Notice))
        model.slow_because = ["reads go through the page cache, not direct (refused)"]
        for question in ("second", "third"):
            await ask(pilot, question)
        assert len([text for text in texts(app, Notice) if "page cache" in text]) == 1


async def test_where_nothing_is_opened_nothing_waits_to_be_sent() -> None:
    gate = threading.Event()

    def open_engine(_request: OpenRequest) -> Any:
        gate.wait(WAIT_SECONDS)
        raise ModelNotFound("gone")

    app = ChatApp(ChatScreen(open_engine))
    async with app.run_test() as pilot:
        await say(pilot, "early")
        await until(pilot, lambda: waiting(app) == ["early"])
        gate.set()
        await until(pilot, lambda: app.chat.activity.phase is Phase.CLOSED)
        assert waiting(app) == ["early"]
        assert app.chat.waiting.held == 1
        await pilot.press("escape")
        assert not app.chat.check_action("stop", ())
        assert app.chat.prompt.text == "early"


async def test_a_report_that_cannot_be_had_is_an_error_and_the_chat_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: object) -> dict[str, Any]:
        raise ZeroDivisionError("no tokens")

    async with make_app(FakeModel(["half"], ["fine"])).run_test() as pilot:
        await ready(pilot)
        with monkeypatch.context() as patch:
            patch.setattr(FakeGeneration, "report", broken)
            app = await ask(pilot, "first")
        assert "unexpected: ZeroDivisionError: no tokens" in texts(app, Notice)
        await ask(pilot, "second")
        assert answers(app) == ["half", "fine"]


async def test_an_answer_that_ends_before_its_first_word_is_said() -> None:
    async with make_app(FakeModel([], ["\n\n"], ["fine"])).run_test() as pilot:
        app = await ready(pilot)
        for _ in range(2):
            await ask(pilot, "anything?")
            await until(pilot, lambda: "ended its answer before its first word" in status(app))
            assert app.chat.prompt.text == "anything?"
            assert app.chat.conversation.turns == {}


async def test_characters_that_markdown_spells_out_are_made_harmless_too() -> None:
    answer = "a&#x202e;b &#8238;c &#x2066;d &amp; e ![f&#x202e;g](h)"
    async with make_app(FakeModel([answer])).run_test() as pilot:
        app = await ask(pilot, "go")
        await until(pilot, lambda: "ab c d & e" in screen_text(app))
        assert "fg" in screen_text(app)


def test_no_model_is_opened_once_the_chat_is_left() -> None:
    gate, opening, opened = threading.Event(), threading.Event(), []

    def open_engine(request: OpenRequest) -> Any:
        opened.append(request.choice.name)
        opening.set()
        gate.wait(WAIT_SECONDS)
        return FakeModel(["x"])

    engine = EngineThread(open_engine, lambda _: None)
    engine.open(OpenRequest(ModelChoice(name="one")))
    assert opening.wait(WAIT_SECONDS)
    engine.open(OpenRequest(ModelChoice(name="two")))
    assert not engine.close(0.0)
    gate.set()
    assert engine.close(WAIT_SECONDS)
    assert opened == ["one"]
