"""Opens the installed chat in a terminal, asks it for a word, and leaves: `PYTHON open_chat.py`.

For an environment that has the wheel and nothing else; so it needs the standard library alone.
Exit code 1, with what was on the screen, where the answer does not come.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time

SECONDS = 120.0
QUESTION = b"What does ocean mean?\r"
ANSWER = "body of water"
READY = "Ask something"


class Chat:
    """The chat in a terminal of 100 columns and 30 lines."""

    def __init__(self, home: str) -> None:
        self.screen = ""
        environment = {
            "PATH": os.path.dirname(sys.executable),
            "HOME": home,
            "FLASHLLM_HOME": home,
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        }
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(home)
            os.execve(sys.executable, [sys.executable, "-m", "flashllm", "chat"], environment)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))

    def wait_for(self, text: str) -> bool:
        """Whether the text comes in time."""
        end = time.monotonic() + SECONDS
        while text not in self.screen and time.monotonic() < end:
            if not select.select([self.terminal], [], [], 1.0)[0]:
                continue
            try:
                self.screen += os.read(self.terminal, 65536).decode(errors="replace")
            except OSError:
                break
        return text in self.screen

    def leave(self) -> int:
        """Ctrl+Q; the exit code."""
        os.write(self.terminal, b"\x11")
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if select.select([self.terminal], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    os.read(self.terminal, 65536)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, 9)
        return -1


def main() -> int:
    """Returns the exit code."""
    with tempfile.TemporaryDirectory() as home:
        chat = Chat(home)
        start = time.monotonic()
        if not chat.wait_for(READY):
            print(chat.screen[-2000:], "the chat did not open", sep="\n")
            return 1
        opened = time.monotonic() - start
        os.write(chat.terminal, QUESTION)
        if not chat.wait_for(ANSWER):
            print(chat.screen[-2000:], "the chat did not answer", sep="\n")
            return 1
        answered = time.monotonic() - start
        code = chat.leave()
        print(f"open after {opened:.1f} s, answered after {answered:.1f} s, exit code {code}")
        return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
