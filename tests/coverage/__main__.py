"""Prints what tests reached: `python -m tests.coverage [--native BUILD] [--python REPORT] [--all]`.

Exit code 1 where a branch of code that checks input was not taken, or, with --all, where fewer
lines of the rest were run than tests/coverage/limits.py says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from .counts import FileCounts, native_counts, python_counts
from .limits import (
    CHECKING_NATIVE,
    CHECKING_PYTHON,
    NATIVE,
    OTHER_INSTRUCTION_SETS,
    OTHER_LINES_PERCENT,
)

ROOT = Path(__file__).parents[2]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.coverage")
    parser.add_argument("--native", type=Path, help="a build folder with gcov's data")
    parser.add_argument("--python", type=Path, help="a JSON report of coverage.py")
    parser.add_argument("--all", action="store_true", help="all tests in Python were run")
    arguments = parser.parse_args()
    good = True
    if arguments.native:
        found = native_counts(arguments.native, ROOT)
        good &= _show("C++", found, CHECKING_NATIVE)
        good &= _show_rest("C++", _native_rest(found), True)
    if arguments.python:
        found = python_counts(arguments.python)
        good &= _show("Python", found, CHECKING_PYTHON)
        rest = {path: one for path, one in found.items() if path not in CHECKING_PYTHON}
        good &= _show_rest("Python", rest, arguments.all)
    return 0 if good else 1


def _native_rest(found: Mapping[str, FileCounts]) -> dict[str, FileCounts]:
    return {
        path: one
        for path, one in found.items()
        if path.startswith(NATIVE)
        and path not in CHECKING_NATIVE
        and not path.endswith(OTHER_INSTRUCTION_SETS)
    }


def _show(language: str, found: Mapping[str, FileCounts], checking: Iterable[str]) -> bool:
    """The table of code that checks input; whether all of its branches were taken."""
    print(f"{language} that checks input{'':32}   lines   branches")
    good = True
    for path in checking:
        one = found.get(path, FileCounts({0: 0}))
        is_full = not one.missing_lines and not one.missing_branches
        good &= is_full
        print(f"  {path:50} {one.lines_percent:6.1f} % {one.branches_percent:6.1f} %")
        if not is_full:
            print(f"    not run: {_shown(one.missing_lines)}; no such branch taken in: "
                  f"{_shown(one.missing_branches)}")  # fmt: skip
    return good


def _show_rest(language: str, rest: Mapping[str, FileCounts], is_limited: bool) -> bool:
    """The sum of all other files, and those that are worst; whether it is enough."""
    lines = [count for one in rest.values() for count in one.lines.values()]
    percent = 100.0 * sum(map(bool, lines)) / max(len(lines), 1)
    limit = f" (at least {OTHER_LINES_PERCENT:g} %)" if is_limited else " (of these tests)"
    print(f"{language}, the rest: {percent:.1f} % of {len(lines)} lines{limit}")
    for path, one in sorted(rest.items(), key=lambda item: item[1].lines_percent)[:8]:
        if one.lines_percent < OTHER_LINES_PERCENT:
            print(f"  {path:50} {one.lines_percent:6.1f} %  not run: {_shown(one.missing_lines)}")
    return percent >= OTHER_LINES_PERCENT or not is_limited


def _shown(lines: list[int]) -> str:
    shown = ", ".join(map(str, lines[:12]))
    return (shown or "nothing") + (", ..." if len(lines) > 12 else "")


if __name__ == "__main__":
    sys.exit(main())
