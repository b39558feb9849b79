"""`flashllm batch` as it is typed: the demo's answers, kills, signals, streams and refusals."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashllm.batch import block_search
from flashllm.batch.row import row_seed
from flashllm.cli.commands import batch
from flashllm.cli.main import main
from flashllm.cli.shared import open_model, output
from flashllm.engine import leftovers, loading
from flashllm.engine.local import Model
from flashllm.errors import ReadFailed
from flashllm.options import DEFAULT_OPTIONS
from flashllm.planning.plan import smallest_ceiling
from flashllm.units import MIB
from tests.support.fake_engine import FakeModel

WORDS = ("ocean", "forest", "river", "stone", "bread", "music", "winter", "horse", "doctor", "ship")
ROWS = '{"prompt": "a"}\n{"id": "two", "prompt": "b"}\n{"prompt": ""}\n'


def demo_rows() -> list[dict[str, Any]]:
    """20 rows: prompts and conversations, of several lengths, some that stop early."""
    rows: list[dict[str, Any]] = []
    for number, word in enumerate(WORDS):
        question = f"What does {word} mean?"
        rows.append({"id": word, "prompt": question, "max_tokens": 4 + 7 * (number % 3)})
        turns = [{"role": "user", "content": question}]
        if number % 2:
            turns += [
                {"role": "assistant", "content": "(noun): a thing"},
                {"role": "user", "content": f"What does {WORDS[number - 1]} mean?"},
            ]
        rows.append({"messages": turns, "max_tokens": 20, "stop": ["of", "zzz"][number % 2]})
    return rows


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Three rows, of which one is wrong, where commands are typed; a scripted model answers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(ROWS)
    place = SimpleNamespace(folder=tmp_path, model=FakeModel(["word ", "word"]))
    monkeypatch.setattr(open_model, "model_directory", lambda _: tmp_path)
    monkeypatch.setattr(open_model, "open_engine", lambda *_: place.model)
    monkeypatch.setattr(batch, "manifest_hash", lambda _: "0" * 64)
    return place


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory, demo: Path) -> tuple[Path, bytes]:
    """The rows of the demo, and its answers in an undisturbed run."""
    folder = tmp_path_factory.mktemp("answered")
    rows = write(folder, demo_rows())
    assert main(["batch", str(rows), str(folder / "answers"), str(demo)]) == 0
    return rows, (folder / "answers").read_bytes()


def test_answers_are_those_of_one_by_one(
    answered: tuple[Path, bytes], demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [json.loads(line) for line in answered[1].splitlines()]
    assert len(found) == 20
    with open_model_of(demo) as model:
        for row, line in zip(demo_rows(), found, strict=True):
            model.forget()
            turns = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
            answer = model.chat(turns, max_tokens=row["max_tokens"], stop=row.get("stop", ()))
            answer.complete()
            text = line["message"]["content"] if "messages" in row else line["text"]
            assert (text, line["finish_reason"]) == (answer.text, answer.finish_reason)
            assert line["usage"]["prompt_tokens"] == answer.usage.prompt_tokens
            assert line["usage"]["completion_tokens"] == answer.usage.answer_tokens
    assert {line["finish_reason"] for line in found} == {"stop", "length"}
    capsys.readouterr()
    assert main(["run", str(demo), "-p", demo_rows()[0]["prompt"], "-n", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == found[0]["text"]


def open_model_of(directory: Path) -> Model:
    from flashllm.library.open import open_directory
    from flashllm.options import DEFAULT_OPTIONS

    return open_directory(directory, DEFAULT_OPTIONS)


def test_a_policy_by_hand_changes_places_and_no_answer(
    answered: tuple[Path, bytes], demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, expected = answered
    out = tmp_path / "answers"
    command = ["batch", str(rows), str(out), str(demo), "--json", "--stats"]
    assert main([*command, "--policy", "3,2,0,40,0,30,0,100"]) == 0
    assert out.read_bytes() == expected
    printed = capsys.readouterr()
    got = json.loads(printed.out)["policy"]
    assert got["requested"]["text"] == "3,2,0,40,0,30,0,100"
    assert (got["realised"]["gbs"], got["realised"]["num_gb"]) == (6, 1)
    assert got["realised"]["wc"] == pytest.approx(40, abs=1)
    assert got["realised"]["cc"] == pytest.approx(30, abs=1)
    assert "3,2,0,40,0,30,0,100 asked for, 6,1,0," in printed.err


def test_a_block_that_does_not_fit_is_tried_with_keys_and_values_on_flash(
    answered: tuple[Path, bytes],
    demo: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under a ceiling for some sixteen rows eighteen are answered at once, if that gains."""
    monkeypatch.setattr(
        block_search, "tokens_per_second", lambda _model, _ids, _n, rows: float(rows)
    )
    # What this process takes changes from one moment to the next, and with it what fits.
    monkeypatch.setattr(loading, "interpreter_bytes", lambda: 100 * MIB)
    monkeypatch.setattr(leftovers, "left_bytes", lambda: 0)
    scenario = loading.scenario_of(demo, DEFAULT_OPTIONS, None).having(contexts=12, context=256)
    ceiling = smallest_ceiling(scenario.spec, scenario.sizes, scenario.options)
    rows, expected = answered
    command = ["batch", str(rows), str(tmp_path / "answers"), str(demo), "--block", "auto"]
    options = ["--ctx-size", "256", "--memory", f"{(ceiling >> 20) + 8}MiB"]
    assert main([*command, *options, "--json"]) == 0
    assert (tmp_path / "answers").read_bytes() == expected
    printed = capsys.readouterr()
    found = re.search(r"--block 18 --kv-memory (\d+)MiB: 18 tokens a second", printed.err)
    assert found, printed.err
    assert "--block 8: 8 tokens a second" in printed.err
    # By hand it is the same block, and a limit that was asked for is left as it is.
    by_hand = [*command[:-1], "18", *options, "--kv-memory", f"{found[1]}MiB", "--overwrite"]
    assert main([*by_hand, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    planned = ("ceiling_bytes", "kv_tokens_peak", "completion_tokens")
    assert [json.loads(printed.out)[key] for key in planned] == [again[key] for key in planned]
    monkeypatch.setattr(block_search, "tokens_per_second", lambda _model, _ids, _n, rows: 1 / rows)
    assert main([*command, *options, "--kv-memory", "8MiB", "--overwrite"]) == 0
    assert "--block 18 --kv-memory" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--policy", "3,2,0,40,0,70,0"], "has 7 numbers; expected 8"),
        (["--policy", "3,2,0,40,40,70,0,100"], "cg + cc is 110 % of the keys and values"),
        (["--policy", "3,2,0,40,0,70,0,100", "--block", "4"], "leave out --block"),
        (["--policy", "auto", "--stages", "2"], "leave it out, or --stages"),
        (["--policy", "lfu"], "'lfu' is unknown; did you mean lru? expected one of blend"),
    ],
)
def test_policies_that_make_no_sense(
    typed: SimpleNamespace, flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["batch", "rows.jsonl", "answers.jsonl", *flags]) == 2
    assert problem in capsys.readouterr().err
    assert not (typed.folder / "answers.jsonl").exists()


def test_a_seed_of_a_row_gives_what_run_gives(
    tmp_path: Path, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write(tmp_path, [{"id": "x", "prompt": "What does sea mean?"}])
    arguments = ["--temp", "1.5", "--seed", "4", "-n", "9"]
    assert main(["batch", str(rows), "-", str(demo), *arguments]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["seed"] == row_seed(4, "x")
    seeded = [*arguments[:2], "--seed", str(line["seed"]), "-n", "9"]
    assert main(["run", str(demo), "-p", "What does sea mean?", *seeded, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == line["text"]


# Importing torch takes longer than the batch, so it is done once, before processes are made.
KILLS = """
import os, random, signal, sys, time
import torch
import flashllm.cli.commands.batch, flashllm.library.open
from flashllm.cli.main import main

out, size, *command = sys.argv[1:]
chance = random.Random(11)

def begun():
    child = os.fork()
    if child == 0:
        os._exit(main(command))
    return child

def written():
    return os.stat(out).st_size if os.path.exists(out) else -1

for share in (0, 0.4):
    child = begun()
    deadline = time.monotonic() + 60
    while written() < share * int(size):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(chance.random() / 20)
    os.kill(child, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(ended, written(), flush=True)
    if ended == 0:  # this process had to wait for so long
        sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(begun(), 0)[1]))
"""


def test_kill_9_at_any_moment_loses_nothing(
    answered: tuple[Path, bytes], demo: Path, tmp_path: Path
) -> None:
    rows, expected = answered
    out = tmp_path / "answers"
    command = ["batch", rows, out, demo]
    done = subprocess.run(
        [sys.executable, "-c", KILLS, out, str(len(expected)), *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ends = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert ends[0][0] == -signal.SIGKILL
    assert {code for code, _ in ends} <= {-signal.SIGKILL, 0}
    assert all(size <= len(expected) for _, size in ends)
    assert out.read_bytes() == expected
    assert os.listdir(tmp_path) == ["answers"]


def test_what_is_said_and_the_exit_code(
    typed: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["batch", "rows.jsonl", "out.jsonl", "--stats"]) == 65
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "1 of 3 rows cannot be answered; the first is line 3: prompt is ''" in shown.err
    assert "2 of 3 rows have answers, errors: 1; 4 tokens in " in shown.err
    for name in ("prompts", "answers", "read", "time", "flash", "in DRAM", "bound", "memory"):
        assert f"\n{name:<9}" in shown.err, name
    assert "300 kB a token, prompts included" in shown.err
    assert [line["id"] for line in lines_of(Path("out.jsonl"))] == [1, "two", 3]
    Path("rows.jsonl").write_text(ROWS[:16])
    assert main(["batch", "rows.jsonl", "out.jsonl", "--overwrite"]) == 0
    assert len(lines_of(Path("out.jsonl"))) == 1


def test_progress_says_rows_rate_and_time_left(
    typed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "QUIET_SECONDS", 0.0)
    assert main(["batch", "rows.jsonl", "out.jsonl"]) == 65
    err = capsys.readouterr().err
    assert "flashllm: 1 of 3 rows (1 with errors), " in err
    assert "flashllm: 2 of 3 rows (1 with errors), " in err
    assert "3 of 3 rows (1 with errors), " in err
    assert " tokens a second, 0 s left\n" in err


def test_summary_as_json_counts_what_was_there(
    typed: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    typed.model = FakeModel(["word ", "word"], [ReadFailed("the disk failed")])
    assert main(["batch", "rows.jsonl", "out.jsonl"]) == 74
    err = capsys.readouterr().err
    assert "2 of 3 rows are done, in out.jsonl: the same command goes on with the rest" in err
    assert err.endswith("flashllm: the disk failed\n")
    typed.model = FakeModel(["word ", "word"])
    assert main(["batch", "rows.jsonl", "out.jsonl", "--json"]) == 65
    shown = capsys.readouterr()
    assert "out.jsonl: 2 of 3 rows are done; going on with the rest" in shown.err
    values = json.loads(shown.out)
    counts = [values[name] for name in ("rows", "answered", "errors", "resumed")]
    assert (counts, values["complete"], values["bound"]) == ([3, 2, 1, 2], True, None)
    assert (values["prompt_tokens"], values["completion_tokens"]) == (2, 2)
    assert values["bytes_per_token"] == 300_000


def test_other_settings_do_not_go_on(
    typed: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    typed.model = FakeModel(["word"], [ReadFailed("the disk failed")])
    assert main(["batch", "rows.jsonl", "out.jsonl"]) == 74
    for changed in (["--temp", "0.5"], ["--raw"], ["--as-finished"], ["-c", "99"], ["--stop", "x"]):
        assert main(["batch", "rows.jsonl", "out.jsonl", *changed]) == 73
        name = {"-c": "--ctx-size"}.get(changed[0], changed[0])
        assert f"{name}: " in capsys.readouterr().err
    typed.model = FakeModel(["word"])
    # No answer depends on these.
    assert main(["batch", "rows.jsonl", "out.jsonl", "--memory", "2GiB", "--policy", "lru"]) == 65


def test_streams(
    typed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.write(writing, ROWS.encode())
    os.close(writing)
    with open(reading, "rb") as pipe:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(pipe))
        assert main(["batch", "-", "-"]) == 65
    shown = capsys.readouterr()
    assert [json.loads(line)["line"] for line in shown.out.splitlines()] == [1, 2, 3]
    assert "standard input: 1 of 3 rows cannot be answered" in shown.err
    assert os.listdir() == ["rows.jsonl"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_standard_output(
    typed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115  what it holds fails again when it is closed
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert main(["batch", "rows.jsonl", "-"]) == 73
    with pytest.raises(OSError, match="No space left"):
        full.close()
    assert "standard output: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        ([], "required: IN, OUT", 2),
        (["rows.jsonl"], "required: OUT", 2),
        (["none", "out"], "none: cannot be read: No such file or directory; the order", 2),
        (["rows.jsonl", "-", "--json"], "--json prints where the answers go", 2),
        (["rows.jsonl", "-", "--overwrite"], "--overwrite is for a file", 2),
        (["rows.jsonl", "out", "--raw", "-s", "x"], "--system needs a chat template", 2),
        (["rows.jsonl", "out", "--stop", ""], "a stop string is empty", 2),
        (["rows.jsonl", "out", "--top-p", "2"], "--top-p: '2' is out of range", 2),
        (["rows.jsonl", "out", "--temperature", "2"], "did you mean --temp?", 2),
        (["rows.jsonl", "rows.jsonl"], "rows.jsonl: holds the rows; name another file", 73),
        (["rows.jsonl", "none/out"], "none: no such directory; create it first", 73),
    ],
)
def test_refusals_are_one_sentence_and_change_nothing(
    typed: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
    code: int,
) -> None:
    assert main(["batch", *arguments]) == code
    shown = capsys.readouterr()
    assert words in shown.err.splitlines()[-1]
    assert shown.out == ""
    assert (os.listdir(), Path("rows.jsonl").read_text()) == (["rows.jsonl"], ROWS)


# What started the tests may ignore signals, as nohup does, and that would be inherited.
SCRIPT = """
import signal, sys, threading
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
from pathlib import Path
from flashllm.cli.commands import batch
from flashllm.cli.shared import open_model
from flashllm.cli.main import main
from tests.support.fake_engine import FakeModel
half = ["half ", lambda: print("half", flush=True), threading.Event()]
model = FakeModel(["word ", "word"], half)
open_model.model_directory = lambda _: Path(".")
open_model.open_engine = lambda *_: model
batch.manifest_hash = lambda _: "0" * 64
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_so_that_it_can_go_on(
    typed: SimpleNamespace, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["batch", "rows.jsonl", "out.jsonl"]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *command],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "interrupted; 2 of 3 rows are done, in out.jsonl: the same command goes on" in err
    assert "Traceback" not in err
    assert [line["id"] for line in lines_of(Path("out.jsonl"))] == [1]
    assert main(command) == 65
    assert [line["id"] for line in lines_of(Path("out.jsonl"))] == [1, "two", 3]
