"""Faults under `flashllm run` as users start it: what it says, its exit code, and no traceback."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fault_shim import ROOT, environment
from tests.support.faults import DELAY, EVERY, REFUSE_DIRECT, ZERO

RUN = [sys.executable, "-m", "flashllm", "run", "--ids", "5,17,40,8,61,33", "-n", "6"]
LONG = [*RUN[:-3], ",".join(["5,17,40,8"] * 25), "-n", "40"]


@dataclass(frozen=True)
class Case:
    """Calls that fail, and what the program makes of it."""

    calls: str
    path: str
    code: int
    exit_code: int
    words: str
    times: int = 0
    nth: int = 1
    least_bytes: int = 0
    short: bool = False
    """Whether `make test` has it too: each case starts a program."""


CASES = {
    "nothing": Case("read", "no such path", errno.EIO, 0, ""),
    "bundles, EIO": Case("read", "ffn.bundles", errno.EIO, 74, "ffn.bundles", nth=3, short=True),
    "bundles, EIO once": Case("read", "ffn.bundles", errno.EIO, 0, "", times=1, nth=3),
    "bundles, ENOMEM": Case("read", "ffn.bundles", errno.ENOMEM, 0, "", times=3, nth=3),
    "direct refused": Case(
        "read", "ffn.bundles", REFUSE_DIRECT, 0, "a direct read was refused", nth=3, short=True
    ),
    "bundles end": Case("read", "ffn.bundles", ZERO, 65, "ends too early", nth=3),
    "resident, EIO": Case("read", "resident.safetensors", errno.EIO, 74, "resident.safetensors"),
    "manifest, EIO": Case("read", "manifest.json", errno.EIO, 74, "manifest.json"),
    "manifest, EACCES": Case("open", "manifest.json", errno.EACCES, 74, "see who owns it"),
    "bundles, EMFILE": Case("open", "ffn.bundles", errno.EMFILE, 74, "too many files open"),
    "bundles slow": Case("read", "ffn.bundles", DELAY, 0, "", times=20),
    "no memory": Case("malloc", "", errno.ENOMEM, 71, "out of memory", least_bytes=1 << 18),
}


def started(
    command: list[str], environment_of: dict[str, str], **options: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment_of, cwd=ROOT, capture_output=True, text=True, timeout=120,
        stdin=subprocess.DEVNULL, check=False, **options,  # type: ignore[call-overload]
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(sparse_model: Path) -> str:
    done = started([*RUN, str(sparse_model)], environment())
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.parametrize("name", [name for name in CASES if EVERY or CASES[name].short])
def test_a_fault_is_told(sparse_model: Path, expected: str, name: str) -> None:
    case = CASES[name]
    faults = environment(
        case.calls, case.path, case.code,
        nth=case.nth, times=case.times, least_bytes=case.least_bytes,
    )  # fmt: skip
    done = started([*RUN, str(sparse_model)], faults)
    assert "Traceback" not in done.stderr
    assert case.words in done.stderr
    assert done.returncode == case.exit_code, done.stderr
    if case.exit_code == 0:
        assert done.stdout == expected
    if case.code == REFUSE_DIRECT:
        assert done.stderr.count("page cache") == 1


def test_sigterm_in_a_prompt_says_so(sparse_model: Path) -> None:
    slow = environment("read", "ffn.bundles", DELAY)
    process = subprocess.Popen(
        [*LONG, str(sparse_model)], env=slow, cwd=ROOT, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    _wait_for_reads(process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "interrupted" in err
    assert "Traceback" not in err
    assert len(out.split()) < 40


def _wait_for_reads(process: subprocess.Popen[str]) -> None:
    """Until the bundles are open, so that the prompt is near, and the signals are heard."""
    deadline = time.monotonic() + 60
    links = Path(f"/proc/{process.pid}/fd")
    while time.monotonic() < deadline and process.poll() is None:
        try:
            names = [str(link.readlink()) for link in links.iterdir()]
        except OSError:
            continue
        if any(name.endswith("ffn.bundles") for name in names):
            return
        time.sleep(0.01)
    raise AssertionError("it did not open the bundles")


@pytest.mark.skipif(not EVERY, reason="starts programs; `make faults`")
def test_a_full_disk_is_told_when_an_answer_is_saved(demo: Path, tmp_path: Path) -> None:
    full = environment("write,space", str(tmp_path), errno.ENOSPC, FLASHLLM_HOME=str(tmp_path))
    done = started([*RUN[:4], str(demo), "-p", "Hello", "-n", "6", "--save"], full)
    assert "Traceback" not in done.stderr
    assert "no space left" in done.stderr
    assert done.returncode == 74


@pytest.mark.skipif(not EVERY, reason="starts programs; `make faults`")
def test_a_full_disk_under_the_output(sparse_model: Path, tmp_path: Path) -> None:
    full = environment("write", "answer.txt", errno.ENOSPC)
    with open(tmp_path / "answer.txt", "w", encoding="utf-8") as file:
        done = subprocess.run(
            [*RUN, str(sparse_model)], env=full, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 73
    assert "standard output: cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


FULL_TABLE = """
import os
import sys
import typing

import flashllm.errors

holder = type("holder", (), {})
try:
    for number in range(1 << 20):
        setattr(holder, f"a name to fill the table, {number}", None)
except MemoryError:
    try:
        import flashllm.core
    except MemoryError:
        sys.exit("no memory")
sys.exit("there was memory")
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="tables of names are others there")
def test_the_core_is_not_begun_where_the_table_of_names_cannot_grow() -> None:
    """Its own beginning would end the process: nanobind has no other way there."""
    faults = environment("malloc", "", errno.ENOMEM, least_bytes=1 << 18)
    done = started([sys.executable, "-c", FULL_TABLE], faults)
    # What is loaded at Python's own start may say before that it had no memory either.
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "no memory")
