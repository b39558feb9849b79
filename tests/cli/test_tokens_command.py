"""`flashllm bench tokens`: its forms of report, each against the tokens that it is made from."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flashllm.bench import header, page_cache, steal_time
from flashllm.bench.tokens import machine_probe
from flashllm.cli.bench import tokens_table
from flashllm.cli.bench.tokens_table import summary_text
from flashllm.cli.main import main
from flashllm.cli.shared import open_model
from flashllm.system.clock import PARTS
from flashllm.telemetry.formatting import PART_WORDS
from flashllm.units import format_number
from tests.support.stolen_time import take_away
from tests.support.token_fakes import FakeProbe

IDS = "5,17,40,8,61"
SHORT = ["-n", "30", "--runs", "5", "--ids", IDS]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FLASHLLM_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_probe, "MachineProbe", FakeProbe)
    monkeypatch.setattr("flashllm.bench.tokens.runs._further_pairs", lambda *_: iter(()))


def report_of(
    model: Path, capsys: pytest.CaptureFixture[str], *options: str, code: int = 0
) -> tuple[str, str]:
    assert main(["bench", "tokens", str(model), *SHORT, *options]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def of_kind(lines: list[dict[str, Any]], type_: str, kind: str = "") -> list[dict[str, Any]]:
    return [x for x in lines if x["type"] == type_ and kind in ("", x.get("kind"))]


def test_the_sum_is_that_of_the_lines(
    sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, _ = report_of(sparse_model, capsys, "--jsonl", "--window", "1")
    lines = [json.loads(line) for line in text.splitlines()]
    summary, tokens = lines[-1], of_kind(lines, "token", "warm")
    assert [lines[0]["type"], summary["type"]] == ["header", "summary"]
    assert len(tokens) == 5 * 30 == summary["decode"]["tokens"]
    by_run: dict[int, list[int]] = {}
    for token in tokens:
        by_run.setdefault(token["run"], []).append(token["wall_ns"])
    means = [statistics.fmean(walls) for walls in by_run.values()]
    walls = [token["wall_ns"] for token in tokens]
    decode = summary["decode"]
    assert decode["ns_per_token"]["median"] == pytest.approx(statistics.median(means))
    assert decode["ns_per_token"]["samples"] == pytest.approx(means)
    assert decode["ns_per_token"]["stdev"] == pytest.approx(statistics.stdev(means))
    assert decode["tokens_per_second"]["median"] == pytest.approx(1e9 / statistics.median(means))
    assert decode["token_ns"]["p50"] == pytest.approx(statistics.median(walls))
    assert "p99" in decode["token_ns"]
    assert "p99.9" not in decode["token_ns"]
    costs = [token["cost"] for token in tokens]

    def total(name: str) -> int:
        return sum(cost[name] for cost in costs)

    flash, cache, parts = summary["flash"], summary["cache"], summary["parts"]
    assert flash["bytes_read_per_token"] == pytest.approx(total("bytes_read") / 150)
    assert flash["amplification"] == pytest.approx(total("bytes_read") / total("bytes_useful"))
    assert flash["read_bytes_mean"] == pytest.approx(total("bytes_read") / total("reads"))
    assert flash["queue_depth_mean"] == pytest.approx(total("depth_ns") / total("io_busy_ns"))
    assert sum(flash["read_sizes"].values()) == total("reads") == flash["latency_ns"]["n"]
    assert cache["hit_rate"] == pytest.approx(total("hits") / (total("hits") + total("misses")))
    for part in PARTS:
        spent = sum(cost["parts_ns"][part] for cost in costs)
        assert parts["shares"][part] == pytest.approx(spent / sum(walls))
    assert parts["sum_share"] == pytest.approx(sum(parts["shares"].values()))
    assert parts["sum_share"] <= 1
    bound_found = summary["bound"]
    flash_ns = total("bytes_read") / 150 / 1e9 * 1e9
    dram_ns = sum(bound_found["dram_bytes_by_component"].values()) / 1e10 * 1e9
    assert bound_found["flash_ns"] == pytest.approx(flash_ns)
    assert bound_found["dram_ns"] == pytest.approx(dram_ns)
    assert bound_found["share"] == pytest.approx(max(flash_ns, dram_ns) / statistics.median(means))
    cold = of_kind(lines, "run", "cold")[0]
    assert summary["cold"]["first_token_ns"] == cold["first_token_ns"]
    first = [run["first_token_ns"] for run in of_kind(lines, "run", "warm")]
    assert summary["prefill"]["first_token_ns"]["samples"] == first
    plain = [token["wall_ns"] for token in of_kind(lines, "token", "plain")]
    assert summary["telemetry"]["without_median_ns"] == statistics.median(plain)
    assert summary["same_tokens"]


def test_one_object(sparse_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = report_of(sparse_model, capsys, "--json")
    report = json.loads(text)
    fields = {"schema", "header", "complete", "plan", "summary", "runs", "probes"}
    assert set(report) == fields
    assert report["complete"] is True
    assert report["header"]["settings"]["prompt_ids"] == [5, 17, 40, 8, 61]
    assert len(report["runs"]) == 11
    assert [len(run["token_ns"]) for run in report["runs"]] == [30] * 11
    memory = report["summary"]["memory"]
    assert memory["ceiling_bytes"] == report["plan"]["ceiling_bytes"]


def test_rows(sparse_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = report_of(sparse_model, capsys, "--csv", "--no-telemetry-cost")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["kind"] for row in rows] == ["cold"] * 30 + ["warm"] * 150
    assert {row["synthetic"] for row in rows} == {"False"}
    assert all(int(row["attention_ns"]) > 0 and row["bytes_read"].isdigit() for row in rows)


def test_the_report_for_people(sparse_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, err = report_of(sparse_model, capsys)
    for expected in ("parts sum to ", "BOUND / TIME", "p99 ", "n = 150", "/proc/self/io", "cold",
                     "the same in all runs", " of a token, in 150 pairs"):  # fmt: skip
        assert expected in text
    assert "p99.9 " not in text.split("read latency")[0]
    assert "SYNTHETIC" not in text + err
    assert max(map(len, text.splitlines())) < 130
    last = " ".join(text.rpartition("\n\n")[2].split())
    assert re.match(r"A token took [\d.]+ [mµ]s, [\d.,]+ a second; most of it, \d+%, was ", last)
    assert re.search(r"It read .*; \d+% of its neurons were in memory\.", last)
    assert "of what this machine allows" in last
    assert " MB" not in text  # amounts are in MiB, rates in GB/s


def test_the_sentences_are_the_reports_numbers(
    sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads(report_of(sparse_model, capsys, "--json")[0])
    text = summary_text(report)
    token = report["summary"]["decode"]["ns_per_token"]["median"]
    assert f"{format_number(1e9 / token)} a second" in text
    shares = report["summary"]["parts"]["shares"]
    part = max(shares, key=lambda name: shares[name])
    assert f"{shares[part]:.0%}, was {PART_WORDS[part]}" in text
    assert f"{report['summary']['bound']['share']:.0%} of what this machine allows" in text
    report["complete"] = report["summary"]["same_tokens"] = False
    text = summary_text(report)
    assert text.startswith("Until it was interrupted: a token took")
    assert text.endswith("NOT THE SAME in all runs.")


@pytest.mark.parametrize("form", [[], ["--json"], ["--jsonl"], ["--csv"]])
def test_synthetic_models_are_called_so(
    form: list[str],
    sparse_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = header._model
    monkeypatch.setattr(header, "_model", lambda path: {**described(path), "synthetic": True})
    text, err = report_of(sparse_model, capsys, *form, "--no-telemetry-cost")
    assert "synthetic" in text.lower()
    assert "SYNTHETIC" in err
    if "--jsonl" in form:
        assert json.loads(text.splitlines()[-1])["synthetic"] is True
    if "--csv" in form:
        assert {row["synthetic"] for row in csv.DictReader(io.StringIO(text))} == {"True"}


def test_pictures(sparse_model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report_of(sparse_model, capsys, "--plot", str(tmp_path / "new"), "--no-telemetry-cost")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {f"tokens-{name}.png" for name in ("parts", "bytes", "latency", "sizes")}
    assert all((tmp_path / "new" / name).read_bytes()[:4] == b"\x89PNG" for name in names)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--json", "--csv"], "not allowed with"),
        (["--jsonl", "--csv"], "not allowed with"),
        (["--ids", ""], "--ids is empty"),
        (["-n", "1"], "expected 2 or more"),
        (["-n", "1000"], "beyond the context"),
        (["--runs", "0"], "too small"),
        (["-p", "x", "--ids", "1"], "not allowed with"),
    ],
)
def test_what_makes_no_sense(
    options: list[str], expected: str, sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = [] if {"-p", "--ids"} & set(options) else ["--ids", IDS]
    assert main(["bench", "tokens", str(sparse_model), *start, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err


def test_too_few_tokens_are_refused_before_the_demo_is_converted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(open_model, "model_directory", lambda *_: pytest.fail("converted"))
    assert main(["bench", "tokens", "-n", "1"]) == 2
    assert "expected 2 or more" in capsys.readouterr().err


def test_without_a_tokenizer_a_text_is_no_prompt(
    sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "tokens", str(sparse_model)]) == 2
    assert "--ids 1,2,3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (999, "999 ns"),
        (1000, "1 µs"),
        (999_400, "999 µs"),
        (999_600, "1,000 µs"),
        (999_999_999, "1,000 ms"),
        (12_340_000, "12.3 ms"),
        (1234e9, "1,234 s"),
    ],
)
def test_times_are_in_three_digits_and_never_in_powers(ns: float, shown: str) -> None:
    assert tokens_table._seconds(ns) == shown


def test_pictures_need_matplotlib(
    sparse_model: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    _, err = report_of(sparse_model, capsys, "--plot", str(tmp_path), code=2)
    assert "flashllm[bench]" in err


def test_a_system_that_counts_nothing(
    sparse_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_PROCESS_IO", Path("/nowhere"))
    text, _ = report_of(sparse_model, capsys, "--no-telemetry-cost")
    assert "does not count what a process reads" in text


def test_reads_that_differ_from_the_kernels_are_flagged(
    sparse_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = page_cache.device_bytes
    seen: list[int] = []

    def more() -> int:
        seen.append(1)
        return (counted() or 0) + len(seen) * 10_000_000

    monkeypatch.setattr(page_cache, "device_bytes", more)
    text, _ = report_of(sparse_model, capsys, "--no-telemetry-cost")
    if ", direct" not in text.splitlines()[2]:
        pytest.skip("the file system of the temporary directory refuses direct reads")
    assert "DIFFERS by more than 1 %" in text


@pytest.mark.parametrize("form", [[], ["--json"], ["--jsonl"]])
def test_runs_that_the_machine_was_taken_away_in_say_so(
    form: list[str],
    sparse_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_away(monkeypatch, [0.01, 0.9])
    text, err = report_of(sparse_model, capsys, *form, "--no-telemetry-cost")
    assert err.count("1 of 6 runs lost more than 5%") == 1
    if not form:
        assert "0.0% of all processors' time (0.0% to 90.0%, n = 6)" in text
        return
    lines = [json.loads(line) for line in text.splitlines()]
    runs = lines[0]["runs"] if form == ["--json"] else of_kind(lines, "run")
    summary = lines[0]["summary"] if form == ["--json"] else lines[-1]
    shares = [run["stolen_share"] for run in runs]
    assert shares == pytest.approx([0.01, 0.9, 0, 0, 0, 0])
    assert summary["stolen_share"]["samples"] == shares
    assert summary["decode"]["runs"] == 5, "none is dropped"


def test_a_system_that_knows_nothing_of_others(
    sparse_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steal_time, "_STAT", Path("/nowhere"))
    text, err = report_of(sparse_model, capsys, "--no-telemetry-cost")
    assert "unknown" in next(x for x in text.splitlines() if x.startswith("stolen, a run"))
    assert "lost more" not in err


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_reported_bytes_are_the_kernels(sparse_model: Path) -> None:
    code = (
        "import sys; from flashllm.bench.tokens import machine_probe;"
        "from tests.support import token_fakes;"
        "machine_probe.MachineProbe = token_fakes.FakeProbe;"
        "from flashllm.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "bench", "tokens", str(sparse_model), *SHORT, "--json",
         "-n", "150", "--window", "1", "--no-telemetry-cost"],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    report = json.loads(done.stdout)
    if not report["header"]["settings"]["direct"]:
        pytest.skip("the file system of the temporary directory refuses direct reads")
    found = report["summary"]["device_bytes"]
    assert found["reader"] == sum(run["reader"]["bytes_read"] for run in report["runs"]) > 500_000
    assert found["kernel"] == pytest.approx(found["reader"], rel=0.01)
    assert found["agrees"] is True


def test_an_interrupted_run_keeps_what_it_measured(sparse_model: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "flashllm", "bench", "tokens", str(sparse_model), "--ids", IDS,
         "-n", "150", "--runs", "1000", "--jsonl"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline())]
    while lines[-1]["type"] != "run":
        lines.append(json.loads(process.stdout.readline()))
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    lines += [json.loads(line) for line in rest.splitlines()]
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert lines[-1]["type"] == "summary"
    assert lines[-1]["complete"] is False
    assert lines[-1]["cold"]["tokens"] == 150
