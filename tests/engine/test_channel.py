"""The channel between application and engine: order, what supersedes, and ends that go wrong."""

from __future__ import annotations

import os
import queue
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import ClassVar

import pytest

from flashllm.engine.process.channel import Channel

WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Progress:
    done: int
    supersedes: ClassVar[bool] = True


class End:
    """A channel at one end of a connection, and what it was told."""

    def __init__(self, connection: Connection, pause_seconds: float = 0.0) -> None:
        self.messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.ends: list[str] = []
        self.is_over = threading.Event()
        self.channel = Channel(connection, self.messages.put, self._end, pause_seconds)
        self.channel.start()

    def _end(self) -> None:
        self.ends.append("end")
        self.is_over.set()


@pytest.fixture
def pipe() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


def test_messages_of_all_sizes_come_in_order(pipe: tuple[Connection, Connection]) -> None:
    ours, theirs = End(pipe[0]), End(pipe[1], pause_seconds=0.01)
    said = ["", "x" * 20_000, "y" * (1 << 23), *map(str, range(200))]
    for number, message in enumerate(said):
        theirs.channel.send(message, urgent=number % 7 == 0)
    assert [ours.messages.get(timeout=WAIT_SECONDS) for _ in said] == said
    theirs.channel.close(WAIT_SECONDS)
    assert ours.is_over.wait(WAIT_SECONDS)
    ours.channel.close(WAIT_SECONDS)
    assert theirs.is_over.wait(WAIT_SECONDS)
    assert (ours.ends, theirs.ends) == (["end"], ["end"])


def test_what_was_said_before_the_end_still_comes(pipe: tuple[Connection, Connection]) -> None:
    ours, theirs = End(pipe[0]), End(pipe[1], pause_seconds=WAIT_SECONDS)
    theirs.channel.send("first")
    assert ours.messages.get(timeout=WAIT_SECONDS) == "first"
    for done in range(100):
        theirs.channel.send(Progress(done), urgent=False)
    theirs.channel.send("last", urgent=False)
    theirs.channel.close(WAIT_SECONDS)
    theirs.channel.send("never")
    assert ours.messages.get(timeout=WAIT_SECONDS) == Progress(99)
    assert ours.messages.get(timeout=WAIT_SECONDS) == "last"
    assert ours.is_over.wait(WAIT_SECONDS)
    assert ours.messages.empty()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0\0",
        struct.pack("!i", 100) + b"x" * 99,
        struct.pack("!iQ", -1, (1 << 32) + 1),
        struct.pack("!iQ", -1, (1 << 64) - 1),
    ],
    ids=["nothing", "half a size", "half a message", "too large", "absurd"],
)
def test_what_is_no_message_ends_it(said: bytes, pipe: tuple[Connection, Connection]) -> None:
    ours, theirs = pipe
    end = End(ours)
    os.write(theirs.fileno(), said)
    if len(said) < 12 or said[:1] == b"\0":
        theirs.close()
    assert end.is_over.wait(WAIT_SECONDS)
    assert end.ends == ["end"]
    assert end.messages.empty()
    end.channel.send("nobody listens")
    end.channel.close(WAIT_SECONDS)


def test_a_thread_that_reads_is_woken(pipe: tuple[Connection, Connection]) -> None:
    end = End(pipe[0])
    end.channel.shut_down()
    assert end.is_over.wait(WAIT_SECONDS)
    end.channel.shut_down()  # a second time nothing is left to do
    end.channel.close(WAIT_SECONDS)
