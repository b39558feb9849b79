"""Kept results are small and say how they came about, and the tables show nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import results

KEPT = sorted(results.FOLDER.glob("*.json"))


@pytest.mark.parametrize("page", [results.README, results.RESULTS_PAGE], ids=lambda page: page.name)
def test_tables_are_made_of_the_kept_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert results.page_text(page, text) == text, "run python -m benchmarks.results tables"


def test_the_readme_has_one_table_of_four_rows_of_the_results() -> None:
    first, *rows = results.summary_table().splitlines()
    assert len(rows) == 1 + 4
    text = results.RESULTS_PAGE.read_text(encoding="utf-8")
    assert all(row in text for row in (first, *rows))
    assert results.README.read_text(encoding="utf-8").count("<!-- end -->") == 1


def test_there_is_a_table_for_each_kind_of_which_something_is_kept() -> None:
    text = results.RESULTS_PAGE.read_text(encoding="utf-8")
    kinds = {json.loads(path.read_text(encoding="utf-8"))["kind"] for path in KEPT}
    assert {"tokens", "peers", "ablation"} <= kinds <= set(results.KINDS)
    for kind in results.TABLES:
        assert (f"<!-- {kind}: made by" in text) == (kind in kinds), kind


SPEED = {"median": 2.5, "min": 2.0, "max": 30.0}
CEILING = {
    "model": "big", "wanted": "1/2", "ceiling_bytes": 1 << 30, "tokens_per_second": SPEED,
    "bytes_read_per_token": {"median": 397e6}, "rss_peak_bytes": 1000 << 20,
    "bound_share": {"median": 0.71},
}  # fmt: skip
PRECISION = {
    "bundles": "int8", "resident": "f16", "predictors": "f16", "options": {"kv_dtype": "int8"},
    "flash_bytes": 6e6, "resident_bytes": 3e6, "answers": {"dense": {"right": 0.986}},
    "text": {"dense": {"ratio": 1.0002, "ratio_stderr": 0.0001, "divergence_nats": 1.2e-5,
                       "same_token": 0.999}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "row", "line"),
    [
        (
            "ceilings",
            CEILING,
            "| big: A title (synthetic) | 1,024 | 1/2 | 2.5 (2.0 to 30) | 397 | 1,000 | 71% |",
        ),
        ("ceilings", CEILING | {"tokens_per_second": None}, ""),
        (
            "precision",
            PRECISION,
            "| int8 | f16, kv_dtype int8 | f16 | 6.0 | 3.0 | 1.0002 ± 0.0001 | 1.2e-05 | 99.9% |"
            " 98.6% |",
        ),
    ],
)
def test_rows_of_further_tables(
    kind: str, row: dict, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    header = {"command": "x", "synthetic": True}
    results.keep(kind, "name", "A title", {"header": header, "rows": [row]})
    lines = results.TABLES[kind]().splitlines()
    assert lines[2:] == ([line] if line else [])
    assert len({one.count("|") for one in lines}) == 1
    marks = f"<!-- {kind}: made by python -m benchmarks.results tables -->\n<!-- end -->\n"
    assert line in results.page_text(results.RESULTS_PAGE, marks)


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


def test_a_table_follows_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in KEPT:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["kind"] == "tokens":
            kept["title"] = "another model"
        (tmp_path / path.name).write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    text = results.RESULTS_PAGE.read_text(encoding="utf-8")
    assert results.page_text(results.RESULTS_PAGE, text) != text
    for page in (results.README, results.RESULTS_PAGE):
        with pytest.raises(ValueError, match="there is no"):
            results.page_text(page, "# A page without marks")
