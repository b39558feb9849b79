"""Who answers has the disk: what locks say across processes, and where there are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flashllm.engine.local import open_model
from flashllm.system import right_of_way
from flashllm.system.right_of_way import RightOfWay, lock_file, taken


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    return tmp_path


def test_whoever_answers_has_it() -> None:
    with RightOfWay() as way:
        assert not way.is_taken()
        with taken():
            assert way.is_taken()
            with taken():  # a second engine
                assert way.is_taken()
            assert way.is_taken()
        assert not way.is_taken()


def test_an_engine_makes_no_file(home: Path) -> None:
    with taken():
        pass
    assert list(home.iterdir()) == []


def test_an_engine_waits_for_no_lock_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl
    import os

    monkeypatch.setattr(right_of_way, "TRY_SECONDS", 0.0)
    with RightOfWay():
        descriptor = os.open(lock_file(), os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with taken():
            pass
        os.close(descriptor)


HOLD = """
import sys
from flashllm.system.right_of_way import taken
with taken():
    print("taken", flush=True)
    sys.stdin.read()
"""


def test_another_process_has_it_until_it_is_killed() -> None:
    with RightOfWay() as way:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        assert holder.stdin is not None
        with holder.stdin, holder.stdout:
            assert holder.stdout.readline() == b"taken\n"
            assert way.is_taken()
            holder.kill()
            holder.wait()
        assert not way.is_taken()


def test_an_answer_has_it_from_its_prompt_to_its_end(sparse_model: Path) -> None:
    with RightOfWay() as way, open_model(sparse_model) as model:
        assert not way.is_taken()
        generation = model.generate([3, 4, 5], max_tokens=3)
        assert not way.is_taken()  # nothing runs before the first token is asked for
        seen = []
        for _ in generation:
            seen.append(way.is_taken())
        assert seen == [True, True, False]  # nothing is computed after the last token
        assert not way.is_taken()
        stopped = model.generate([3, 4, 5], max_tokens=3)
        next(stopped)
        assert way.is_taken()
        stopped.close()
        assert not way.is_taken()
