"""`python -m benchmarks.soak`: what it finds in what was seen; a seed says what is done."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.soak import home, processes
from benchmarks.soak.actions import COLUMNS, KILL, ROWS, User
from benchmarks.soak.processes import APPLICATION, ENGINE, Look, ProcessUse, Watch, look_at
from benchmarks.soak.verdict import beginning_seconds, judge
from flashllm.conversations.store import SessionStore
from flashllm.ui.prompt.history import MEMORY_BYTES_MAX, InputHistory

MIB = 1 << 20
SECONDS = 1200.0
CEILING = 480 * MIB


def looks(
    rss_mib: Callable[[float], float] = lambda _: 100.0,
    descriptors: Callable[[float], int] = lambda _: 20,
    seconds: float = SECONDS,
) -> Iterator[Look]:
    """One look a second: the application as these say, the engine always the same."""
    for moment in range(int(seconds)):
        application = ProcessUse(APPLICATION, 1, int(rss_mib(moment) * MIB), descriptors(moment), 9)
        yield Look(float(moment), (application, ProcessUse(ENGINE, 2, 300 * MIB, 30, 40)))


def broken(found: Iterator[Look], seconds: float = SECONDS) -> list[str]:
    return [one.name for one in judge(list(found), CEILING, seconds) if not one.holds]


def test_a_flat_soak_holds_all_limits() -> None:
    assert broken(looks()) == []
    assert broken(looks(lambda moment: 100 + moment % 7 / 10)) == [], "up and down"
    assert broken(looks(lambda moment: 60 + min(moment, 200) / 5)) == [], "the beginning"


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (looks(lambda moment: 100 + moment / 400), ["RSS of the application, median"]),
        (looks(lambda moment: 181 if moment == 700 else 100), ["RSS of all processes, peak"]),
        (
            looks(descriptors=lambda moment: 20 + int(moment) // 600),
            ["descriptors of the application"],
        ),
    ],
)  # fmt: skip
def test_what_breaks_a_limit_is_named(found: Iterator[Look], names: list[str]) -> None:
    assert broken(found) == names


def engines(rss_mib: Callable[[int, float], float]) -> Iterator[Look]:
    """One engine after the other until a third of the time, and one that stays; each by its age."""
    begun = 0.0
    for look in looks():
        if look.seconds <= SECONDS / 3 and look.seconds % 100 == 0:
            begun = look.seconds
        number, age = int(begun // 100), look.seconds - begun
        engine = ProcessUse(ENGINE, 2 + number, int(rss_mib(number, age) * MIB), 30, 40)
        yield Look(look.seconds, (look.processes[0], engine))


def test_an_engine_grows_beside_itself() -> None:
    assert broken(engines(lambda _, age: 200 + min(age, 150) / 3)) == [], "it fills its slots"
    assert broken(engines(lambda number, _: 240 + 3 * number)) == [], "each had other prompts"
    assert broken(engines(lambda _, age: 200 + age / 100)) == ["RSS of the engine, median"]
    assert broken(engines(lambda number, _: 100 if number == 4 else 500)) == [
        "RSS of all processes, peak"
    ]


def test_what_long_prompts_take_for_a_while_is_told_and_not_judged() -> None:
    """More of them came at the end than at the beginning."""

    def rss_mib(_: int, age: float) -> float:
        return 250 + (6 if age % 20 < (3 if age > 600 else 1) else 0)

    findings = judge(list(engines(rss_mib)), CEILING, SECONDS)
    found = {one.name: one for one in findings}
    assert all(one.holds for one in findings)
    assert found["RSS of the engine, median"].found == 0
    assert found["RSS of the engine, nine tenths"].found == 6


def test_an_engine_that_went_at_the_end_is_not_judged_as_flat() -> None:
    last = list(looks())[-1]
    engine = ProcessUse(ENGINE, 9, 300 * MIB, 30, 40)
    found = [*looks(), Look(SECONDS, (last.processes[0], engine))]
    assert "RSS of the engine, median" in broken(iter(found))


def test_a_short_soak_is_all_beginning() -> None:
    assert beginning_seconds(3600) == 600
    assert beginning_seconds(1200) == 200
    growing = list(looks(lambda moment: 100 + moment, seconds=45))
    findings = judge(growing, CEILING, 45)
    growth = next(one for one in findings if one.name == "RSS of the application, median")
    assert growth.found == pytest.approx(30, abs=2)
    assert all(one.holds for one in findings)
    assert "RSS of all processes, peak" in broken(looks(lambda _: 200, seconds=45), 45)


def test_a_seed_says_what_is_done() -> None:
    terminal = cast("Any", None)
    first, again, other = User(terminal, 7), User(terminal, 7), User(terminal, 8)
    chosen = [first.choose() for _ in range(500)]
    assert chosen == [again.choose() for _ in range(500)]
    assert chosen != [other.choose() for _ in range(500)]
    assert {"ask", KILL, "SIGSTOP to the chat"} <= set(chosen)
    assert KILL not in {first.choose(spares_engine=True) for _ in range(500)}


def test_the_beginning_is_on_the_largest_screen() -> None:
    class Screen:
        def __init__(self) -> None:
            self.sizes: list[tuple[int, int]] = []

        def resize(self, *size: int) -> None:
            self.sizes.append(cast("Any", size))

        def read(self, seconds: float) -> None: ...

        def forget(self) -> None: ...

    screen = Screen()
    user = User(cast("Any", screen), 3)
    user.do("resize")
    user.do("resize")
    assert screen.sizes == 2 * [(COLUMNS[1], ROWS[1])]
    user.keeps_largest = False
    for _ in range(9):
        user.do("resize")
    assert len(set(screen.sizes[2:])) > 4
    assert all(COLUMNS[0] <= columns <= COLUMNS[1] for columns, _ in screen.sizes)


def test_a_process_is_looked_at_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.01)
    log = io.StringIO()
    with Watch(os.getpid(), log) as watch:
        while len(watch.looks) < 6:
            pass
    look = watch.looks[-1]
    own = look.of(APPLICATION)
    assert own is not None
    assert own.pid == os.getpid()
    assert own.rss_bytes > 10 * MIB
    assert own.threads >= 2
    line = json.loads(log.getvalue().splitlines()[0])
    assert line["kind"] == "look"
    assert line["processes"][0]["descriptors"] > 2
    assert look_at(2**22, 0.0).processes == (), "no such process"


def test_a_furnished_home_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither conversations in a list nor what was typed can become more afterwards."""
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    monkeypatch.setattr(home, "NEWEST_MAX", 3)
    home.furnish("demo", 0)
    with SessionStore() as store:
        found = store.list()
        assert [one.turns for one in found] == 3 * [home.TURNS]
        loaded = store.load(found[0].id).conversation.path()
    assert [turn.role for turn in loaded] == home.TURNS // 2 * ["user", "assistant"]
    typed = InputHistory(tmp_path / "history.jsonl")
    entries = list(iter(lambda: typed.earlier(""), None))
    assert sum(map(sys.getsizeof, entries)) > 0.9 * MEMORY_BYTES_MAX
