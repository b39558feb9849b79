"""Start and end of the chat, through a real pseudo-terminal."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual import events

from flashllm.errors import UsageError
from flashllm.system.paths import config_file
from flashllm.ui.run import run_app
from flashllm.ui.widgets import themes
from tests.support.chat_pilot import make_app, ready
from tests.support.fake_engine import FakeModel
from tests.support.screens import WAIT_SECONDS, until
from tests.ui.test_terminal import ROOT, Terminal

RESTORED = b"\x1b[?1049l"
COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")
CRASHING = """
import sys
from flashllm.ui.app import ChatApp
from flashllm.ui.chat.screen import ChatScreen
from flashllm.cli.main import main
from flashllm.cli.shared import open_model as opening
from tests.support.fake_engine import FakeLauncher, FakeModel
from pathlib import Path
from flashllm.library.names import ModelNames, NamedModel
ModelNames.find = lambda self, text: NamedModel.at(Path(text))  # no model of that name is needed
opening.start_launcher = lambda arguments: FakeLauncher(FakeModel(["x"]))
def broken(self):
    secret = "what was typed"
    raise RuntimeError("a bug in the chat")
ChatScreen.action_help = broken
sys.exit(main(["chat", "m"]))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    monkeypatch.delenv("NO_COLOR", raising=False)
    return tmp_path


def after(output: bytes) -> str:
    """What was said once the terminal had been given back."""
    return output.rpartition(RESTORED)[2].decode()


def left(terminal: Terminal, key: bytes = b"\x11") -> bytes:
    """All that it had shown when this key had ended it."""
    terminal.read_until(b"ready")
    terminal.write(key)
    output = terminal.read_all()
    assert terminal.process.wait(WAIT_SECONDS) == 0
    return output


def configure(text: str) -> None:
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(text)


def test_it_says_where_the_conversation_and_the_log_are(home: Path) -> None:
    terminal = Terminal(["fine"], "chat", "m")
    terminal.read_until(b"ready")
    terminal.write(b"hello\r")
    terminal.read_until(b"fine")
    output = left(terminal)
    assert "flashllm: session 1 is kept; `flashllm chat --session 1` goes on" in after(output)
    assert f"flashllm: log: {home}" in after(output)


async def test_what_converts_is_not_loaded_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashllm.library.conversion_job", None)  # cannot be imported
    app = make_app(FakeModel([]))
    async with app.run_test() as pilot:
        await ready(pilot)
        await pilot.press("ctrl+q")
        await until(pilot, lambda: not app.is_running)
    monkeypatch.setattr(app, "run", lambda **_: None)
    assert run_app(app) == 0


def test_a_crash_is_one_line_and_a_traceback_in_the_log(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.ui.test_terminal.SCRIPT", CRASHING.replace("{", "{{"))
    terminal = Terminal([])
    terminal.read_until(b"ready")
    terminal.write(b"\x1bOP")
    output = terminal.read_all()
    assert terminal.process.wait(WAIT_SECONDS) == 1
    said = after(output)
    assert "flashllm: the chat broke off: unexpected: RuntimeError: a bug in the chat" in said
    assert b"Traceback" not in output
    assert b"what was typed" not in output
    [log] = home.rglob("*.log")
    assert "Traceback" in log.read_text()
    assert "RuntimeError: a bug in the chat" in log.read_text()


def test_no_colour_is_sent_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOUR.search(left(Terminal(["fine"], "chat", "m")))


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        ('[keys]\n"chat.stpo" = "ctrl+x"\n', 78, "config.toml:2: [keys] 'chat.stpo': there is"),
        ('[keys]\n"chat.stop" = "ctlr+x"\n', 78, "config.toml:2: [keys] 'chat.stop': 'ctlr+x' is"),
        ('[chat]\ntheme = "nrod"\n', 78, "config.toml:2: there is no theme 'nrod'; did you mean"),
    ],
)
def test_a_bad_configuration_is_named_before_anything_is_drawn(
    home: Path, config: str, code: int, words: str
) -> None:
    configure(config)
    terminal = Terminal([], "chat", "m")
    output = terminal.read_all()
    assert terminal.process.wait(WAIT_SECONDS) == code
    assert words in output.decode()
    assert b"\x1b[?1049h" not in output


def test_changed_keys_come_from_the_configuration(home: Path) -> None:
    configure('[keys]\n"chat.quit" = "ctrl+k"\n')
    left(Terminal([], "chat", "m"), b"\x0b")


def test_below_the_shells_prompt_the_screen_stays(home: Path) -> None:
    # Textual asks an inline terminal where the cursor is.
    assert b"\x1b[?1049h" not in left(Terminal(["fine"], "chat", "m", "--inline"))


def test_terminals_that_cannot_draw_are_refused() -> None:
    for name in ("dumb", "", "unknown"):
        with pytest.raises(UsageError, match="flashllm run"):
            themes.has_colour({"TERM": name})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, True),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}, False),
        ({"TERM": "vt100", "COLORTERM": "truecolor"}, True),
    ],
)
def test_whether_there_is_colour(environment: dict[str, str], expected: bool) -> None:
    assert themes.has_colour(environment) is expected


@pytest.mark.parametrize("name", ["vt100", "xterm-256color", "no-such-terminal"])
def test_a_terminal_that_knows_no_colours_gets_none(name: str) -> None:
    # In a process of its own: the description of a terminal is read once.
    script = f"""
import curses
from flashllm.ui.widgets.themes import has_colour
found = has_colour({{"TERM": {name!r}}})
try:
    curses.setupterm({name!r}, 1)
except curses.error:
    assert found
else:
    assert found == (curses.tigetnum("colors") >= 8)
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


async def test_keys_typed_fast_stay_in_order() -> None:
    async with make_app(FakeModel(["x"])).run_test() as pilot:
        app = await ready(pilot)
        for key, character in (("a", "a"), ("b", "b"), ("backspace", "\x7f"), ("c", "c")):
            app.chat.prompt.post_message(events.Key(key, character))
        await until(pilot, lambda: "c" in app.chat.prompt.text)
        await asyncio.sleep(0.05)
        assert app.chat.prompt.text == "ac"


def test_what_could_not_be_saved_is_said_at_the_end(home: Path) -> None:
    (home / "sessions.db").write_bytes(b"this is no database" * 1000)
    terminal = Terminal(["fine"], "chat", "m")
    terminal.read_until(b"ready")
    terminal.write(b"hello\r")
    terminal.read_until(b"not being saved")
    output = left(terminal)
    assert "flashllm: what was said last could not be saved" in after(output)
    assert "is kept" not in after(output)


async def test_a_signal_after_the_end_interrupts_no_saving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers: dict[int, Any] = {}
    ended = asyncio.new_event_loop()
    ended.close()
    app = make_app(FakeModel(["x"]))
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: ended)
    monkeypatch.setattr(threading, "Timer", lambda *_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(type(app), "is_headless", False)
    app.leave_on_signals()
    handlers[signal.SIGTERM](signal.SIGTERM, None)
