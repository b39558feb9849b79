"""Through a real pseudo-terminal: nothing that a model says acts on it, and it is given back."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flashllm.conversations.store import SessionStore
from tests.support.screens import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
SCREEN = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
SCRIPT = """
import sys
from flashllm.cli.shared import open_model as opening
from flashllm.cli.main import main
from tests.support.fake_engine import FakeLauncher, FakeModel
from pathlib import Path
from flashllm.library.names import ModelNames, NamedModel
ModelNames.find = lambda self, text: NamedModel.at(Path(text))  # no model of that name is needed
answers = {answers!r}
opening.open_engine = lambda directory, arguments: FakeModel(*answers)
opening.start_launcher = lambda arguments: FakeLauncher(FakeModel(*answers))
sys.exit(main(sys.argv[1:]))
"""
PAYLOADS = {
    "clipboard": "\x1b]52;c;RVZJTA==\x07",
    "title": "\x1b]0;EVIL\x07",
    "link": "\x1b]8;;https://evil.example\x1b\\",
    "clear": "\x1b[2J",
    "colour_c1": "\x9b31m",
    "title_c1": "\x9d0;EVIL\x9c",
    "dcs": "\x1bP+qEVIL\x1b\\",
    "apc": "\x1b_EVIL\x1b\\",
    "bidi": "\u202eEVIL\u202c",
    "unterminated": "\x1b]0;EVIL",
}


def _take_terminal() -> None:
    """In the new process: its standard input becomes the terminal that controls it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(
        self,
        steps: Sequence[object],
        *arguments: str,
        environment: Mapping[str, str] = {},
        controls: bool = False,
    ) -> None:
        """`steps` are those of one answer, or of several.

        `controls`: the terminal is the one that controls the process, as a shell's is.
        """
        answers = steps if steps and isinstance(steps[0], list) else [steps]
        self._ours, theirs = pty.openpty()
        self.at_start = self.attributes()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(answers=answers), *arguments],
            cwd=ROOT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, **SCREEN, **environment},
            start_new_session=True,
            preexec_fn=_take_terminal if controls else None,
        )
        os.close(theirs)
        self.output = b""

    def attributes(self) -> list[Any]:
        """Those of the process's side: the kernel has one set for both."""
        return termios.tcgetattr(self._ours)

    def set_attributes(self, attributes: list[Any]) -> None:
        """As a shell does that gets the terminal."""
        termios.tcsetattr(self._ours, termios.TCSANOW, attributes)

    def private_modes(self) -> dict[int, bool]:
        """Which modes were switched on or off last, by all that was written until now."""
        found = re.findall(rb"\x1b\[\?(\d+)([hl])", self.output)
        return {int(number): switch == b"h" for number, switch in found}

    def read_until(self, wanted: bytes) -> None:
        until = time.monotonic() + 2 * WAIT_SECONDS
        while wanted not in self.output:  # a cursor that blinks goes on writing
            assert time.monotonic() < until, self.output[-2000:]
            assert self._read(), self.output[-2000:]

    def shows(self, wanted: bytes, seconds: float) -> bool:
        """Whether something comes within a while."""
        until = time.monotonic() + seconds
        while wanted not in self.output:
            if not select.select([self._ours], [], [], max(until - time.monotonic(), 0))[0]:
                return False
            assert self._read(), self.output[-2000:]
        return True

    def take(self) -> None:
        """Takes what is there, without waiting."""
        while select.select([self._ours], [], [], 0)[0] and self._read():
            pass

    def read_all(self) -> bytes:
        output = self.read_all_but_close()
        os.close(self._ours)
        return output

    def read_all_but_close(self) -> bytes:
        """Until the process ends; its terminal can still be looked at."""
        while self._read():
            pass
        return self.output

    def write(self, text: bytes) -> None:
        os.write(self._ours, text)

    def vanish(self) -> None:
        """The window is closed: nobody reads any more."""
        os.close(self._ours)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], WAIT_SECONDS)
        assert ready, self.output[-2000:]
        try:
            chunk = os.read(self._ours, 1 << 16)
        except OSError:  # the other side has been closed
            return False
        self.output += chunk
        return bool(chunk)


SHOWN = {"bidi": "before EVILafter", "unterminated": "before"}


@pytest.mark.parametrize("name", PAYLOADS)
def test_run_on_a_terminal_is_sanitized(name: str) -> None:
    payload = PAYLOADS[name]
    middle = len(payload) // 2
    steps = ["before ", payload[:middle], payload[middle:], "after"]
    terminal = Terminal(steps, "run", "m", "-p", "x")
    output = terminal.read_all().decode()
    assert terminal.process.wait(WAIT_SECONDS) == 0
    assert output.strip() == SHOWN.get(name, "before after")
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]", output)


def test_run_into_a_pipe_is_left_as_it_is() -> None:
    payload = "".join(PAYLOADS.values())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(answers=[[payload]]), "run", "m", "-p", "x"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == payload + "\n"


def test_the_chat_lets_no_sequence_through_and_gives_the_terminal_back() -> None:
    hostile = "".join(payload for name, payload in PAYLOADS.items() if name not in SHOWN)
    terminal = Terminal(["begin ", hostile, " finish"], "chat", "m")
    terminal.read_until(b"ready")
    terminal.write(b"hello\r")
    terminal.read_until(b"finish")
    terminal.write(b"\x11")
    output = terminal.read_all()
    assert terminal.process.wait(WAIT_SECONDS) == 0
    assert b"\x1b]52" not in output
    assert b"\x1b]0;" not in output
    assert b"\x1b]8;" not in output
    assert b"EVIL" not in output
    assert b"\x1b[?1049l" in output
    assert b"Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_in_order_and_saves(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    terminal = Terminal(["half", 60.0], "chat", "m")
    terminal.read_until(b"ready")
    terminal.write(b"hello\r")
    terminal.read_until(b"half")
    terminal.process.send_signal(number)
    output = terminal.read_all()
    assert terminal.process.wait(WAIT_SECONDS) == 128 + number
    with SessionStore(tmp_path / "sessions.db") as store:
        texts = [turn.text for turn in store.load(1).conversation.path()]
    assert texts == ["hello", "half"]
    assert b"\x1b[?1049l" in output
    assert b"Traceback" not in output


@pytest.mark.parametrize("controls", [True, False])
def test_a_terminal_that_vanishes_takes_the_chat_along(controls: bool) -> None:
    # Enough to say that output is waiting for a reader when the terminal goes.
    terminal = Terminal(["many words "] * 4000, "chat", "m")
    terminal.read_until(b"ready")
    terminal.write(b"hello\r")
    terminal.read_until(b"many words")
    terminal.vanish()
    if controls:
        # Not a controlling terminal here, so the kernel does not send what a shell's would get.
        terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait(WAIT_SECONDS) == 128 + signal.SIGHUP
