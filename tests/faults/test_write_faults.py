"""The Nth write, fsync, rename ... fails: a complete model or none, and conversations stay."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.fault_shim import run_under
from tests.support.faults import EVERY


def test_every_call_that_writes_may_fail(tmp_path: Path) -> None:
    done = run_under("tests.faults.write_loops", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["what"] for line in lines} == {"whole", "shards", "conversations"}
    for line in lines:
        if line["kind"] == "short":
            assert not line["errors"], line
        elif line["what"] != "conversations" and line["calls"] == "write":
            assert set(line["errors"]) == {"NotEnoughSpace"} or line["kind"] == "EIO", line
            assert line["runs"] >= (20 if EVERY else 2), line
    saved = [line for line in lines if line["what"] == "conversations"]
    assert any(line["errors"].get("SessionError") for line in saved if line["calls"] == "write")


def test_a_conversion_killed_at_any_write_leaves_no_wrong_model(tmp_path: Path) -> None:
    done = run_under(
        "tests.faults.crashtest", "--here", tmp_path, "--every", "1" if EVERY else "31"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["what"] for line in lines} == {"whole", "shards"}
    for line in lines:
        assert line["killed"] >= (30 if EVERY else 2), line
        assert line["killed"] == line["absent"] + line["complete"] + line["resumed"], line
