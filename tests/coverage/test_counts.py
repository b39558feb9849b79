"""The table of what tests reached: counts are added up, and what is missing fails."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.coverage import __main__ as command
from tests.coverage.counts import FileCounts, native_counts, python_counts
from tests.coverage.limits import CHECKING_NATIVE, CHECKING_PYTHON

PROGRAM = """\
#include <string>
int main(int count, char**) {
  if (count > 5) return 7;
  return std::string("x").size() == 1 && count == 1 ? 0 : 1;
}
"""


def report(path: Path, missing: list[int], missing_branches: list[list[int]]) -> Path:
    file = {
        "executed_lines": [1, 2],
        "missing_lines": missing,
        "executed_branches": [[1, 2]],
        "missing_branches": missing_branches,
    }
    path.write_text(json.dumps({"files": dict.fromkeys(CHECKING_PYTHON, file)}))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["coverage", *arguments])
    return command.main()


def test_what_is_not_reached_fails_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--python", str(report(tmp_path / "good.json", [], []))) == 0
    assert "100.0 %  100.0 %" in capsys.readouterr().out
    assert run(monkeypatch, "--python", str(report(tmp_path / "lines.json", [3], []))) == 1
    assert "not run: 3;" in capsys.readouterr().out
    assert run(monkeypatch, "--python", str(report(tmp_path / "no.json", [], [[2, 9]]))) == 1
    assert "branch taken in: 2" in capsys.readouterr().out


def counts_of_a_run(directory: Path, program: str) -> FileCounts:
    """Of a program that is compiled, and run without arguments."""
    (directory / "one.cpp").write_text(program)
    subprocess.run(["g++", "--coverage", "one.cpp"], cwd=directory, check=True)
    subprocess.run(["./a.out"], cwd=directory, check=True)
    return native_counts(directory, directory)["one.cpp"]


def test_counts_of_coverage_py(tmp_path: Path) -> None:
    counts = python_counts(report(tmp_path / "r.json", [5], [[1, 3]]))[CHECKING_PYTHON[0]]
    assert counts.missing_lines == [5]
    assert counts.missing_branches == [1]
    assert counts.branches_percent == 50
    assert counts.lines_percent == pytest.approx(200 / 3)


@pytest.mark.skipif(not shutil.which("gcov") or not shutil.which("g++"), reason="no gcov here")
def test_counts_of_gcov(tmp_path: Path) -> None:
    counts = counts_of_a_run(tmp_path, PROGRAM)
    assert counts.lines[2] == 1
    assert counts.missing_branches == [3, 4]
    assert 0 < counts.branches_percent < 100
    subprocess.run(["./a.out", "2", "3", "4", "5", "6"], cwd=tmp_path, check=False)
    assert native_counts(tmp_path, tmp_path)["one.cpp"].missing_branches == [4]


BLOCKS = """\
#include <stdexcept>
#include <string>
std::string made(int count) {
  std::string text(count, 'x');
  if (count > 5) throw std::runtime_error(text);
  return text;
}
int unused() {
  return 1;
}
int main(int count, char**) { return made(count).size() == 1 ? 0 : unused(); }
"""


@pytest.mark.skipif(not shutil.which("gcov") or not shutil.which("g++"), reason="no gcov here")
def test_the_end_of_a_block_is_no_line_that_was_missed(tmp_path: Path) -> None:
    counts = counts_of_a_run(tmp_path, BLOCKS)
    assert counts.missing_lines == [8, 9]
    assert counts.lines[6] == 1


def test_the_limits_name_files_that_exist() -> None:
    for path in (*CHECKING_NATIVE, *CHECKING_PYTHON):
        assert (command.ROOT / path).is_file()
