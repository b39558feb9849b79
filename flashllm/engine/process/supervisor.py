"""The application's side of the engine's process: starts it, sends it messages, ends it.

No torch here. The child (`worker`) is reached over a socket. When it ends, for whatever reason,
everybody who waits for it gets an `EngineLost`, and the application goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from flashllm.engine.process import messages as messages
from flashllm.engine.process.channel import Channel
from flashllm.errors import EngineLost, FlashllmError
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CLOSE_SECONDS = 1.5
REAP_SECONDS = 2.0
LOG_LINE_CHARACTERS = 2000

# The child sees the modules that this process sees, and nothing of the folder it is started in.
_CHILD = "import sys; sys.path[:] = sys.argv[3:]; from flashllm.engine.process.worker import main; "
_CHILD += "main(sys.argv[1:3])"

_log = logging.getLogger("flashllm.engine")
_log.addHandler(logging.NullHandler())  # else, without a log, it would write to the terminal
Listener = Callable[[object], None]
OnLost = Callable[[EngineLost], None]
OnWarming = Callable[[float], None]


class WorkerSupervisor:
    """A child process that opens one model. It starts at once and loads what that needs."""

    def __init__(self, opener: str) -> None:
        """`opener` is the module:function that the child calls to open the engine.

        `EngineLost` if no process can be started.
        """
        self._child, ours = _start(opener)
        self._connection = ours
        self._numbers = itertools.count(messages.OPENING + 1)
        self._lock = threading.Lock()
        self._opening: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._listeners: dict[int, Listener] = {messages.OPENING: self._opening.put}
        self._lost: EngineLost | None = None
        self._on_lost: OnLost | None = None
        self._closed = False
        self._channel = Channel(ours, self._on_message, self._on_lost_channel)
        self._channel.start()
        threading.Thread(target=self._keep_log, name="engine-log", daemon=True).start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def next_opening_message(self) -> object:
        """Waits for the next message about opening the model."""
        return self._opening.get()

    def ask(self, message: Callable[[int], object], listener: Listener) -> int:
        """Sends `message(number)` with a new number; the listener gets the replies to it.

        If the engine is lost, the listener gets an `EngineLost` last.
        """
        with self._lock:
            number = next(self._numbers)
            lost = self._lost
            if lost is None:
                self._listeners[number] = listener
        if lost is not None:
            listener(lost)
        self._channel.send(message(number))
        return number

    def send(self, message: object) -> None:
        """Sends a message without a reply; does nothing if the child is gone."""
        self._channel.send(message)

    def watch(self, on_lost: OnLost) -> None:
        """Calls `on_lost`, from any thread, when the child ends without being closed."""
        with self._lock:
            self._on_lost, lost = on_lost, self._lost
        if lost is not None and not self._closed:
            on_lost(lost)

    def watch_warming(self, on_warming: OnWarming) -> None:
        """Calls `on_warming`, from a thread, with the share that an idle engine has read ahead."""

        def take(message: object) -> None:
            if isinstance(message, messages.Warming):
                on_warming(message.share)

        with self._lock:
            self._listeners[messages.WARMING] = take

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Ends the child, and kills it after `seconds`. From any thread; may be called again."""
        self._closed = True
        self._channel.send(messages.Close())
        self._channel.close(seconds / 8)
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # not even that: a disk that hangs
                self._child.wait(seconds / 8)
        self._channel.shut_down()

    def _on_message(self, message: object) -> None:
        number: int = message.number  # type: ignore[attr-defined]
        with self._lock:
            listener = self._listeners.get(number)
            if isinstance(message, messages.FINAL_MESSAGES):
                self._listeners.pop(number, None)
        if listener is not None:
            listener(message)

    def _on_lost_channel(self) -> None:
        """Called by the reader thread when the connection has ended."""
        try:
            code = self._child.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = None
        lost = EngineLost("the engine was closed" if self._closed else _lost_text(code))
        if not self._closed:
            _log.error("%s", lost)
        with self._lock:
            self._lost = lost
            listeners = list(self._listeners.values())
            self._listeners.clear()
            on_lost = None if self._closed else self._on_lost
        self._channel.close(REAP_SECONDS)  # nobody sends on a descriptor that is closed
        self._connection.close()
        for listener in listeners:
            listener(lost)
        if on_lost is not None:
            on_lost(lost)

    def _keep_log(self) -> None:
        assert self._child.stderr is not None
        with self._child.stderr as lines:
            while line := lines.readline(LOG_LINE_CHARACTERS):
                _log.warning("%s", sanitize_line(line.decode("utf-8", "replace").rstrip()))


def _start(opener: str) -> tuple[subprocess.Popen[bytes], Connection]:
    """A child, and our end of the connection to it."""
    from multiprocessing.connection import Pipe  # 3 ms, which the first frame does not wait for

    try:
        ours, theirs = Pipe()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            child = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno()), opener, *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C on the terminal is for the application
            )
            undo.pop_all()
    except OSError as error:
        raise EngineLost(
            f"the engine's process cannot be started ({error.strerror}); close other programs"
            " and try again"
        ) from error
    return child, ours


def error_of(message: object) -> BaseException:
    """The error to raise for a message that is no reply."""
    if isinstance(message, messages.Raised):
        return message.failure.error()
    assert isinstance(message, FlashllmError), message
    return message


def _lost_text(code: int | None) -> str:
    """A sentence about how a child ended, by its exit code, and what to do."""
    again = "/retry opens the model again"
    if code is None:
        return f"the engine's process does not answer; {again}"
    if code == -signal.SIGKILL:
        return (
            "the engine's process was killed, which happens where memory runs out; "
            f"{again}, and a smaller --memory may keep it alive"
        )
    # Not by `Signals(number)`: a few numbers have no name there.
    name = next((known.name for known in signal.Signals if known == -code), str(-code))
    how = f"crashed ({name})" if code < 0 else f"ended (exit code {code})"
    return f"the engine's process {how}; {again}, and the log may say more"
