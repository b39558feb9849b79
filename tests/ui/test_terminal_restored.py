"""The terminal is as it was before, byte for byte, however the chat was stopped, or ended."""

from __future__ import annotations

import signal
import termios
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flashllm.ui.terminal.hang_exit import HANG_SECONDS, PRESSES, HangExit
from tests.support.screens import WAIT_SECONDS
from tests.ui.test_terminal import Terminal

ALTERNATE, CURSOR, PASTE, FOCUS, WRAP = 1049, 25, 2004, 1004, 7
MOUSE = (1000, 1003, 1006, 1015, 1016)
CTRL_C, CTRL_Q, CTRL_Z = b"\x03", b"\x11", b"\x1a"
STOPS = 20
HANGING = """
import asyncio, os, sys, time
from pathlib import Path
from flashllm.cli.main import main
from flashllm.cli.shared import open_model as opening
from flashllm.library.names import ModelNames, NamedModel
from flashllm.ui.chat.screen import ChatScreen
from tests.support.fake_engine import FakeLauncher, FakeModel
ModelNames.find = lambda self, text: NamedModel.at(Path(text))  # no model of that name is needed
answers = {answers!r}
class Model(FakeModel):
    def cancel(self):
        pass  # the engine hangs: it hears nothing
opening.start_launcher = lambda arguments: FakeLauncher(Model(*answers))
def begin():
    Path(os.environ["FLASHLLM_HOME"], "hangs").touch()
def block(self):
    begin()
    time.sleep(600)
async def wait_for_ever(self):
    begin()
    await asyncio.sleep(600)
def crash(self):
    raise RuntimeError("a bug in the chat")
ChatScreen.action_io_panel, ChatScreen.action_neuron_map = block, wait_for_ever
ChatScreen.action_sessions = crash
sys.exit(main(sys.argv[1:]))
"""
REAL_PROCESS = """
import sys
from pathlib import Path
from flashllm.cli.main import main
from flashllm.cli.shared import open_model as opening
from flashllm.engine.process.launcher import EngineLauncher
from flashllm.library.names import ModelNames, NamedModel
from flashllm.options import DEFAULT_OPTIONS
ModelNames.find = lambda self, text: NamedModel.at(Path(text))  # no model of that name is needed
opener = "tests.support.engine_openers:open_engine"
opening.start_launcher = lambda arguments: EngineLauncher(DEFAULT_OPTIONS, opener)
sys.exit(main(sys.argv[1:]))  # {answers}
"""
F2, F3, F4 = b"\x1bOQ", b"\x1bOR", b"\x1bOS"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))


def wait_until(condition: Callable[[], bool], terminal: Terminal) -> None:
    """Output is taken meanwhile, since a full terminal would stop whatever writes."""
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until, terminal.output[-2000:]
        terminal.shows(b"never there", 0.01)


def is_stopped(terminal: Terminal) -> bool:
    return psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED


def is_raw(terminal: Terminal) -> bool:
    return not terminal.attributes()[3] & (termios.ICANON | termios.ECHO | termios.ISIG)


def stop_and_go_on(terminal: Terminal, *, as_a_shell: bool) -> None:
    """SIGSTOP and SIGCONT; a shell gives the terminal its own attributes in between."""
    terminal.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(terminal), terminal)
    if as_a_shell:
        terminal.set_attributes(terminal.at_start)
    go_on(terminal)


def go_on(terminal: Terminal) -> None:
    """SIGCONT, until all is drawn again."""
    drawn = terminal.output.count(b"ready")
    terminal.process.send_signal(signal.SIGCONT)
    wait_until(lambda: is_raw(terminal), terminal)
    wait_until(lambda: terminal.output.count(b"ready") > drawn, terminal)


def press_until_it_ends(terminal: Terminal, key: bytes) -> int:
    """How often a key was pressed, at the pace of a user who has lost patience."""
    until, presses = time.monotonic() + WAIT_SECONDS, 0
    while terminal.process.poll() is None:
        assert time.monotonic() < until, terminal.output[-2000:]
        terminal.write(key)
        presses += 1
        time.sleep(0.5)
        terminal.take()
    return presses


def check_restored(terminal: Terminal, code: int | None) -> bytes:
    """At the end of the process: all is as it was, and nothing was left switched on."""
    output = terminal.read_all_but_close()
    assert terminal.process.wait(WAIT_SECONDS) == code, output[-2000:]
    assert terminal.attributes() == terminal.at_start
    modes = terminal.private_modes()
    assert not modes.get(ALTERNATE)
    assert modes[CURSOR]
    assert not modes[PASTE]
    assert not modes[FOCUS]
    assert modes.get(WRAP, True)
    assert not any(modes[number] for number in MOUSE)
    pushed, popped = output.count(b"\x1b[>25u"), output.count(b"\x1b[<u")
    assert popped >= pushed, "the keyboard's protocol is left on"
    assert b"Traceback" not in output
    return output


@pytest.mark.parametrize("options", [[], ["--inline"]])
def test_twenty_stops_leave_no_trace_and_the_chat_works(options: list[str]) -> None:
    terminal = Terminal(["fine"], "chat", "m", *options, controls=True)
    terminal.read_until(b"ready")
    for number in range(STOPS):
        stop_and_go_on(terminal, as_a_shell=number % 2 == 0)
    threads = psutil.Process(terminal.process.pid).num_threads()
    terminal.write(b"hello\r")
    terminal.read_until(b"fine")
    assert threads < STOPS, "no stop leaves a thread behind"
    terminal.write(CTRL_Q)
    check_restored(terminal, 0)


def test_a_shell_gets_the_terminal_and_gives_it_back() -> None:
    # The shell's side of a suspended job: SIGTSTP to it, and SIGCONT for `fg`.
    terminal = Terminal(["fine"], "chat", "m", controls=True)
    terminal.read_until(b"ready")
    for _ in range(3):
        terminal.process.send_signal(signal.SIGTSTP)
        wait_until(lambda: is_stopped(terminal), terminal)
        terminal.shows(b"never there", 0.05)
        assert terminal.attributes() == terminal.at_start
        modes = terminal.private_modes()
        assert modes[CURSOR]
        assert not any(modes[number] for number in (ALTERNATE, PASTE, FOCUS, *MOUSE))
        go_on(terminal)
    terminal.write(b"hello\r")
    terminal.read_until(b"fine")
    terminal.write(CTRL_Q)
    check_restored(terminal, 0)


def test_ctrl_z_does_nothing_where_there_is_no_shell() -> None:
    terminal = Terminal(["fine"], "chat", "m", controls=True)
    terminal.read_until(b"ready")
    terminal.write(CTRL_Z)
    terminal.read_until(b"no shell to go to")
    terminal.write(CTRL_Q)
    check_restored(terminal, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_a_stop(number: signal.Signals) -> None:
    terminal = Terminal(["fine"], "chat", "m", controls=True)
    terminal.read_until(b"ready")
    stop_and_go_on(terminal, as_a_shell=True)
    terminal.process.send_signal(number)
    check_restored(terminal, 128 + number)


def test_a_signal_while_it_is_stopped() -> None:
    terminal = Terminal(["fine"], "chat", "m", controls=True)
    terminal.read_until(b"ready")
    terminal.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(terminal), terminal)
    terminal.process.send_signal(signal.SIGTERM)
    terminal.process.send_signal(signal.SIGCONT)
    check_restored(terminal, 128 + signal.SIGTERM)


def test_a_crash_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.ui.test_terminal.SCRIPT", HANGING)
    terminal = Terminal(["fine"], "chat", "m", controls=True)
    terminal.read_until(b"ready")
    stop_and_go_on(terminal, as_a_shell=False)
    terminal.write(F4)
    assert b"the chat broke off" in check_restored(terminal, 1)


def test_an_engine_that_is_killed_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.ui.test_terminal.SCRIPT", REAL_PROCESS)
    terminal = Terminal([], "chat", "endless", controls=True)
    terminal.read_until(b"ready")
    stop_and_go_on(terminal, as_a_shell=True)
    terminal.write(b"hello\r")
    terminal.read_until(b"begun")
    [engine] = psutil.Process(terminal.process.pid).children()
    engine.kill()
    terminal.read_until(b"was killed")
    terminal.write(CTRL_Q)
    check_restored(terminal, 0)


@pytest.mark.parametrize("hangs", [F2, F3], ids=["event loop", "queue of messages"])
@pytest.mark.parametrize("key", [CTRL_C, CTRL_Q])
def test_a_chat_that_hangs_can_be_left(
    hangs: bytes, key: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.ui.test_terminal.SCRIPT", HANGING)
    terminal = Terminal(["fine"], "chat", "m", controls=True)
    terminal.read_until(b"ready")
    terminal.write(hangs)
    wait_until((tmp_path / "hangs").exists, terminal)
    presses = press_until_it_ends(terminal, key)
    assert presses >= PRESSES
    assert b"the chat did not answer" in check_restored(terminal, 130)


def test_an_engine_that_hangs_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.ui.test_terminal.SCRIPT", HANGING)
    terminal = Terminal(["half", 600.0], "chat", "m", controls=True)
    terminal.read_until(b"ready")
    terminal.write(b"hello\r")
    terminal.read_until(b"half")
    terminal.write(CTRL_Q)
    check_restored(terminal, 0)


def test_only_a_chat_that_hangs_is_left_by_force() -> None:
    events: list[str] = []
    times = iter([float(second) for second in range(10)])
    way_out = HangExit(
        lambda: events.append("ask"), lambda: events.append("leave"), lambda: next(times)
    )
    for _ in range(10):  # it answers
        way_out.pressed()
        way_out.answered()
    assert events == ["ask"] * 10
    events.clear()
    times = iter([0.0, 0.1, 0.2, HANG_SECONDS - 0.1, HANG_SECONDS + 0.1])
    for _ in range(4):  # slow, perhaps
        way_out.pressed()
    assert events == ["ask"]
    way_out.pressed()
    assert events == ["ask", "leave"]
