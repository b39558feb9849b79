"""Conversions beside the application: what they say, how they end, and that there is one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flashllm.errors import CannotCreate, UsageError
from flashllm.library.conversion_events import (
    LINE_BYTES_MAX,
    EndEvent,
    PhaseEvent,
    TextEvent,
    WarningEvent,
    parse_event,
)
from flashllm.library.conversion_job import Conversions, ConvertJob, JobState, JobStatus
from flashllm.library.conversion_options import ConvertOptions
from tests.support.checkpoints import write_checkpoint

WAIT_SECONDS = 60.0


class Watched:
    """A job whose states are remembered, and waited for."""

    def __init__(self, job: ConvertJob) -> None:
        self.job = job
        self.seen: list[JobStatus] = []
        self._changed = threading.Condition()

    def take(self, job: ConvertJob) -> None:
        with self._changed:
            self.seen.append(job.status)
            self._changed.notify_all()

    def until(self, phase: str) -> None:
        with self._changed:
            there = self._changed.wait_for(
                lambda: any(status.phase == phase for status in self.seen), WAIT_SECONDS
            )
        assert there

    @property
    def states(self) -> list[JobState]:
        states = [status.state for status in self.seen]
        return [s for i, s in enumerate(states) if not i or states[i - 1] is not s]


def scripted(tmp_path: Path, script: str, **options: Any) -> Watched:
    """A job whose process runs `script`; `say` in it writes an event."""
    begin = """
        import json, os, pathlib, signal, sys, time
        def say(**event): print(json.dumps(event), file=sys.stderr, flush=True)
        def phase(name, done):
            say(event="phase", phase=name, done_bytes=done, total_bytes=10, seconds=2.0)
        destination = pathlib.Path(sys.argv[1])
    """
    text = textwrap.dedent(begin) + textwrap.dedent(script)
    destination = tmp_path / "made"
    command = [sys.executable, "-c", text, str(destination)]
    return Watched(ConvertJob(tmp_path / "source", destination, command=command, **options))


def run(watched: Watched) -> JobStatus:
    watched.job.start(watched.take)
    assert watched.job.wait(WAIT_SECONDS)
    return watched.job.status


def test_a_checkpoint_is_converted(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "-source")
    destination = tmp_path / "made"
    watched = Watched(ConvertJob(source, destination, ConvertOptions(dtype="int8")))
    status = run(watched)
    assert status.error == ""
    assert watched.states == [JobState.RUNNING, JobState.DONE]
    manifest = json.loads((destination / "manifest.json").read_bytes())
    assert manifest["spec"]["dtype"] == "int8"
    assert {"resident weights", "feed-forward bundles"} <= {s.phase for s in watched.seen}
    assert all(s.done_bytes <= s.total_bytes for s in watched.seen)


def test_what_the_converter_says_is_the_error(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (tmp_path / "made").mkdir()
    status = run(Watched(ConvertJob(source, tmp_path / "made")))
    assert status.state is JobState.FAILED
    assert status.error == f"{tmp_path}/made: exists already; choose another name or remove it"


def test_progress_and_warnings(tmp_path: Path) -> None:
    watched = scripted(
        tmp_path,
        """
        phase("one", 0); phase("one", 5)
        say(event="warning", text="\\x1b[2Jcareful")
        print("no event", file=sys.stderr)
        phase("two", 10)
        say(event="end")
        destination.mkdir(); (destination / "manifest.json").touch()
        """,
    )
    status = run(watched)
    assert watched.states == [JobState.RUNNING, JobState.DONE]
    assert (status.warnings, status.error) == (("careful",), "")
    half = next(s for s in watched.seen if s.done_bytes == 5)
    assert (half.share, half.seconds_left) == (0.5, 2.0)
    assert next(s for s in watched.seen if s.phase == "one").seconds_left is None


@pytest.mark.parametrize("inherited", [signal.SIG_IGN, signal.default_int_handler])
def test_cancelling_interrupts_also_where_ctrl_c_is_ignored(tmp_path: Path, inherited: Any) -> None:
    watched = scripted(
        tmp_path,
        """
        from flashllm.cli.commands.convert import stopped_like_ctrl_c
        try:
            with stopped_like_ctrl_c():
                phase("waiting", 1); time.sleep(60)
        except KeyboardInterrupt:
            print("flashllm: stopped", file=sys.stderr); sys.exit(75)
        """,
    )
    before = signal.signal(signal.SIGINT, inherited)
    try:
        watched.job.start(watched.take)
    finally:
        signal.signal(signal.SIGINT, before)
    watched.until("waiting")
    watched.job.cancel()
    watched.job.cancel()
    assert watched.job.wait(WAIT_SECONDS)
    assert watched.states == [JobState.RUNNING, JobState.STOPPING, JobState.STOPPED]
    assert watched.job.status.error == "stopped; nothing was made"


@pytest.mark.parametrize("existed", [False, True])
def test_a_stop_when_all_is_done_is_no_stop(tmp_path: Path, existed: bool) -> None:
    script = """
        phase("the last", 1)
        destination.mkdir(exist_ok=True); (destination / "manifest.json").touch()
        sys.exit(75)
    """
    if existed:
        (tmp_path / "made").mkdir()
    watched = scripted(tmp_path, script)
    status = run(watched)
    expected = JobState.STOPPED if existed else JobState.DONE
    assert watched.job.destination == tmp_path / "made"
    assert status.state is expected


def test_what_does_not_stop_is_killed_with_its_children(tmp_path: Path) -> None:
    watched = scripted(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        say(event="warning", text=str(child))
        phase("deaf", 1); time.sleep(60)
        """,
        kill_seconds=0.1,
    )
    watched.job.start(watched.take)
    watched.until("deaf")
    child = int(watched.job.status.warnings[0])
    watched.job.close(WAIT_SECONDS)
    assert watched.job.status.state is JobState.STOPPED
    assert watched.job.status.error.startswith("killed, since it did not stop; what it had written")
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end and is_running(child):
        time.sleep(0.01)
    assert not is_running(child)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("sys.exit(3)", "ended with code 3, and said nothing"),
        (
            "print('Traceback'); print('ValueError: x', file=sys.stderr); sys.exit(1)",
            "ValueError: x",
        ),
        ("print('flashllm: a', file=sys.stderr); print('b', file=sys.stderr); sys.exit(65)", "a"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by signal 9; where memory is short, close"),
        ("", "ended with code 0, and said nothing"),  # nothing was made
    ],
)
def test_how_it_fails(tmp_path: Path, script: str, error: str) -> None:
    status = run(scripted(tmp_path, script))
    assert status.state is JobState.FAILED
    assert status.error.startswith(error)


def test_an_interruption_from_elsewhere_is_no_failure(tmp_path: Path) -> None:
    assert run(scripted(tmp_path, "sys.exit(75)")).state is JobState.STOPPED


def test_no_process(tmp_path: Path) -> None:
    job = ConvertJob(tmp_path, tmp_path / "made", command=[str(tmp_path / "nothing")])
    with pytest.raises(CannotCreate, match="no process to convert in"):
        job.start(lambda _: None)


def test_training_goes_on_another_time(tmp_path: Path) -> None:
    assert ConvertJob(tmp_path, tmp_path / "m", ConvertOptions(predictors="train")).resumable
    assert not ConvertJob(tmp_path, tmp_path / "m").resumable


def test_one_at_a_time(tmp_path: Path) -> None:
    made: list[ConvertJob] = []

    def make(source: Path, destination: Path, options: ConvertOptions | None) -> ConvertJob:
        script = "import time; time.sleep(60)"
        made.append(
            ConvertJob(source, destination, options, command=[sys.executable, "-c", script])
        )
        return made[-1]

    conversions = Conversions(make)
    told: list[JobState] = []
    stop = conversions.listen(lambda job: told.append(job.status.state))
    assert not conversions.is_running
    conversions.start(tmp_path / "first", tmp_path / "made")
    with pytest.raises(UsageError, match="first is being converted"):
        conversions.start(tmp_path / "second", tmp_path / "other")
    assert (len(made), conversions.is_running) == (1, True)
    conversions.close()
    assert not conversions.is_running
    assert told == [JobState.RUNNING, JobState.STOPPING, JobState.STOPPED]
    stop()
    conversions.start(tmp_path / "second", tmp_path / "other")
    conversions.close()
    assert len(told) == 3
    assert len(made) == 2


def test_one_that_cannot_begin_is_in_nobodys_way(tmp_path: Path) -> None:
    commands = [[str(tmp_path / "nothing")], [sys.executable, "-c", ""]]

    def make(source: Path, destination: Path, options: ConvertOptions | None) -> ConvertJob:
        return ConvertJob(source, destination, options, command=commands.pop(0))

    conversions = Conversions(make)
    with pytest.raises(CannotCreate):
        conversions.start(tmp_path / "first", tmp_path / "made")
    assert not conversions.is_running
    assert not conversions.is_news
    job = conversions.start(tmp_path / "second", tmp_path / "made")
    assert job.wait(WAIT_SECONDS)
    assert conversions.is_news
    conversions.seen = job
    assert not conversions.is_news


ABANDON = """
import pathlib, sys, time
from flashllm.library.conversion_job import ConvertJob
job = ConvertJob(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
begun = []
job.start(lambda job: begun.append(job.status.phase) if job.status.phase else None)
while not begun:
    time.sleep(0.001)
print(job._process.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_application_leaves_nothing_half_made(tmp_path: Path) -> None:
    # 40 MB of weights: lines of progress are still to come when their reader has gone.
    source = write_checkpoint(tmp_path / "source", hidden_size=768, word_embed_proj_dim=768,
                              ffn_dim=4096, num_attention_heads=12)  # fmt: skip
    destination = tmp_path / "out" / "made"
    destination.parent.mkdir()
    command = [sys.executable, "-c", ABANDON, str(source), str(destination)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as application:
        assert application.stdout is not None
        converter = int(application.stdout.readline())
        os.kill(application.pid, signal.SIGKILL)
    end = time.monotonic() + WAIT_SECONDS
    while is_running(converter) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(converter)
    # Absent, or complete where the converter was faster than the signal.
    left = [path.name for path in destination.parent.iterdir()]
    assert left == [] or (left == ["made"] and (destination / "manifest.json").exists())


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (
            b'{"event": "phase", "phase": "x\\u001b[1m", "done_bytes": 1, "total_bytes": 2,'
            b' "seconds": 3}',
            PhaseEvent("x", 1, 2, 3.0),
        ),
        (b'{"event": "warning", "text": "a\\nb"}', WarningEvent("a b")),
        (b'{"event": "end"}', EndEvent()),
    ],
)
def test_events(line: bytes, event: object) -> None:
    assert parse_event(line) == event


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\x1b]0;title\x07text",
        b"[]",
        b'{"event": "end", "more": 1}',
        b'{"event": "warning", "text": 1}',
        b'{"event": ["phase"]}',
        b'{"event": "phase"}',
        b'{"event": "end", "event": "end"}',
        *(
            json.dumps(
                {"event": "phase", "phase": "x", "done_bytes": 1, "total_bytes": 2, "seconds": 0}
                | wrong
            ).encode()
            for wrong in (
                {"phase": 1},
                {"done_bytes": -1},
                {"done_bytes": 3},
                {"done_bytes": True},
                {"done_bytes": 1.0},
                {"total_bytes": 0, "done_bytes": 0},
                {"total_bytes": 1 << 70},
                {"seconds": -1},
                {"seconds": "1"},
                {"seconds": float("nan")},
                {"extra": 1},
            )
        ),
        b"{" * LINE_BYTES_MAX,
    ],
)
def test_what_is_no_event_is_clean_text(line: bytes) -> None:
    event = parse_event(line)
    assert isinstance(event, TextEvent)
    assert "\x1b" not in event.text
    assert len(event.text) <= 500
