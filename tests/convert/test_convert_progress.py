"""Progress: plain lines in pipes, a bar with the time left on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from flashllm.convert import progress_for

from flashllm import progress
from flashllm.cli.commands.convert import PROGRESS_KINDS
from flashllm.json_schema import with_schema
from flashllm.library.conversion_events import PhaseEvent, parse_event
from flashllm.progress import (
    JsonlProgress,
    LineProgress,
    PlainProgress,
    SilentProgress,
    TerminalProgress,
)
from flashllm.schedule import ExpectedPhase, Schedule
from tests.support.checkpoints import write_checkpoint

ROOT = Path(__file__).parents[2]


def test_plain_lines() -> None:
    stream = io.StringIO()
    progress = progress_for(stream)
    assert isinstance(progress, PlainProgress)
    progress.start("first", 1000)
    for _ in range(100):
        progress.advance(10)
    progress.warn("[bold]odd[/bold]")
    progress.start("empty", 0)
    progress.finish()
    progress.finish()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "first: 1000 B"
    shares = [int(line.split()[1]) for line in lines[1:11]]
    assert shares == list(range(10, 101, 10))
    assert all(re.search(r", [\d.]+ [kMG]?B/s, \d+ s left$", line) for line in lines[1:11])
    assert lines[11:] == ["warning: [bold]odd[/bold]", "empty: 0 B"]


def scheduled(clock: list[float]) -> Schedule:
    phases = [ExpectedPhase("first", "moving", 10.0), ExpectedPhase("second", "moving", 30.0)]
    return Schedule(phases, lambda: clock[0])


def test_with_a_schedule_lines_say_how_far_everything_is() -> None:
    clock = [0.0]
    stream = io.StringIO()
    shown = progress_for(stream, "plain", scheduled(clock))
    shown.start("first", 1000)
    clock[0] = 5.0
    shown.advance(500)
    assert stream.getvalue().splitlines()[-1].endswith("s left; all: 12 %, 35 s left")
    clock[0] = 10.0
    shown.advance(500)
    shown.start("second", 10)
    clock[0] = 25.0
    shown.advance(5)
    assert stream.getvalue().splitlines()[-1].endswith("; all: 62 %, 15 s left")


def test_with_a_schedule_objects_say_how_far_everything_is() -> None:
    clock = [0.0]
    stream = io.StringIO()
    shown = progress_for(stream, "jsonl", scheduled(clock))
    shown.start("first", 1000)
    clock[0] = 5.0
    shown.advance(1000)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["whole_share"], line["whole_seconds_left"]) for line in lines] == [
        (0.0, 40.0),
        (0.25, 15.0),
    ]
    event = parse_event(stream.getvalue().splitlines()[-1].encode())
    assert isinstance(event, PhaseEvent)
    assert (event.whole_share, event.whole_seconds_left) == (0.25, 15.0)


def test_a_terminal_gets_a_second_bar_for_everything() -> None:
    clock = [0.0]
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    shown = progress_for(stream, "auto", scheduled(clock))
    assert isinstance(shown, TerminalProgress)
    shown.start("first", 1000)
    clock[0] = 5.0
    shown.advance(500)
    assert shown._bar is not None
    phase, whole = shown._bar.tasks
    assert (whole.description, whole.fields["words"]) == ("all", "12 %, 35 s left")
    assert phase.fields["words"].startswith("500 B of 1000 B")
    shown.finish()
    assert "first" in stream.getvalue()


def test_lines_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("flashllm.progress.time.monotonic", lambda: clock[0])
    stream = io.StringIO()
    shown = LineProgress(stream)
    shown.finish()
    shown.start("first", 100)
    for clock[0] in (3.0, 9.0, 12.0, 15.0, 24.0):
        shown.advance(10)
    shown.start("second", 0)
    shown.warn("odd")
    shown.finish()
    shown.finish()
    assert stream.getvalue().splitlines() == [
        "first: 30 %, about 28 s left",
        "first: 50 %, about 24 s left",
        "first: done in 24 s",
        "warning: odd",
        "second: done in 0 s",
    ]


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "tokenizer.model").unlink()
    command = [sys.executable, "-m", "tools.convert", str(source), str(tmp_path / "out")]
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=slave, env=environment
    ) as process:
        os.close(slave)
        shown = read_all(master)
        assert process.stdout is not None
        assert process.stdout.read().decode().strip() == str(tmp_path / "out")
    os.close(master)
    assert process.returncode == 0
    assert "no tokenizer" in re.sub(r"\s+", " ", shown)
    for phase in ("hashing the source", "resident weights", "feed-forward bundles"):
        assert phase in shown
    assert "\x1b[?25h" in shown  # the cursor is given back
    assert re.search(r"\d [KM]iB", shown)


def read_all(descriptor: int) -> str:
    """What comes from a terminal until its other side closes."""
    parts = []
    while True:
        try:
            part = os.read(descriptor, 4096)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


def test_the_bar_survives_calls_out_of_order() -> None:
    stream = io.StringIO()
    progress = TerminalProgress(stream)
    progress.advance(5)
    progress.finish()
    progress.start("a", 10)
    progress.start("b", 10)
    progress.advance(10)
    progress.finish()
    progress.finish()
    assert "b" in stream.getvalue()


def test_a_json_object_a_line() -> None:
    stream = io.StringIO()
    shown = JsonlProgress(stream)
    shown.start("first \udcff", 1000)
    for _ in range(1000):
        shown.advance(1)
    shown.warn("\x1b[31modd")
    shown.start("empty", 0)
    shown.advance(5)
    shown.finish()
    shown.finish()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    phases = [line for line in lines if line["event"] == "phase"]
    first = [line for line in phases if line["phase"] == "first \udcff"]
    assert (first[0]["done_bytes"], first[-1]["done_bytes"]) == (0, 1000)
    assert {line["total_bytes"] for line in first} == {1000}
    assert len(first) < 100  # not one for every step
    done = [(line["phase"], line["done_bytes"], line["total_bytes"]) for line in phases[-2:]]
    assert done == [("empty", 0, 1), ("empty", 1, 1)]
    assert with_schema({"event": "warning", "text": "\x1b[31modd"}) in lines
    assert [line["event"] for line in lines].count("end") == 1
    assert lines[-1] == with_schema({"event": "end"})
    assert "\x1b" not in stream.getvalue()


def test_the_kinds() -> None:
    assert progress.PROGRESS_KINDS == PROGRESS_KINDS
    stream = io.StringIO()
    made = [type(progress_for(stream, kind)) for kind in ("auto", "plain", "jsonl", "none")]
    assert made == [PlainProgress, PlainProgress, JsonlProgress, SilentProgress]
    stream.isatty = lambda: True  # type: ignore[method-assign]
    made = [type(progress_for(stream, kind)) for kind in ("auto", "plain", "jsonl", "none")]
    assert made == [TerminalProgress, PlainProgress, JsonlProgress, SilentProgress]
