"""The process that takes a quick profile: what it says, how it ends, that it gives way."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from flashllm import core
from flashllm.bench.disk import probe
from flashllm.errors import FlashllmError
from flashllm.hardware import machine_profile
from flashllm.hardware.staleness import wants_quick_profile
from flashllm.library import quick_profile_job
from flashllm.library.quick_profile_job import (
    QuickProfileJob,
    QuickProfileState,
    QuickProfileStatus,
    start_detached,
)
from flashllm.system.right_of_way import lock_file, taken

WAIT_SECONDS = 600.0
"""The process computes only where nobody else does: beside busy tests it may take minutes."""


class Watched:
    """What a job said, and waiting for its end."""

    def __init__(self) -> None:
        self.seen: list[QuickProfileStatus] = []
        self._over = threading.Event()

    def take(self, status: QuickProfileStatus) -> None:
        self.seen.append(status)
        if status.is_over:
            self._over.set()

    def wait(self) -> QuickProfileStatus:
        assert self._over.wait(WAIT_SECONDS)
        return self.seen[-1]


def run(tmp_path: Path, script: str) -> tuple[QuickProfileJob, Watched]:
    begin = """
        import json, sys, time
        def phase(done):
            print(json.dumps({"event": "phase", "phase": "measuring", "done_bytes": done,
                              "total_bytes": 10, "seconds": 1.0}), file=sys.stderr, flush=True)
    """
    code = textwrap.dedent(begin) + textwrap.dedent(script)
    watched = Watched()
    job = QuickProfileJob(tmp_path, watched.take, command=[sys.executable, "-c", code])
    job.start()
    return job, watched


def test_how_far_it_is(tmp_path: Path) -> None:
    _, watched = run(tmp_path, "phase(0); phase(5)")
    assert watched.wait().state is QuickProfileState.DONE
    assert [(s.phase, s.share) for s in watched.seen[:2]] == [("measuring", 0), ("measuring", 0.5)]


def test_why_it_failed(tmp_path: Path) -> None:
    script = "print('flashllm: \\x1b[2Jtoo busy', file=sys.stderr); sys.exit(74)"
    status = run(tmp_path, script)[1].wait()
    assert (status.state, status.error) == (QuickProfileState.FAILED, "too busy")
    assert run(tmp_path, "sys.exit(3)")[1].wait().error == "it ended with code 3"


def test_it_ends_with_the_application(tmp_path: Path) -> None:
    job, watched = run(tmp_path, "phase(1); time.sleep(60)")
    job.close()
    assert watched.wait().state is QuickProfileState.STOPPED
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); phase(1); time.sleep(60)"
    job, watched = run(tmp_path, deaf)
    while not watched.seen:
        time.sleep(0.01)
    job.close()
    assert watched.wait().state is QuickProfileState.STOPPED


def test_no_process(tmp_path: Path) -> None:
    watched = Watched()
    QuickProfileJob(tmp_path, watched.take, command=[str(tmp_path / "nothing")]).start()
    assert watched.wait().error.startswith("no process to measure in")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sparse_model: Path) -> Path:
    """A home of its own, on a disk that can be measured."""
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    if core.NAME != "native":
        pytest.skip("the twin reads one at a time")
    try:
        probe.probe(sparse_model / "ffn.bundles", 512, 1, 0.01, repeats=1)
    except FlashllmError:
        pytest.skip("temporary files lie where nothing can be measured")
    return tmp_path / "home"


def the_profile(model: Path) -> machine_profile.Profile | None:
    return machine_profile.find(model)


@pytest.mark.slow
def test_the_real_one_measures_and_keeps_a_quick_profile(home: Path, sparse_model: Path) -> None:
    assert wants_quick_profile(sparse_model)
    watched = Watched()
    QuickProfileJob(sparse_model, watched.take).start()
    status = watched.wait()
    assert (status.state, status.error) == (QuickProfileState.DONE, "")
    profile = the_profile(sparse_model)
    assert profile is not None
    assert profile.quick
    assert {status.phase for status in watched.seen} >= {"measuring the disk"}
    # The demo is not converted here, and nothing but the profile is written for a measurement.
    assert sorted(path.name for path in home.iterdir()) == ["profiles"]
    if profile.rates is not None:
        assert profile.rates.layer_overhead_ns == 0
        assert not wants_quick_profile(sparse_model)


def test_the_real_one_waits_while_somebody_answers(home: Path, sparse_model: Path) -> None:
    lock_file().parent.mkdir(parents=True)
    lock_file().touch()
    watched = Watched()
    job = QuickProfileJob(sparse_model, watched.take)
    with taken():
        job.start()
        while not watched.seen:
            time.sleep(0.01)
        time.sleep(1.0)  # it would be done with some points by now
        assert {status.share for status in watched.seen} == {0.0}
        assert not watched.seen[-1].is_over
    while watched.seen[-1].share == 0.0:
        time.sleep(0.01)
    job.close()
    assert watched.wait().state is QuickProfileState.STOPPED
    assert the_profile(sparse_model) is None


def test_two_do_not_measure_at_once(home: Path, sparse_model: Path) -> None:
    first, second = Watched(), Watched()
    job = QuickProfileJob(sparse_model, first.take)
    job.start()
    while not first.seen:
        time.sleep(0.01)
    QuickProfileJob(sparse_model, second.take).start()
    assert second.wait().error == "another process is measuring already"
    job.close()
    assert wants_quick_profile(sparse_model)  # that was no failure


def test_memory_that_others_need_is_left_to_them(home: Path, sparse_model: Path) -> None:
    watched = Watched()
    QuickProfileJob(sparse_model, watched.take, leave_bytes=1 << 50).start()
    assert "memory are left, so nothing is measured now" in watched.wait().error
    assert machine_profile.failed_lately(sparse_model)
    assert not wants_quick_profile(sparse_model)
    assert the_profile(sparse_model) is None


def test_nobody_waits_for_a_detached_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    mark = tmp_path / "done"
    code = f"import os, pathlib; pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))"
    monkeypatch.setattr(
        quick_profile_job, "quick_profile_command", lambda model: [sys.executable, "-c", code]
    )
    assert start_detached(tmp_path)
    end = time.monotonic() + WAIT_SECONDS
    while not mark.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert mark.exists()
    monkeypatch.setattr(quick_profile_job, "quick_profile_command", lambda model: ["/nothing"])
    assert not start_detached(tmp_path)
    assert not list(recwarn)
    _reap()


def _reap() -> None:
    """The detached child is this process's to reap, while this process lives."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.01)
    assert signal.SIGCHLD
