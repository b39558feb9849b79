"""`kill -9` in mid-answer, at any moment: all that was said to be saved is there afterwards."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from flashllm.conversations.store import SessionStore

# Saves growing answers; says what is saved only once it is.
CHILD = """
import itertools, sys
from flashllm.conversations.tree import Turn
from flashllm.conversations.writer import SessionWriter
writer = SessionWriter(sys.argv[1], print)
session = writer.create(name="killed")
writer.save_turn(session, Turn(1, None, "user", "a question"))
answer = Turn(2, 1, "assistant", "")
for index in itertools.count():
    answer.text += f"{index} "
    answer.ids += (index,)
    writer.save_turn(session, answer)
    if index % 3 == 0 and writer.flush(60):
        print(session.id, index, flush=True)
"""


@pytest.mark.parametrize("seed", range(10))
def test_what_was_saved_survives(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "chats.db"
    command = [sys.executable, "-c", CHILD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(random.Random(seed).randint(1, 60))]
        child.kill()
        said += child.stdout.readlines()  # what it had said before it was killed
    number, index = map(int, next(line for line in reversed(said) if line.endswith("\n")).split())
    with SessionStore(path) as store:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        session = store.load(number)
        store.save_leaf(number, 2)  # and it can be gone on with
    question, answer = session.conversation.path()
    assert question.text == "a question"
    words = answer.text.split()
    assert words == [str(word) for word in range(len(words))]
    assert len(words) > index
    assert answer.ids == tuple(range(len(words)))
    assert answer.finish_reason is None
