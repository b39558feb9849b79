"""Contenders in turns, with small scripts in the place of those that are compared."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory_limit import MemoryLimitError, limited
from benchmarks.page_cache import cached_share, drop_page_cache
from benchmarks.peers import runs, worker
from benchmarks.peers.__main__ import progress_line
from benchmarks.peers.contenders import (
    Contender,
    memory_ceiling_bytes,
    our_command,
    parse_ours,
    parse_worker,
)
from benchmarks.peers.runs import Outcome, interleaved, run_once
from benchmarks.peers.table import COLUMNS, report, rows_of, table
from benchmarks.peers.worker import Task, arguments_of
from flashllm.units import MIB
from tests.support.stolen_time import take_away

TASK = Task(Path("model"), [5, 6], 4, 60.0, None, 2)
WARM = replace(TASK, warm=True, select="all")


def answering(milliseconds: Sequence[int], prompt_ms: int = 7) -> str:
    """A script that says that it took so long."""
    found = {
        "how": "fake",
        "prefill_ns": prompt_ms * 10**6,
        "samples_ns": [ms * 10**6 for ms in milliseconds],
        "rss_peak_bytes": 3 * MIB,
        "tokens": [1],
        "facts": {"threads": 2},
    }
    return f"print('noise'); print({json.dumps(found)!r})"


def fake(name: str, script: str) -> Contender:
    return Contender(
        name, (), 1000, lambda task: [sys.executable, "-S", "-c", script], parse_worker, TASK, {}
    )


def outcome(name: str, number: int, seconds: float, limit_bytes: int | None = None) -> Outcome:
    return Outcome(name, number, limit_bytes, "ok", samples_ns=(int(seconds * 1e9),) * 4)


def test_runs_go_in_turns_and_end_with_the_first() -> None:
    contenders = [fake(name, answering([1] * 4)) for name in ("flashllm", "b", "c")]
    found = [(o.contender, o.round) for o in interleaved(contenders, 2, None)]
    assert found == [
        ("flashllm", 0), ("b", 0), ("c", 0), ("flashllm", 1), ("b", 1), ("c", 1), ("flashllm", 2),
    ]  # fmt: skip


def test_rows_are_of_a_prompt_and_tell_how_soon_its_answer_began() -> None:
    contenders = [fake("flashllm", ""), fake("b", "")]
    outcomes = [
        replace(outcome(name, 0, 0.1), prompt_tokens=tokens, prefill_ns=tokens * times * 10**8,
                samples_ns=(3 * 10**8,) * 20 + (10**8,) * (79 if tokens == 8 else 100))
        for tokens in (8, 64)
        for name, times in (("flashllm", 1), ("b", 3), ("flashllm", 2))
    ]  # fmt: skip
    rows = rows_of(contenders, outcomes)
    assert [(row.contender, row.prompt_tokens) for row in rows] == [
        ("flashllm", 8), ("b", 8), ("flashllm", 64), ("b", 64),
    ]  # fmt: skip
    assert [row.prefill_ratio for row in rows] == [None, pytest.approx(2.0)] * 2
    assert (rows[1].early_token_seconds, rows[1].early_ratio) == pytest.approx((0.3, 1.0))
    assert rows[1].late_token_seconds is None
    assert (rows[3].late_token_seconds, rows[3].late_ratio) == pytest.approx((0.1, 1.0))
    text = table(rows, [])
    assert "| 64 tokens |" in text
    columns = text.splitlines()[0].count("|")
    assert {line.count("|") for line in text.splitlines()} == {columns}


def test_ours_under_a_limit_is_laid_beside_the_others_without() -> None:
    contenders = [fake("flashllm", ""), fake("b", "")]
    outcomes = [
        outcome("flashllm", 0, 0.5, 4 << 30),
        outcome("b", 0, 8.0, 4 << 30),
        outcome("flashllm", 0, 0.4),
        outcome("b", 0, 0.75),
    ]
    text = table(rows_of(contenders, outcomes), [])
    line = "flashllm under 4.0 GiB is 1.50 times as fast as b without a limit (medians)."
    assert text.splitlines()[-1] == line
    assert "times as fast" not in table(rows_of(contenders, outcomes[2:]), [])


def test_the_table_holds_medians_and_ratios() -> None:
    contenders = [fake("flashllm", answering([10, 10, 10, 30])), fake("b", answering([60] * 4))]
    outcomes = list(interleaved(contenders, 3, None))
    ours, other = rows_of(contenders, outcomes)
    assert ours.token_seconds is not None
    assert other.token_seconds is not None
    assert ours.token_seconds.median == pytest.approx(0.015)
    assert len(ours.token_seconds.samples) == 4
    assert other.ratio == pytest.approx(4.0)
    assert ours.ratio is None
    text = table([ours, other], [])
    assert "| b | 1,000 | 0.00 | none | 2 tokens | 0.06 (0.06 to 0.06, 3) | 4 | " in text
    assert {line.count("|") for line in text.splitlines()} == {len(COLUMNS) + 1}
    kept = json.loads(json.dumps(report({}, contenders, outcomes, [], True)))
    assert [run["samples_ns"] for run in kept["runs"]][1] == [60_000_000] * 4
    assert kept["rows"][1]["ratio"] == pytest.approx(4.0)


def test_a_run_says_how_much_of_the_machine_was_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_away(monkeypatch, [0.9, 0.02, 0.04])
    contenders = [fake("flashllm", answering([1] * 4)), fake("b", "pass")]
    outcomes = list(interleaved(contenders, 2, None))
    assert [o.stolen_share for o in outcomes] == pytest.approx([0.9, 0.02, 0.04, 0.0])
    ours, other = rows_of(contenders, outcomes)
    assert ours.token_seconds is not None
    assert len(ours.token_seconds.samples) == 3, "none is dropped"
    assert (ours.stolen_share_max, other.stolen_share_max) == pytest.approx((0.9, 0.02))
    assert "| 90.0% | fake |" in table([ours, other], [])
    assert progress_line(outcomes[0]).endswith(", stolen 90.0%")
    assert progress_line(outcomes[1]).endswith(", stolen 2.0%")
    kept = json.loads(json.dumps(report({}, contenders, outcomes, [], True)))
    assert kept["runs"][0]["stolen_share"] == pytest.approx(0.9)
    assert kept["rows"][0]["stolen_share_max"] == pytest.approx(0.9)


def test_a_ratio_is_against_ours_before_and_after() -> None:
    # We get slower from run to run, the peer with us: 1 b 2 b 4.
    contenders = [fake("flashllm", ""), fake("b", "")]
    outcomes = [
        outcome("flashllm", 0, 1.0), outcome("b", 0, 3.0),
        outcome("flashllm", 1, 2.0), outcome("b", 1, 6.0),
        outcome("flashllm", 2, 4.0),
    ]  # fmt: skip
    assert rows_of(contenders, outcomes)[1].ratio == pytest.approx(2.0)


def test_rows_keep_limits_apart() -> None:
    contenders = [fake("flashllm", ""), fake("b", "")]
    outcomes = [outcome(name, 0, s, limit) for limit, factor in ((MIB, 10.0), (None, 2.0))
                for name, s in (("flashllm", 1.0), ("b", factor), ("flashllm", 1.0))]  # fmt: skip
    found = [(row.limit_bytes, row.ratio) for row in rows_of(contenders, outcomes)]
    assert found == [(MIB, None), (MIB, 10.0), (None, None), (None, 2.0)]


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", "killed", "by signal SIGKILL"),
        ("import sys; sys.exit('no | such layer')", "failed", "exit code 1: no | such layer"),
        ("import sys; print('flashllm: too small', file=sys.stderr); sys.exit(71)",
         "refused", "too small"),
        ("print('not JSON')", "failed", "cannot be read"),
        ("pass", "failed", "cannot be read"),
        (answering([1, 1]), "failed", "ended after 3 tokens; give other --ids"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_a_result_and_is_not_repeated(
    script: str, status: str, message: str
) -> None:
    contenders = [fake("flashllm", answering([1] * 4)), fake("b", script)]
    outcomes = list(interleaved(contenders, 3, None))
    bad = [o for o in outcomes if o.contender == "b"]
    assert [o.status for o in bad] == [status]
    assert message in bad[0].message
    row = rows_of(contenders, outcomes)[1]
    assert row.token_seconds is None
    assert f"{status}: " in table([row], [])
    assert {line.count("|") for line in table([row], []).splitlines()} == {len(COLUMNS) + 1}
    assert json.dumps(report({}, contenders, outcomes, [], True))


def test_one_that_crashed_goes_on_with_what_it_can_do() -> None:
    def command(task: Task) -> list[str]:
        crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
        return [sys.executable, "-S", "-c", answering([2] * 4) if task.as_stored else crash]

    crashing = replace(fake("b", ""), command=command)
    capable = replace(crashing, fallback=replace(TASK, as_stored=True))
    ours = fake("flashllm", answering([1] * 4))
    outcomes = list(interleaved([ours, capable], 2, None))
    assert [(o.contender, o.round, o.status) for o in outcomes] == [
        ("flashllm", 0, "ok"), ("b", 0, "killed"), ("b", 0, "ok"),
        ("flashllm", 1, "ok"), ("b", 1, "ok"), ("flashllm", 2, "ok"),
    ]  # fmt: skip
    row = rows_of([ours, capable], outcomes)[1]
    assert row.ratio == pytest.approx(2.0)
    assert "0.002 (0.002 to 0.002, 2); once killed: by signal SIGSEGV |" in table([row], [])
    hopeless = replace(crashing, fallback=TASK)
    statuses = [o.status for o in interleaved([ours, hopeless], 3, None) if o.contender == "b"]
    assert statuses == ["killed", "killed"]


def test_one_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RUN_SECONDS_MAX", 0.2)
    found = run_once(fake("b", "import time; time.sleep(60)"), 0, None)
    assert found.status == "too slow"


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    script = (
        f"import os, time; open({str(tmp_path / 'new')!r}, 'w').write(str(os.getpid()));"
        f"os.rename({str(tmp_path / 'new')!r}, {str(marker)!r}); time.sleep(60)"
    )

    def interrupt(*_: object) -> None:
        if marker.exists():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_once(fake("b", script), 0, None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_files_are_out_of_the_page_cache_before_a_run(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"x" * MIB)
    drop_page_cache([file])
    if cached_share([file]) != 0.0:
        pytest.skip("here files cannot be dropped from memory")
    file.read_bytes()
    found = run_once(replace(fake("b", answering([1] * 4)), files=(file,)), 0, None)
    assert found.cached_share_before == 0.0


def test_under_a_limit_a_greedy_contender_is_killed_by_it() -> None:
    try:
        with limited(64 * MIB):
            pass
    except MemoryLimitError as problem:
        pytest.skip(str(problem))
    greedy = run_once(fake("b", "content = b'x' * (400 << 20); print(len(content))"), 0, 100 * MIB)
    assert (greedy.status, greedy.message) == ("killed", "out of memory under the limit")
    modest = run_once(fake("b", answering([1] * 4)), 0, 100 * MIB)
    assert modest.status == "ok"
    assert modest.group is not None
    assert modest.to_json()["limit_held"] in (True, None)


def test_our_own_command_leaves_room_under_the_limit() -> None:
    limit = 4 << 30
    command = our_command(replace(TASK, limit_bytes=limit, select="all"))
    assert command[command.index("--select") + 1] == "all"
    assert command[:2] == ["env", "OMP_NUM_THREADS=2"]
    assert command[command.index("--memory") + 1] == str(limit - 64 * MIB)
    assert memory_ceiling_bytes(64 << 30) == (64 << 30) - (1 << 30)
    assert command[command.index("-n") + 1] == "5"
    assert "--memory" not in our_command(TASK)


@pytest.mark.parametrize("warm", [False, True])
def test_what_flashllm_prints_is_read(sparse_model: Path, warm: bool) -> None:
    task = replace(TASK, model=sparse_model, warm=warm)
    contender = Contender("flashllm", (), 1, our_command, parse_ours, task, {})
    found = run_once(contender, 0, None)
    assert (found.status, found.message) == ("ok", "")
    assert len(found.samples_ns) == 4
    assert len(found.tokens) == 5
    assert found.rss_peak_bytes > 0
    assert found.start_seconds > 0
    assert "select" in found.how
    assert (found.first_prefill_ns is not None) == warm
    if warm:
        assert found.facts["prompt_bytes_read"] == 0, "all was in memory"


def test_a_ceiling_that_the_planner_refuses_is_a_row_with_its_message(sparse_model: Path) -> None:
    def too_small(task: Task) -> list[str]:
        return our_command(replace(task, limit_bytes=80 * MIB))

    contender = Contender(
        "flashllm", (), 1, too_small, parse_ours, replace(TASK, model=sparse_model), {}
    )
    found = run_once(contender, 0, None)
    assert found.status == "refused"
    assert "--memory" in found.message or "GiB" in found.message or "MiB" in found.message


class Clock:
    """Nanoseconds that only a step lets pass."""

    def __init__(self) -> None:
        self.now_ns = 0

    def step(self, ids: Sequence[int]) -> int:
        self.now_ns += 10**9 * len(ids)
        return ids[-1] + 1


def forget() -> None:
    """A clock has no context."""


@pytest.mark.parametrize(("seconds", "tokens"), [(60.0, 10), (6.5, 7), (0.0, 4)])
def test_a_slow_worker_stops_early_but_not_before_four_tokens(
    seconds: float, tokens: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock.now_ns)
    task = replace(TASK, tokens=10, seconds=seconds)
    worker.run(task, clock.step, forget, "fake", {"mmap": True})
    monkeypatch.undo()
    found: dict[str, Any] = parse_worker(capsys.readouterr().out)
    assert found["prefill_ns"] == 2 * 10**9
    assert found["samples_ns"] == [10**9] * tokens
    assert found["tokens"] == list(range(7, 8 + tokens))
    assert found["facts"] == {"threads": 2, "mmap": True}


def test_a_prompt_before_is_forgotten_and_counted_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[list[int]] = []
    clock = Clock()

    def step(ids: Sequence[int]) -> int:
        given.append(list(ids))
        return clock.step(ids)

    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock.now_ns)
    worker.run(replace(TASK, ids=[5, 6, 7], warm=True), step, lambda: given.append([]), "", {})
    monkeypatch.undo()
    found = parse_worker(capsys.readouterr().out)
    assert given[:3] == [[6, 7, 5], [], [5, 6, 7]]
    assert (found["first_prefill_ns"], found["prefill_ns"]) == (3 * 10**9, 3 * 10**9)


def test_a_task_survives_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (TASK, replace(TASK, limit_bytes=3 << 30, as_stored=True), WARM):
        monkeypatch.setattr(sys, "argv", ["worker", *arguments_of(task)])
        assert worker.parse_task(None) == task
