"""Kept results are small and say how they came about, and the README shows nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import results

KEPT = sorted(results.FOLDER.glob("*.json"))


def test_the_tables_of_the_readme_are_made_of_the_kept_results() -> None:
    text = results.README.read_text(encoding="utf-8")
    assert results.readme_text(text) == text, "run python -m benchmarks.results readme"


def test_there_is_a_result_for_each_table() -> None:
    for kind in results.TABLES:
        assert results.load(kind), kind


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_a_kept_result_says_machine_command_and_date(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) <= results.BYTES_MAX
    kept = json.loads(text)
    header = kept["report"]["header"]
    assert header["command"]
    assert header["machine"]["processor"]
    assert header["date"].startswith("20")
    assert kept["report"].get("complete", True), "an interrupted run is no result"


def test_long_lists_and_directories_do_not_get_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    report = {
        "header": {"command": "/home/me/.venv/bin/flashllm bench tokens ../big.flash/ --plot /a/b"},
        "summary": {"bins": list(range(17)), "samples": [1.5] * 5, "GB/s": "1.0 GB/s"},
        "runs": [{"tokens": list(range(99)), "n": 99}],
    }
    path = results.keep("tokens", "name", "A title", report)
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["report"]["header"]["command"] == "flashllm bench tokens big.flash --plot b"
    assert kept["report"]["summary"] == {"samples": [1.5] * 5, "GB/s": "1.0 GB/s"}
    assert kept["report"]["runs"] == [{"n": 99}]
    assert kept["left_out"] == ["summary.bins", "runs.tokens"]
    with pytest.raises(ValueError, match="more than"):
        results.keep("tokens", "large", "A title", {str(i): "x" * 90 for i in range(1000)})


def test_a_table_in_the_readme_follows_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in KEPT:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["kind"] == "tokens":
            kept["title"] = "another model"
        (tmp_path / path.name).write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    text = results.README.read_text(encoding="utf-8")
    assert results.readme_text(text) != text
    with pytest.raises(ValueError, match="there is no"):
        results.readme_text("# A README without marks")
