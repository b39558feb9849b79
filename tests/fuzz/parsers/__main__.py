"""Fuzzes the parsers in Python.

`python -m tests.fuzz.parsers [--seconds N] [--runs N] [--seed N] [NAME...]`

Prints executions and seconds of each target. Exit code 1 where an input brought something else
than a right result or an error of ours; a library's crash ends the process, and leaves the input
in the folder of --keep.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tempfile
import traceback
from pathlib import Path

from .run import fuzz
from .targets import TARGETS


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.parsers")
    parser.add_argument("names", nargs="*", metavar="NAME", help="targets; all by default")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--runs", type=int, default=-1, help="inputs of each; -1 for no end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="for a last input")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - TARGETS.keys()):
        parser.error(f"there is no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    arguments.keep.mkdir(parents=True, exist_ok=True)
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as home:
        os.environ["FLASHLLM_HOME"] = home  # nothing of the user's is read
        failed = [name for name in arguments.names or TARGETS if not _run(name, arguments)]
    return 1 if failed else 0


def _run(name: str, arguments: argparse.Namespace) -> bool:
    last_input = arguments.keep / f"last-{name}"
    try:
        done = fuzz(TARGETS[name], arguments.seconds, arguments.seed, last_input, arguments.runs)
    except Exception:  # noqa: BLE001  whatever it is, the other targets go on
        traceback.print_exc()
        print(f"{name:20} FAILED; the input is in {last_input}", flush=True)
        return False
    last_input.unlink(missing_ok=True)
    print(f"{name:20} {done.executions:10} executions {done.seconds:8.1f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
