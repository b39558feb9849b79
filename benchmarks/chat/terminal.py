"""A program on a pseudo-terminal, and when each thing that it showed came."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from flashllm.errors import ReadFailed

WAIT_SECONDS = 120.0
PIECE_BYTES = 1 << 16
END_BYTES, END_CHARACTERS = 1 << 16, 1000
CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-9;?<>=$]*[A-Za-z]")
PLACE = re.compile(rb"\x1b\[[0-9]+;([0-9]+)H")
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class WrittenText:
    """Text between two control sequences, the first one behind a movement of the cursor."""

    column: int
    """Where the cursor was moved to, from 1."""
    text: str
    when: float
    """When its first character was there."""


def _own_terminal() -> None:
    """In the new process: its standard input becomes the terminal that controls it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class ChatTerminal:
    """A process, its screen, and all that it wrote, with times in seconds of `time.monotonic`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        columns: int = 100,
        rows: int = 30,
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(columns, rows)
        self.attributes_at_start = self.attributes()
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            start_new_session=True,
            # Its own terminal, so that the system ends it where this process is killed.
            preexec_fn=_own_terminal,
        )
        os.close(theirs)
        self._written = b""
        self._forgotten = 0
        self._pieces: list[tuple[float, int]] = []  # when, and how much there was then

    def __enter__(self) -> ChatTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)

    def rss_bytes(self) -> int:
        """Resident memory of the process, without those that it started."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def resize(self, columns: int, rows: int) -> None:
        """Gives the terminal another size, of which the kernel tells the process."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def attributes(self) -> list[Any]:
        """Those that the process has given to the terminal; both ends have the same."""
        return termios.tcgetattr(self._ours)

    @property
    def position(self) -> int:
        """How much was written until now."""
        return self._forgotten + len(self._written)

    def forget(self) -> None:
        """Drops what was written until now: nothing looks for it any more."""
        self._forgotten, self._written, self._pieces = self.position, b"", []

    @property
    def last_words(self) -> str:
        """The end of what was shown, without colours and places."""
        shown = CONTROL_SEQUENCE.sub(b" ", self._written[-END_BYTES:]).decode(errors="replace")
        return " ".join(shown.split())[-END_CHARACTERS:]

    def type(self, text: str) -> float:
        """Presses keys; returns when."""
        now = time.monotonic()
        os.write(self._ours, text.encode())
        return now

    def read(self, seconds: float) -> bool:
        """Takes what comes within so long; False at the end of all."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._ours], [], [], left)[0]:
                try:
                    piece = os.read(self._ours, PIECE_BYTES)
                except OSError:  # the other side is closed
                    return False
                self._written += piece
                self._pieces.append((time.monotonic(), self.position))
        return True

    def wait_for(self, text: str, since: int = 0, seconds: float = WAIT_SECONDS) -> float:
        """When `text` was first there behind position `since`; `ReadFailed` if it does not come."""
        _, at = self._find((text,), since, seconds)
        return self._when(at)

    def wait_for_any(self, texts: Sequence[str], seconds: float = WAIT_SECONDS) -> str:
        """The first of `texts` that is there; `ReadFailed` if none comes."""
        return self._find(texts, 0, seconds)[0]

    def _find(self, texts: Sequence[str], since: int, seconds: float) -> tuple[str, int]:
        """What came, and where it ended."""
        until = time.monotonic() + seconds
        start = max(since - self._forgotten, 0)
        while True:
            for text in texts:
                if (at := self._written.find(text.encode(), start)) >= 0:
                    return text, at + len(text.encode())
            if time.monotonic() > until or not self._read_some():
                wanted = " or ".join(map(repr, texts))
                raise ReadFailed(
                    f"the chat never showed {wanted}; it ended with {self.last_words!r}"
                )

    def texts(self, since: int) -> Iterator[WrittenText]:
        """What was written behind position `since`, where the cursor was moved for it."""
        start = max(since - self._forgotten, 0)
        for place in PLACE.finditer(self._written, start):
            at = place.end()
            while colour := COLOUR.match(self._written, at):
                at = colour.end()
            end = self._written.find(b"\x1b", at)
            raw = self._written[at : end if end >= 0 else len(self._written)]
            if raw:
                when = self._when(at + 1)
                yield WrittenText(int(place[1]), raw.decode(errors="replace"), when)

    def _when(self, written: int) -> float:
        """When so many of the bytes that are kept were there."""
        end = self._forgotten + written
        return next(when for when, size in self._pieces if size >= end)

    def _read_some(self) -> bool:
        before = self.position
        return self.read(0.005) or self.position > before
