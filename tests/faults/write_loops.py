"""The Nth call that writes fails, in a process under the shim: the converter, the conversations.

    python -m tests.faults.write_loops DIRECTORY

A JSON line for each loop.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import sys
from pathlib import Path

from flashllm.convert import verify

from flashllm.conversations.store import SessionStore
from flashllm.conversations.tree import Turn
from flashllm.errors import CannotCreate, FlashllmError, NotEnoughSpace, SessionError
from tests.support.checkpoints import all_bytes
from tests.support.conversions import Convert, clear, conversions
from tests.support.fault_shim import ShimInjector, say
from tests.support.faults import EVERY, SHORT, Failure, Tally, check_handles, handles

CALLS = ("write", "fsync", "rename", "space", "names")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
CODES = {"ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT, "EIO": errno.EIO, "short": SHORT}


def write_loops(directory: Path) -> None:
    """All of them."""
    for name, convert in conversions(directory).items():
        for calls, kind, for_ever in _cases():
            tally = fail_conversion(convert, directory / name, calls, CODES[kind], for_ever)
            _report(name, calls, kind, for_ever, tally)
    for calls, kind, for_ever in _cases():
        if calls != "rename":
            tally = fail_saving(directory / "home", calls, CODES[kind], for_ever)
            _report("conversations", calls, kind, for_ever, tally)


def _cases() -> list[tuple[str, str, bool]]:
    cases = [
        (calls, kind, for_ever)
        for calls in CALLS
        for kind, code in CODES.items()
        for for_ever in (False, True)
        if code > 0 or calls == "write"
    ]
    some = [("write", "ENOSPC", True), ("write", "short", True), ("fsync", "EIO", False)]
    return cases if EVERY else [case for case in cases if case in some]


def _report(what: str, calls: str, kind: str, for_ever: bool, tally: Tally) -> None:
    say(
        loop="writes", what=what, calls=calls, kind=kind, for_ever=for_ever,
        runs=tally.runs, errors=tally.errors,
    )  # fmt: skip


def fail_conversion(
    convert: Convert, directory: Path, calls: str, code: int, for_ever: bool
) -> Tally:
    """Converts again and again: a model that is as it should be, or an error and no model."""
    directory.mkdir(exist_ok=True)
    destination = directory / "model"
    convert(destination)
    expected = all_bytes(destination)
    clear(directory)
    injector, tally, nth, fired = ShimInjector(calls, str(directory)), Tally(), 1, 1
    before = handles()
    while fired:
        where, failure = f"{calls} {nth}, code {code}", None
        injector.arm(code, nth, for_ever=for_ever)
        try:
            convert(destination)
        except FlashllmError as problem:
            failure = Failure.of(problem)
        finally:
            fired = injector.disarm()
        expects = NotEnoughSpace if code in NO_SPACE else CannotCreate
        assert failure is None or issubclass(failure.kind, expects), (where, failure)
        check_handles(before, (where, failure))
        if destination.exists():  # the last fsync may fail behind the renaming
            assert failure is None or calls == "fsync", (where, failure)
            assert verify(destination).ok, where
        else:
            assert failure is not None, where
            convert(destination)  # which takes up what was kept, where something was
        assert all_bytes(destination) == expected, where
        assert clear(directory) == [destination.name], where
        tally.count(failure)
        nth += 1 if EVERY else (19 if calls == "write" else 4)
    return tally


def fail_saving(home: Path, calls: str, code: int, for_ever: bool) -> Tally:
    """Saves again and again: what was there before stays, and saving works afterwards."""
    home.mkdir(exist_ok=True)
    path = home / "chats.db"
    _remove(home)
    with SessionStore(path) as store:
        first = store.create(name="kept")
        store.save_turn(first, Turn(1, None, "user", "a question"))
    injector, tally, nth, fired = ShimInjector(calls, str(home)), Tally(), 1, 1
    before = handles()
    while fired:
        where, failure = f"{calls} {nth}, code {code}", None
        injector.arm(code, nth, for_ever=for_ever)
        try:
            _save_one(path)
        except SessionError as problem:
            failure = Failure.of(problem)
        finally:
            fired = injector.disarm()
        is_full = for_ever and calls == "write" and code in NO_SPACE
        if failure is not None and is_full:  # and not only at that one call
            assert "no space left" in failure.words, where
        _save_one(path)
        with SessionStore(path) as store:
            assert store.load(first).conversation.turns[1].text == "a question", where
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok", where
        check_handles(before, (where, failure))
        tally.count(failure)
        nth += 1 if EVERY else 9
    return tally


def _save_one(path: Path) -> None:
    """A conversation that takes more than a page."""
    with SessionStore(path) as store:
        number = store.create(name="new")
        store.save_turn(number, Turn(1, None, "user", "why " * 1000))
        store.save_turn(number, Turn(2, 1, "assistant", "because " * 1000))
        assert len(store.load(number).conversation.turns) == 2


def _remove(home: Path) -> None:
    for path in home.iterdir():
        path.unlink()


if __name__ == "__main__":
    write_loops(Path(sys.argv[1]))
