"""Hundreds of escape sequences through a real pseudo-terminal: none of them acts on it."""

from __future__ import annotations

import re

from tests.support.payloads import PAYLOADS, SECRET, pieces
from tests.support.screens import WAIT_SECONDS
from tests.ui.test_terminal import Terminal

BATCH = 50
"""Payloads of one answer: what fits on the screen together, so that all of them are drawn."""
HARMFUL = re.compile(
    f"[\x80-\x9f\u202a-\u202e\u2066-\u2069]|{SECRET}|\x1b(?:[cP_X^]|\\]|#8|[(][0B])"
)
"""No byte of a payload, and none of what its kind looks like; the application itself draws with
CSI alone, but for the shape of the mouse's pointer."""
POINTER = re.compile("\x1b]22;[a-z-]*\x07")


def test_there_are_as_many_as_we_say() -> None:
    assert len({payload.text for payload in PAYLOADS}) == len(PAYLOADS) >= 250


def test_run_lets_none_through() -> None:
    steps = [step for n, payload in enumerate(PAYLOADS) for step in pieces(n, payload)]
    terminal = Terminal([step for step in steps if step], "run", "m", "-p", "x", "-n", "99999")
    output = terminal.read_all().decode()
    assert terminal.process.wait(WAIT_SECONDS) == 0
    words = [f"a{number}bc{number}d" for number in range(len(PAYLOADS))]
    assert output.split() == words, "what is not harmful is shown, and nothing else"
    assert not HARMFUL.search(output)


def test_the_chat_lets_none_through() -> None:
    numbered = list(enumerate(PAYLOADS))
    answers = [
        [
            step
            for n, payload in numbered[start : start + BATCH]
            for step in pieces(n, payload)
            if step
        ]
        for start in range(0, len(numbered), BATCH)
    ]
    terminal = Terminal(answers, "chat", "m", "--no-save")
    terminal.read_until(b"ready")
    for start in range(0, len(numbered), BATCH):
        last = min(start + BATCH, len(numbered)) - 1
        terminal.write(b"go")
        for _ in range(200):  # where the answer before has not ended yet, the question waits
            terminal.write(b"\r")
            if terminal.shows(f"c{last}d".encode(), 0.3):
                break
    terminal.write(b"\x11")
    output = POINTER.sub("", terminal.read_all().decode())
    assert terminal.process.wait(WAIT_SECONDS) == 0
    for number in range(len(PAYLOADS)):
        assert f"a{number}bc{number}d" in output, "what is not harmful is drawn"
    found = HARMFUL.search(output)
    assert not found, output[max(found.start() - 60, 0) : found.end() + 60]
