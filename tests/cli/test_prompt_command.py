"""`flashllm bench prompt` as a command: its table, its JSON, its errors, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from flashllm.bench.prompt import runs as prompt_runs
from flashllm.bench.tokens import machine_probe
from flashllm.cli.main import main
from flashllm.errors import Cancelled
from tests.support.token_fakes import FakeProbe


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_probe, "MachineProbe", FakeProbe)
    monkeypatch.setattr("flashllm.bench.prompt.machine.chunk_rate", lambda *_: 4e10)


def test_a_table_for_people(sparse_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "prompt", str(sparse_model), "--lengths", "3,9", "--runs", "2"]) == 0
    text, _ = capsys.readouterr()
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("prompt of"))
    assert [line.split()[0] for line in lines[at + 1 : at + 5]] == ["3", "3", "9", "9"]
    assert ["empty" in line for line in lines[at + 1 : at + 5]] == [True, False, True, False]
    assert "random tokens, 2 of each, selected neurons; chunks" in text
    assert "2 GB/s" in text.split("rates")[1]
    assert max(map(len, lines)) < 130


def test_the_demos_lengths_are_those_that_fit(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "prompt", str(demo), "--runs", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["tokens"] for row in report["prompts"]] == [8, 8, 64, 64]
    assert report["header"]["settings"]["lengths"] == [8, 64]
    for row in report["prompts"]:
        times = {name: row[f"{name.lower()}_ns"] for name in ("flash", "DRAM", "products")}
        assert row["bound_ns"] == max(times.values()) == times[row["binds"]]
        assert row["bound_share"] == row["bound_ns"] / row["first_token_ns"]["median"]


def test_memory_that_was_faster_at_times_is_told(
    sparse_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = [5e10, 5.5e10, 7e10]
    monkeypatch.setattr(FakeProbe, "dram_rate", lambda _: rates[0])
    command = ["bench", "prompt", str(sparse_model), "--lengths", "3", "--runs", "2", "--json"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["dram_rates"] == [5e10] * 3
    assert "memory gave" not in err
    given = iter(rates)
    monkeypatch.setattr(FakeProbe, "dram_rate", lambda _: next(given))
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["dram_rates"] == rates
    assert "memory gave 50 to 70 GB/s" in err


def test_prompts_of_a_text(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [9 + number for number in range(300)]
    (tmp_path / "notes.ids").write_text(" ".join(map(str, ids)))
    asked: list[list[int]] = []
    real = prompt_runs._run

    def listening(model: Any, prompt: list[int], *rest: Any) -> Any:
        asked.append(prompt)
        return real(model, prompt, *rest)

    monkeypatch.setattr(prompt_runs, "_run", listening)
    text = str(tmp_path / "notes.ids")
    command = ["bench", "prompt", str(demo), "--text", text, "--lengths", "200", "--runs", "1"]
    assert main(command) == 0
    assert f"from {text}" in " ".join(capsys.readouterr().out.split())
    assert [token for prompt in asked for token in prompt] == [*ids, *ids[:100]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lengths", "0"], "'0'"),
        (["--lengths", "9000"], "--lengths 9000: the context of"),
        (["--text", "absent.txt"], "absent.txt"),
    ],
)
def test_bad_arguments(
    sparse_model: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    try:
        code = main(["bench", "prompt", str(sparse_model), *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code != 0
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize("between", [False, True])
def test_ctrl_c_prints_what_was_measured(
    sparse_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    between: bool,
) -> None:
    """Also where it comes between two answers, of which the next one then raises."""
    real, begun = prompt_runs._run, threading.Event()

    def slowly(*arguments: Any) -> Any:
        if begun.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.3)
            if between:
                raise Cancelled("stopped on request")
        begun.set()
        return real(*arguments)

    monkeypatch.setattr(prompt_runs, "_run", slowly)
    command = ["bench", "prompt", str(sparse_model), "--lengths", "3", "--runs", "9", "--json"]
    assert main(command) == 130
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert not report["complete"]
    assert len(report["prompts"]) == 1
    assert "interrupted" in err
