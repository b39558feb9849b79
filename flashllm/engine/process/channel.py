"""Messages between two processes over a socket: none is lost, and they come in order.

One thread sends, so that callers never wait for the other end; another reads. Messages that are not
urgent are collected and sent together, which limits how often tokens cross per second.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_FRAME_BYTES_MAX = 1 << 32


class Channel:
    """One end. `on_message` and, once, `on_end` are called by the thread that reads."""

    def __init__(
        self,
        connection: Connection,
        on_message: Callable[[object], None],
        on_end: Callable[[], None],
        pause_seconds: float = 0.0,
    ) -> None:
        """`pause_seconds` is the least time between two batches of messages that are not urgent."""
        self._connection = connection
        self._on_message = on_message
        self._on_end = on_end
        self._pause_seconds = pause_seconds
        self._changed = threading.Condition()
        self._pending: list[object] = []
        self._urgent = False
        self._closed = False
        self._sender = threading.Thread(target=self._send_all, name="engine-send", daemon=True)
        self._reader = threading.Thread(target=self._read_all, name="engine-read", daemon=True)

    def start(self) -> None:
        """Starts both threads."""
        self._sender.start()
        self._reader.start()

    def send(self, message: object, urgent: bool = True) -> None:
        """Sends a message, at once or together with later ones; does nothing after `close`."""
        with self._changed:
            if self._closed:
                return
            is_gathering = bool(self._pending)
            last = self._pending[-1] if self._pending else None
            if getattr(message, "supersedes", False) and type(last) is type(message):
                self._pending.pop()
            self._pending.append(message)
            self._urgent = self._urgent or urgent
            if urgent or not is_gathering:
                # The sending thread wakes by timeout: each extra wake-up would take the interpreter
                # from the thread that writes the answer, and a processor from the one that computes
                # it.
                self._changed.notify_all()

    def close(self, seconds: float = 0.0) -> None:
        """Sends the messages given so far, within `seconds`, and then no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._sender.is_alive() and threading.current_thread() is not self._sender:
            self._sender.join(seconds)

    def shut_down(self, how: int = socket.SHUT_RDWR) -> None:
        """Ends one way or both, also for a thread that reads or sends at this moment."""
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(self._connection.fileno())) as connection,
        ):
            connection.shutdown(how)

    def _send_all(self) -> None:
        try:
            sent_at = -self._pause_seconds
            while (batch := self._next_batch(sent_at + self._pause_seconds)) is not None:
                sent_at = time.monotonic()
                self._connection.send_bytes(pickle.dumps(batch, pickle.HIGHEST_PROTOCOL))
        except OSError:  # the other end has gone; the reader tells
            pass
        finally:
            # Also after a bug: better a lost engine than one that waits for ever.
            self.shut_down(socket.SHUT_WR)

    def _next_batch(self, not_before: float) -> list[object] | None:
        """The next messages to send; None after `close`, when all have been sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closed)
            self._changed.wait_for(
                lambda: self._urgent or self._closed, max(not_before - time.monotonic(), 0.0)
            )
            batch, self._pending, self._urgent = self._pending, [], False
            return batch or None

    def _read_all(self) -> None:
        try:
            for frame in self._frames():
                for message in pickle.loads(frame):  # noqa: S301  from our own process
                    self._on_message(message)
        finally:
            self._on_end()

    def _frames(self) -> Iterator[bytes]:
        """What comes, until the other end has gone or says a size that nothing has."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                yield self._connection.recv_bytes(_FRAME_BYTES_MAX)
