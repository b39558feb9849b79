"""Batches that have to give what one-by-one runs give, byte for byte, however they are run.

    python -m benchmarks.batch_equal [MODEL ...] [--rows 200] [--kills 50] [--full] [--seed 0]

For each model (the two demos): rows of mixed lengths, some with stop texts, answered one by one;
then at three ceilings, by five policies, by every schedule, with overlap and without, in two
pipeline stages, and by three workers of Ray of which one is killed (left out and named where Ray is
not installed). Each two settings of different kinds occur together in some run; --full runs all
combinations. Last, `kill -9` at random moments, --kills of them: another block goes on each time,
and what is written in the end are the same bytes. Ends with exit code 1 at the first difference.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import psutil

from benchmarks.own_command import ended, remark
from flashllm.batch.journal import journal_path
from flashllm.cli.commands.batch import EXIT_ROW_ERRORS
from flashllm.cli.shared.flags import argument
from flashllm.errors import BenchmarkInvalid
from flashllm.flash.manifest import read_manifest
from flashllm.library.open import model_directory
from flashllm.options import ModelOptions
from flashllm.planning.plan import make_plan
from flashllm.settings.values import parse_count, parse_positive
from flashllm.units import MIB

NAME = "batch_equal"
MODELS = ("demo", "demo-moe")
CONTEXT = "192"
POLICIES = (
    (),
    ("--block", "7"),
    ("--block", "32"),
    ("--policy", "8,2,0,50,0,100,0,100"),
    ("--policy", "5,3,0,25,0,30,0,100"),
)
"""Of a block, beside row by row."""
SCHEDULES = ("continuous", "zigzag", "diagonal")
OVERLAPS = ("layer", "none")
SPARE_MIB = (64, 128, None)
"""Ceilings: so much above the least of a single row; None: what is free."""
KILLED: tuple[tuple[str, ...], ...] = (
    ("--block", "8"),
    ("--block", "32", "--schedule", "zigzag"),
    ("--block", "7", "--schedule", "diagonal", "--overlap", "none"),
    ("--policy", "5,3,0,25,0,30,0,100"),
)
"""How batches are run that are killed; the first one is run first, and any of them goes on."""
WORDS = (
    "ocean", "forest", "river", "stone", "bread", "music", "winter", "horse", "doctor", "ship",
    "moon", "garden", "window", "letter", "summer", "table", "island", "silver", "market", "bridge",
)  # fmt: skip
EXIT_CODES = (0, EXIT_ROW_ERRORS)
"""A row that is too long for the context has an error each time."""
SECONDS_MAX = 900.0


def main() -> int:
    """Run everything; the last line of the output is JSON."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("models", nargs="*", default=MODELS, metavar="MODEL")
    add("--rows", type=argument(parse_positive), default=200, metavar="N")
    add("--kills", type=argument(parse_count), default=50, metavar="N")
    add("--full", action="store_true", help="all combinations, not each pair once")
    add("--seed", type=argument(parse_count), default=0)
    options = parser.parse_args()
    done: dict[str, dict[str, int]] = {}
    for name in options.models:
        with tempfile.TemporaryDirectory(prefix="batch-equal-") as folder:
            done[name] = checked(str(model_directory(name)), Path(folder), options)
    print(json.dumps({"rows": options.rows, "equal": True, "models": done}))
    return 0


def checked(model: str, folder: Path, options: argparse.Namespace) -> dict[str, int]:
    """How many runs of each kind gave the same bytes; `BenchmarkInvalid` at one that did not."""
    rows = write_rows(folder / "rows.jsonl", options.rows, Random(options.seed))
    out = folder / "out"
    expected, seconds = answered(model, rows, folder / "alone", ())
    remark(NAME, f"{model}: {options.rows} rows one by one in {seconds:.1f} s")
    count: dict[str, int] = {"settings": 0, "stages": 0, "ray": 0}
    for flags in settings(model, full=options.full):
        equal(expected, *answered(model, rows, out, flags), flags)
        count["settings"] += 1
    stages = ("--stages", "2", "--block", "8")
    equal(expected, *answered(model, rows, out, stages), stages)
    count["stages"] += 1
    if importlib.util.find_spec("ray") is None:
        remark(NAME, "left out: workers of Ray, which is not installed")
    else:
        flags = ("--ray", "local", "--workers", "3", "--block", "4")
        equal(expected, *answered(model, rows, out, flags, kills_worker=True), flags)
        count["ray"] += 1
    return count | killed(model, rows, out, expected, options.kills, Random(options.seed))


def write_rows(path: Path, count: int, random: Random) -> Path:
    """Rows whose prompts and answers have many lengths."""
    with path.open("w") as file:
        for number in range(count):
            text = f"What does {random.choice(WORDS)} mean?"
            if number % 3 == 0:
                text = " ".join(random.choice(WORDS) for _ in range(random.randrange(1, 16)))
            row = {"id": f"row {number}", "prompt": text, "max_tokens": random.randrange(1, 24)}
            if number % 5 == 0:
                row["stop"] = random.choice(["of", "the", ";", "zzz"])
            file.write(json.dumps(row) + "\n")
    return path


def settings(model: str, *, full: bool) -> Iterator[tuple[str, ...]]:
    """Flags of runs: all combinations, or so many that each pair of settings is in one."""
    least = least_mib(model)
    ceilings = [() if spare is None else ("--memory", f"{least + spare}MiB") for spare in SPARE_MIB]
    schedules = [("--schedule", name) for name in SCHEDULES]
    overlaps = [("--overlap", name) for name in OVERLAPS]
    combinations = list(itertools.product(POLICIES, ceilings, schedules, overlaps))
    for chosen in combinations if full else covering_pairs(combinations):
        yield tuple(itertools.chain.from_iterable(chosen))


def covering_pairs(combinations: Sequence[tuple[Hashable, ...]]) -> Iterator[tuple[Any, ...]]:
    """Some combinations, in which each pair of settings occurs that occurs in all of them.

    Greedy: each is the one with the most pairs that were not there before.
    """
    pairs = {
        each: set(itertools.combinations(enumerate(each), 2))  # each setting with its kind
        for each in combinations
    }
    left = set().union(*pairs.values())
    while left:
        chosen = max(combinations, key=lambda each: len(pairs[each] & left))
        left -= pairs[chosen]
        yield chosen


def least_mib(model: str) -> int:
    """The least ceiling of one row of this context."""
    from flashllm.engine.loading import scenario_of

    assert read_manifest(Path(model)) is not None
    facts = scenario_of(Path(model), ModelOptions(context=int(CONTEXT)), None)
    plan = make_plan(facts.spec, facts.sizes, facts.options, None)
    return plan.smallest_bytes // MIB + 1


def answered(
    model: str, rows: Path, out: Path, flags: tuple[str, ...], *, kills_worker: bool = False
) -> tuple[bytes, float]:
    """The bytes of OUT, begun anew, and seconds; `BenchmarkInvalid` where the command fails."""
    remove(out)
    begin = time.monotonic()
    process = started(model, rows, out, flags)
    if kills_worker:
        remark(NAME, f"worker {kill_worker(process, out)} was killed")
    _, said = communicated(process)
    if process.returncode not in EXIT_CODES:
        last = (said.strip().splitlines() or ["no message"])[-1]
        raise BenchmarkInvalid(f"{' '.join(flags)}: exit code {process.returncode}: {last}")
    return out.read_bytes(), time.monotonic() - begin


def remove(out: Path) -> None:
    """What an earlier run has written."""
    for path in (out, journal_path(out)):
        path.unlink(missing_ok=True)


def communicated(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it says; `BenchmarkInvalid` for a process that does not end, which is killed."""
    try:
        return process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise BenchmarkInvalid(f"not done after {SECONDS_MAX:.0f} s") from None


def started(model: str, rows: Path, out: Path, flags: tuple[str, ...]) -> subprocess.Popen[str]:
    """`flashllm batch`, which goes on with OUT where it was."""
    command = [sys.executable, "-m", "flashllm", "batch", str(rows), str(out), model]
    command += ["--ctx-size", CONTEXT, *flags]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill_worker(process: subprocess.Popen[str], out: Path) -> int:
    """Kills one of Ray's workers once there are answers; its process id."""
    end = time.monotonic() + SECONDS_MAX
    while process.poll() is None and time.monotonic() < end:
        if out.exists() and out.stat().st_size:
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    # Others whose names begin with ray:: are agents; the node ends with them.
                    if child.name().startswith("ray::RayWorker"):
                        child.kill()
                        return child.pid
        time.sleep(0.02)
    raise BenchmarkInvalid("no worker of Ray was found while it answered")


def equal(expected: bytes, found: bytes, seconds: float, flags: tuple[str, ...]) -> None:
    """`BenchmarkInvalid`, with the first line that differs."""
    words = " ".join(flags) or "as it is"
    if found == expected:
        remark(NAME, f"equal after {seconds:.1f} s: {words}")
        return
    pairs = itertools.zip_longest(expected.splitlines(), found.splitlines(), fillvalue=b"nothing")
    number, lines = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
    shown = " instead of ".join(repr(line[:200]) for line in reversed(lines))
    raise BenchmarkInvalid(f"{words}: line {number + 1} is {shown}")


def killed(
    model: str, rows: Path, out: Path, expected: bytes, kills: int, random: Random
) -> dict[str, int]:
    """Kills at random moments until there were so many, and how many of them were amid rows."""
    count = {"kills": 0, "kills_amid_rows": 0}
    if not kills:
        return count
    found, seconds = answered(model, rows, out, KILLED[0])
    equal(expected, found, seconds, KILLED[0])
    while count["kills"] < kills:
        remove(out)
        begin, flags = time.monotonic(), KILLED[0]
        while True:
            process = started(model, rows, out, flags)
            try:
                if count["kills"] == kills:
                    _, said = communicated(process)
                else:
                    _, said = process.communicate(timeout=random.uniform(0.0, 1.2 * seconds))
                break
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                count["kills"] += 1
                has_answers = bool(out.exists() and out.stat().st_size)
                if has_answers and not journal_path(out).exists():
                    break  # it was done, and had only to end
                count["kills_amid_rows"] += has_answers
                flags = random.choice(KILLED)
        if process.returncode not in (*EXIT_CODES, -signal.SIGKILL):
            last = (said.strip().splitlines() or ["no message"])[-1]
            raise BenchmarkInvalid(
                f"after {count['kills']} kills: exit code {process.returncode}: {last}"
            )
        words = (*flags, f"after {count['kills']} kills")
        equal(expected, out.read_bytes(), time.monotonic() - begin, words)
    return count


if __name__ == "__main__":
    raise SystemExit(ended(NAME, main))
