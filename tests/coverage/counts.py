"""Lines and branches that were reached, as gcov and coverage.py tell them."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class FileCounts:
    """How often each line of a file was run, and each branch taken, by its line and number."""

    lines: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    branches: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    @property
    def missing_lines(self) -> list[int]:
        """Lines that were never run."""
        return sorted(line for line, count in self.lines.items() if not count)

    @property
    def missing_branches(self) -> list[int]:
        """Lines with a branch that was never taken."""
        return sorted({line for (line, _), count in self.branches.items() if not count})

    @property
    def lines_percent(self) -> float:
        """Share of lines that were run."""
        return _percent(self.lines.values())

    @property
    def branches_percent(self) -> float:
        """Share of branches that were taken."""
        return _percent(self.branches.values())


def _percent(counts: object) -> float:
    found = list(counts)  # type: ignore[call-overload]
    return 100.0 * sum(map(bool, found)) / len(found) if found else 100.0


def native_counts(build: Path, root: Path) -> dict[str, FileCounts]:
    """By path below `root`, from the .gcda files in a folder; what exceptions alone reach apart.

    Every call can throw, at least for lack of memory: those branches say nothing of checks. Neither
    do lines that only end a block and were not run: all they have is what throwing destroys.
    """
    files: dict[str, FileCounts] = defaultdict(FileCounts)
    for data in sorted(build.rglob("*.gcda")):
        command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", data.name]
        found = subprocess.run(command, cwd=data.parent, capture_output=True, check=True)
        for line in found.stdout.splitlines():
            for one in json.loads(line)["files"]:
                path = (data.parent / one["file"]).resolve()
                if path.is_relative_to(root):
                    _add(files[str(path.relative_to(root))], one["lines"])
    for path, counts in files.items():
        _drop_ends_of_blocks(counts, (root / path).read_text().splitlines())
    return dict(files)


def _drop_ends_of_blocks(counts: FileCounts, source: list[str]) -> None:
    for line in counts.missing_lines:
        if source[line - 1].strip() == "}":
            del counts.lines[line]


def _add(counts: FileCounts, lines: list[dict[str, object]]) -> None:
    """Adds one object file's counts: a header is in many of them."""
    numbers: dict[int, int] = defaultdict(int)
    for entry in lines:
        line = int(str(entry["line_number"]))
        counts.lines[line] += int(str(entry["count"]))
        branches = entry["branches"]
        assert isinstance(branches, list)
        numbers[line] = 0
        for branch in branches:
            if not branch["throw"]:
                counts.branches[line, numbers[line]] += branch["count"]
                numbers[line] += 1


def python_counts(report: Path) -> dict[str, FileCounts]:
    """By path, from the JSON report of coverage.py."""
    files = {}
    for path, found in json.loads(report.read_text())["files"].items():
        counts = FileCounts()
        for count, lines in ((1, found["executed_lines"]), (0, found["missing_lines"])):
            counts.lines.update(dict.fromkeys(lines, count))
        for count, name in ((1, "executed_branches"), (0, "missing_branches")):
            for line, to in found[name]:
                counts.branches[line, to] = count
        files[path] = counts
    return files
