"""`flashllm run` keeps conversations as the chat does, and goes on with them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flashllm.cli.main import main
from flashllm.cli.run import prompt
from flashllm.cli.run import session as run_session
from flashllm.cli.shared import open_model
from flashllm.conversations.records import Session
from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Turn
from flashllm.errors import ReadFailed, SessionNotFound
from flashllm.options import EFFORT_VARIABLE, ReasoningOptions
from tests.support.fake_engine import FakeModel, Held, Step

pytestmark = pytest.mark.usefixtures("m")


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(prompt, "_has_piped_stdin", lambda wait: False)
    return tmp_path / "home" / "sessions.db"


def use(monkeypatch: pytest.MonkeyPatch, *answers: list[Step]) -> tuple[FakeModel, list[Path]]:
    """The model that answers, and where it is opened from."""
    model = FakeModel(*answers)
    opened: list[Path] = []
    monkeypatch.setattr(
        open_model, "open_engine", lambda directory, arguments: opened.append(directory) or model
    )
    return model, opened


def load(path: Path, number: int) -> Session:
    with SessionStore(path) as store:
        return store.load(number)


def said(session: Session) -> list[tuple[str, str, str | None]]:
    return [(turn.role, turn.text, turn.finish_reason) for turn in session.conversation.path()]


def test_nothing_is_kept_unless_that_is_asked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, ["yes"])
    assert main(["run", "m", "-p", "x"]) == 0
    assert not path.exists()


def test_what_the_template_is_told_of_reasoning(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = use(monkeypatch, ["yes"])
    monkeypatch.setattr(type(model.tokenizer), "reasoning_variables", {EFFORT_VARIABLE})
    asked = ["run", "m", "-p", "x", "--think", "off", "--effort", "low", "--save"]
    assert main(asked) == 0
    unread = "flashllm: this model's template knows no enable_thinking: think changes nothing"
    assert [line for line in capsys.readouterr().err.splitlines() if "knows" in line] == [unread]
    # The conversation keeps both; a flag goes before.
    assert main(["run", "m", "-p", "y", "--continue", "--effort", "high"]) == 0
    monkeypatch.setenv("FLASHLLM_THINK", "on")
    assert main(["run", "m", "-p", "z", "--continue"]) == 0
    assert model.tokenizer.reasoning == [
        ReasoningOptions("off", "low"),
        ReasoningOptions("off", "high"),
        ReasoningOptions("on", "low"),
    ]
    kept = load(path, 1).settings
    assert (kept["think"], kept["effort"]) == ("off", "low")


def test_saved_and_gone_on_with(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = use(monkeypatch, ["An ocean", " is water."], ["A sea too."])
    assert main(["run", "m", "-p", "ocean?", "-s", "Be brief.", "--save", "--temp", "0.5"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "An ocean is water.\n"
    assert captured.err == "flashllm: saved as conversation 1\n"
    kept = load(path, 1)
    assert said(kept) == [("user", "ocean?", None), ("assistant", "An ocean is water.", "stop")]
    assert len(kept.conversation.turns[2].ids) == 2
    assert kept.conversation.turns[2].numbers["tokens"] == 2
    assert kept.meta.model == str(Path("m").absolute())
    assert kept.settings["temp"] == 0.5

    assert main(["run", "m", "-p", "sea?", "--continue", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["session"] == 1
    assert captured.err == "flashllm: going on with conversation 1: ocean?\n"
    assert model.tokenizer is not None
    assert [message["content"] for message in model.tokenizer.conversations[-1]] == [
        "Be brief.", "ocean?", "An ocean is water.", "sea?",
    ]  # fmt: skip
    assert said(load(path, 1))[2:] == [("user", "sea?", None), ("assistant", "A sea too.", "stop")]


def test_a_session_by_id_or_name_with_another_system_prompt(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, ["yes"])
    with SessionStore(path) as store:
        first, second = store.create(name="Seas", system="Be brief."), store.create()
        store.save_turn(first, Turn(1, None, "user", "never answered"))
    assert main(["run", "m", "-p", "x", "--session", "seas", "-s", "Be long."]) == 0
    assert main(["run", "m", "-p", "y", "--session", str(second)]) == 0
    assert capsys.readouterr().err == ""
    kept = load(path, first)
    assert kept.conversation.system == "Be long."
    assert [text for _, text, _ in said(kept)] == ["never answered", "x", "yes"]
    assert len(said(load(path, second))) == 2


def test_the_model_is_that_of_the_conversation_unless_another_is_named(
    tmp_path: Path,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, opened = use(monkeypatch, ["yes"])
    monkeypatch.setenv("FLASHLLM_MODEL", str(tmp_path / "usual"))
    before = tmp_path / "before"
    for name in ("usual", "before", "other"):
        (tmp_path / name).mkdir()
    with SessionStore(path) as store:
        number = store.create(model=str(before))
    assert main(["run", "-p", "x", "--session", "1"]) == 0
    assert main(["run", str(tmp_path / "other"), "-p", "x", "--session", "1"]) == 0
    assert load(path, number).meta.model == str(tmp_path / "other")
    capsys.readouterr()
    (tmp_path / "other").rmdir()
    assert main(["run", "-p", "x", "--session", "1"]) == 0
    assert f"{tmp_path / 'other'}, the model of this conversation, is gone" in (
        capsys.readouterr().err
    )
    assert [directory.name for directory in opened] == ["before", "other", "usual"]
    with SessionStore(path) as store:
        store.save_head(number, model="x" * 4000)  # longer than any path
    assert main(["run", "-p", "x", "--session", "1"]) == 0


def test_a_flag_beats_a_variable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, ["yes"])
    with SessionStore(path) as store:
        first, second, _empty = store.create(), store.create(), store.create()
        store.save_turn(second, Turn(1, None, "user", "first of all"))
    monkeypatch.setenv("FLASHLLM_SESSION", str(first))
    assert main(["run", "m", "-p", "x", "--continue"]) == 0
    assert len(said(load(path, second))) == 3
    monkeypatch.delenv("FLASHLLM_SESSION")
    monkeypatch.setenv("FLASHLLM_CONTINUE", "1")
    assert main(["run", "m", "-p", "x", "--session", str(first)]) == 0
    assert len(said(load(path, first))) == 2


@pytest.mark.parametrize("variable", ["FLASHLLM_CONTINUE", "FLASHLLM_SESSION"])
def test_flags_that_ask_for_no_conversation_that_is_there_beat_a_variable(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
) -> None:
    use(monkeypatch, ["yes"])
    with SessionStore(path) as store:
        there = store.create()
    monkeypatch.setenv(variable, "1")
    assert main(["run", "m", "-p", "x", "--save"]) == 0
    assert main(["run", "m", "-p", "x", "--raw"]) == 0
    assert main(["run", "m", "--ids", "1,2"]) == 0
    assert len(said(load(path, there + 1))) == 2
    with SessionStore(path) as store:
        assert [summary.turns for summary in store.list()] == [2, 0]
    assert "going on" not in capsys.readouterr().err
    assert main(["run", "m", "--save"]) == 2  # nothing goes on, so a prompt is needed


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--continue"], 66, "no conversation yet"),
        (["--session", "5"], 66, "no conversation '5'"),
        (["--session", "5", "--continue"], 2, "two conversations"),
        (["--session", "5", "--save"], 2, "--save begins"),
        (["--save", "--raw"], 2, "--raw and --ids are none"),
        (["-f", "/nonexistent"], 2, "/nonexistent: cannot be read"),
    ],
)
def test_what_makes_no_sense(
    arguments: list[str], code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "m", "-p", "x", *arguments]) == code
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_what_was_answered_before_a_failure_is_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, ["half", " an", ReadFailed("ffn.bundles: offset 1")])
    assert main(["run", "m", "-p", "x", "--save"]) == 74
    assert said(load(path, 1)) == [("user", "x", None), ("assistant", "half an", None)]


@pytest.mark.parametrize("reason", ["cancelled", "length", "error", None])
def test_without_a_prompt_a_stopped_answer_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    model, _ = use(monkeypatch, ["so", " far"], [" and", " on"])
    assert main(["run", "m", "-p", "x", "--save"]) == 0
    with SessionStore(path) as store:
        answer = store.load(1).conversation.turns[2]
        answer.finish_reason = reason
        store.save_turn(1, answer)
    capsys.readouterr()
    assert main(["run", "--continue", "m", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["text"] == " and on"  # what is printed is what is new
    assert said(load(path, 1)) == [("user", "x", None), ("assistant", "so far and on", "stop")]
    answer = load(path, 1).conversation.turns[2]
    assert len(answer.ids) == 4
    assert answer.numbers["tokens"] == 2
    first, second = model.requests
    assert second["ids"] == [*first["ids"], *answer.ids[:2]]
    assert second["answer"] == 2


def test_an_answer_that_had_not_begun_is_begun(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, ["yes"])
    waits: list[bool] = []
    monkeypatch.setattr(prompt, "_has_piped_stdin", lambda wait: waits.append(wait) or False)
    with SessionStore(path) as store:
        empty, asked = store.create(), store.create()
        store.save_turn(empty, Turn(1, None, "user", "x"))
        store.save_turn(empty, Turn(2, 1, "assistant", "\n", (1,), "cancelled"))
        store.save_turn(asked, Turn(1, None, "user", "y"))
    for number, question in ((empty, "x"), (asked, "y")):
        assert main(["run", "m", "--session", str(number)]) == 0
        assert said(load(path, number)) == [("user", question, None), ("assistant", "yes", "stop")]
    assert len(load(path, empty).conversation.turns[2].ids) == 1
    assert capsys.readouterr().out == "yes\nyes\n"
    assert waits == [False, False]  # a pipe would be the prompt, however late it speaks


def test_ids_of_another_model_do_not_stand_for_an_answer_that_goes_on(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = use(monkeypatch, [" and on"])
    with SessionStore(path) as store:
        store.create(model="/models/another")
        store.save_turn(1, Turn(1, None, "user", "x"))
        store.save_turn(1, Turn(2, 1, "assistant", "so far", (0, 0), "cancelled"))
    assert main(["run", str(tmp_path), "--session", "1"]) == 0
    assert model.tokenizer is not None
    assert model.requests[0]["ids"][-2:] == model.tokenizer.encode("so far")
    answer = load(path, 1).conversation.turns[2]
    assert (answer.text, answer.ids) == ("so far and on", ())


@pytest.mark.parametrize("turns", [0, 2])
def test_where_nothing_can_go_on_a_prompt_is_asked_for(
    path: Path, turns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with SessionStore(path) as store:
        store.create()
        for turn in (Turn(1, None, "user", "x"), Turn(2, 1, "assistant", "y", (), "stop"))[:turns]:
            store.save_turn(1, turn)
    assert main(["run", "m", "--session", "1"]) == 2
    assert "no answer to go on with" in capsys.readouterr().err


def test_a_conversation_goes_on_with_its_own_sampling(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = use(monkeypatch, ["yes"])
    settings = {"temp": 0.5, "top_k": 7, "max_tokens": 9, "seed": 2**64, "top_p": "most", "x": 1}
    with SessionStore(path) as store:
        store.create(settings=settings)
    monkeypatch.setenv("FLASHLLM_TOP_K", "8")
    assert main(["run", "m", "-p", "x", "--session", "1"]) == 0
    assert main(["run", "m", "-p", "x", "--session", "1", "--temp", "0.25", "-n", "3"]) == 0
    own, given = model.requests
    assert (own["sampling"].temperature, own["sampling"].top_k, own["max_tokens"]) == (0.5, 8, 9)
    assert (own["sampling"].seed, own["sampling"].top_p) == (0, 1.0)  # what makes no sense is left
    assert (given["sampling"].temperature, given["max_tokens"]) == (0.25, 3)
    assert load(path, 1).settings["temp"] == 0.5


def test_what_was_held_back_for_a_stop_string_is_shown_at_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, ["1 ", Held("<")], [" 2", Held(" <")])
    assert main(["run", "m", "-p", "x", "--save"]) == 0
    assert capsys.readouterr().out == "1 <\n"
    with SessionStore(path) as store:
        answer = store.load(1).conversation.turns[2]
        answer.finish_reason = "length"
        store.save_turn(1, answer)
    assert main(["run", "m", "--session", "1", "--no-stream"]) == 0
    assert capsys.readouterr().out == " 2 <\n"
    assert load(path, 1).conversation.turns[2].text == "1 < 2 <"


def test_a_model_that_cannot_be_opened_begins_no_conversation(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Any:
        raise ReadFailed("gone")

    monkeypatch.setattr(open_model, "open_engine", refuse)
    assert main(["run", "m", "-p", "x", "--save"]) == 74
    assert not path.exists()


def test_the_answer_is_saved_while_it_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process would find at that moment, which is what `kill -9` leaves."""
    looked = threading.Event()

    class Waiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            try:
                found = said(load(path, 1)) if path.exists() else []
            except SessionNotFound:  # the file is there before the conversation is
                return False
            if found[1:] == [("assistant", "so far", None)]:
                looked.set()
            return looked.is_set()

    use(monkeypatch, ["so", " far", Waiting(), " and on"])
    assert main(["run", "m", "-p", "x", "--save"]) == 0
    assert looked.is_set()
    assert said(load(path, 1))[1] == ("assistant", "so far and on", "stop")


def test_a_locked_database_costs_the_keeping_not_the_answer(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, ["the answer"])
    monkeypatch.setattr(run_session, "FLUSH_SECONDS", 0.3)
    monkeypatch.setattr(run_session, "BUSY_SECONDS", 0.1)
    SessionStore(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert main(["run", "m", "-p", "x", "--save"]) == 74
    other.close()
    captured = capsys.readouterr()
    assert captured.out == "the answer\n"
    assert "another program is writing" in captured.err


def test_a_file_comes_before_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = use(monkeypatch, ["yes"])
    file = tmp_path / "notes.txt"
    file.write_bytes("Größe\r\n\n".encode() + b"\xff")
    assert main(["run", "m", "-f", str(file), "-p", "Summarise."]) == 0
    assert main(["run", "m", "-f", str(file)]) == 0
    assert model.tokenizer is not None
    assert [messages[0]["content"] for messages in model.tokenizer.conversations] == [
        "Größe\r\n\n\ufffd\n\nSummarise.", "Größe\r\n\n\ufffd",
    ]  # fmt: skip
    monkeypatch.setattr(prompt, "TEXT_BYTES_MAX", 3)
    assert main(["run", "m", "-f", str(file)]) == 2
    assert "notes.txt is longer than" in capsys.readouterr().err


def test_stats_come_after_the_answer_and_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, ["yes", " and no"])
    assert main(["run", "m", "-p", "x", "--stats", "--no-stream"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "yes and no\n"
    assert captured.err.startswith("prompt ")
    assert "answer   2 tokens; 1 decoded in " in captured.err
    assert "in DRAM" in captured.err


CHILD = """
import sys
from flashllm.cli.shared import open_model as opening; from flashllm.cli.run import prompt
from flashllm.cli.main import main
from tests.support.fake_engine import FakeModel
steps = [step for word in range(10_000) for step in (0.02, f"{word} ")]
opening.open_engine = lambda directory, arguments: FakeModel(steps)
prompt._has_piped_stdin = lambda wait: False
sys.exit(main(["run", sys.argv[1], "-p", "count", "--save", "-n", "10000"]))
"""


def test_an_interrupted_answer_is_kept_and_says_so(m: Path, path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(m)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        shown = child.stdout.read(5)
        child.send_signal(signal.SIGINT)
        shown += child.stdout.read()
        assert b"`flashllm run --session 1` goes on with it" in child.stderr.read()
    assert child.returncode == 130
    _, answer = load(path, 1).conversation.path()
    assert answer.text.strip() == shown.decode().strip()
    assert answer.finish_reason == "cancelled"


@pytest.mark.parametrize("words", [5, 60])
def test_what_was_answered_a_second_before_kill_9_is_there(m: Path, path: Path, words: int) -> None:
    arrived: list[float] = []
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(m)], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        seen = b""
        while len(arrived) < words:
            seen += os.read(child.stdout.fileno(), 100)
            arrived += [time.monotonic()] * (seen.count(b" ") - len(arrived))
        time.sleep(1 if words == 5 else 0)
        killed = time.monotonic()
        child.send_signal(signal.SIGKILL)
    owed = sum(moment <= killed - 1 for moment in arrived)
    question, answer = load(path, 1).conversation.path()
    assert question.text == "count"
    kept = answer.text.split()
    assert kept == [str(word) for word in range(len(kept))]
    assert len(kept) >= owed
    assert (len(answer.ids), answer.finish_reason) == (len(kept), None)
