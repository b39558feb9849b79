"""Messages between two processes over a socket: none is lost, and they come in order.

One thread sends, so that callers never wait for the other end; another reads. Messages that are not
urgent are collected and sent together, which limits how often tokens cross per second.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable

_HEADER = struct.Struct("!Q")
_FRAME_BYTES_MAX = 1 << 32


class Channel:
    """One end. `on_message` and, once, `on_end` are called by the thread that reads."""

    def __init__(
        self,
        connection: socket.socket,
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

    def _send_all(self) -> None:
        try:
            sent_at = -self._pause_seconds
            while (batch := self._next_batch(sent_at + self._pause_seconds)) is not None:
                sent_at = time.monotonic()
                frame = pickle.dumps(batch, pickle.HIGHEST_PROTOCOL)
                self._connection.sendall(_HEADER.pack(len(frame)) + frame)
        except OSError:  # the other end has gone; the reader tells
            pass
        finally:
            # Also after a bug: a lost engine is better than one that waits for ever.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

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
            while header := self._receive(_HEADER.size):
                (size,) = _HEADER.unpack(header)
                assert size <= _FRAME_BYTES_MAX
                frame = self._receive(size)
                if frame is None:
                    break
                for message in pickle.loads(frame):  # noqa: S301  from our own process
                    self._on_message(message)
        finally:
            self._on_end()

    def _receive(self, size: int) -> bytearray | None:
        """Receives `count` bytes; None if the other end closes before."""
        received = bytearray(size)
        view = memoryview(received)
        while view:
            try:
                count = self._connection.recv_into(view)
            except OSError:
                return None
            if not count:
                return None
            view = view[count:]
        return received
