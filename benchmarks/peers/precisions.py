"""`benchmarks.peers` in f16, int8 and int4: `python -m benchmarks.peers.precisions CHECKPOINT DIR`.

For each precision: the checkpoint is converted to it and a GGUF of the same bits is written (int8
beside q8_0, int4 beside q4_0; what lies in DIR already is taken as it is), then all are run by
turns under a memory limit and without. The limit is half of what the weights take in that
precision, so in int4 it is about a quarter of that in f16. What was made is removed before the
next precision's turn, unless --keep; the reports stay: DIR/peers-f16.json, ...

Files of a model of 6.7 billion weights take 2 x 13.3 GB in f16, 2 x 7.1 in int8, 2 x 3.8 in int4.
Options that it does not know, such as --rounds or --ids, are passed on to `benchmarks.peers`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.own_command import CommandError, ended, remark
from benchmarks.peers.contenders import (
    PACKAGES,
    environment,
    gguf_command,
    installed_versions,
    peers_python,
)
from benchmarks.peers.files import Checkpoint, read_checkpoint
from benchmarks.peers.gguf_encoding import OURS as ENCODINGS
from benchmarks.results import markdown
from flashllm.bench.steal_time import format_steal_share
from flashllm.dtypes import GROUP_BYTES
from flashllm.errors import CannotCreate, UsageError
from flashllm.units import MIB, format_bytes

NAME = "peer_precisions"
PRECISIONS = "f16,int8,int4"
PREDICTORS, CALIBRATION = "predictors.safetensors", "calibration.ids"


def parse_precisions(text: str) -> list[str]:
    """Encodings, separated by commas."""
    wanted = [part.strip() for part in text.split(",")]
    for part in wanted:
        if part not in ENCODINGS:
            raise UsageError(f"{part!r} is no precision; expected some of {', '.join(ENCODINGS)}")
    return list(dict.fromkeys(wanted))


def convert_command(checkpoint: Path, model: Path, precision: str) -> list[str]:
    """What converts a checkpoint, with the predictors and the text that lie beside it.

    Predictors are no wider than 8 bits where the weights are none: they share their memory.
    """
    command = [sys.executable, "-m", "flashllm", "convert", str(checkpoint), str(model)]
    command += ["--dtype", precision]
    for option, name in (("--predictors", PREDICTORS), ("--calibration", CALIBRATION)):
        if (checkpoint / name).is_file():
            command += [option, str(checkpoint / name)]
    if precision in GROUP_BYTES and (checkpoint / PREDICTORS).is_file():
        command += ["--predictor-dtype", "int8"]
    return command


def make(command: Sequence[str], path: Path) -> list[Path]:
    """Run what makes a file or directory, unless it is there; what is new, to be removed."""
    if path.exists():
        remark(NAME, f"{path} is there already, and is taken as it is")
        return []
    remark(NAME, f"making {path}")
    done = subprocess.run(command, env=environment(), check=False)
    if done.returncode:
        raise CommandError(f"{path} could not be made; its command says why", done.returncode)
    return [path]


def remove(paths: Sequence[Path]) -> None:
    """Files and directories that `make` made."""
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def run_precision(
    checkpoint: Checkpoint, work: Path, precision: str, keep: bool, passed_on: Sequence[str]
) -> dict[str, Any]:
    """Make what is needed, run `benchmarks.peers`, and clear up; its report."""
    model, gguf = work / f"{precision}.flash", work / f"{precision}.gguf"
    report = work / f"peers-{precision}.json"
    made: list[Path] = []
    python = peers_python()
    try:
        made += make(convert_command(checkpoint.directory, model, precision), model)
        command = [sys.executable, "-m", "benchmarks.peers", str(model)]
        command += ["--checkpoint", str(checkpoint.directory), "--json", str(report)]
        versions = installed_versions(python)
        if gguf.exists() or all(versions[package] for package in PACKAGES["llama.cpp"]):
            made += make(gguf_command(python, checkpoint, precision, str(gguf)), gguf)
            command += ["--gguf", str(gguf)]
        done = subprocess.run([*command, *passed_on], env=environment(), check=False)
    finally:
        if not keep:
            remove(made)
    if done.returncode:
        raise CommandError(f"{precision}: benchmarks.peers ended with an error", done.returncode)
    found: dict[str, Any] = json.loads(report.read_text("utf-8"))
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """One table of all precisions."""
    titles = ["precision", "", "bits a weight", "memory limit", "s/token (min to max)",
              "times ours", "peak RSS, MiB", "stolen, at most"]  # fmt: skip
    rows = [
        [precision, *_cells(row)] for precision, report in found.items() for row in report["rows"]
    ]
    return markdown([titles, *rows])


def _cells(row: dict[str, Any]) -> Iterator[str]:
    yield row["contender"]
    yield f"{row['weight_bits']:.2f}"
    yield "none" if row["limit_bytes"] is None else format_bytes(row["limit_bytes"])
    spread = row["token_seconds"]
    shown = spread and f"{spread['median']:.3g} ({spread['min']:.3g} to {spread['max']:.3g})"
    yield shown or row["problem"]
    yield f"{row['ratio']:.3g}" if row["ratio"] else ""
    yield f"{row['rss_peak_bytes'] / MIB:,.0f}" if row["rss_peak_bytes"] else ""
    yield format_steal_share(row["stolen_share_max"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    from flashllm.cli.shared.flags import argument

    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("work", type=Path, metavar="DIR", help="for models and reports")
    parser.add_argument(
        "--precisions",
        type=argument(parse_precisions),
        default=parse_precisions(PRECISIONS),
        metavar="NAME,...",
        help=f"({PRECISIONS})",
    )
    parser.add_argument("--keep", action="store_true", help="do not remove what was made")
    options, passed_on = parser.parse_known_args(arguments)
    checkpoint = read_checkpoint(options.checkpoint)
    try:
        options.work.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CannotCreate(f"{options.work}: cannot be created: {problem.strerror}") from problem
    found = {
        precision: run_precision(checkpoint, options.work, precision, options.keep, passed_on)
        for precision in options.precisions
    }
    print(table(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
