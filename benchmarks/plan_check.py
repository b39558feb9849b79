"""Compares what `flashllm plan` expects with what `flashllm bench tokens` measures, interleaved.

    python -m benchmarks.plan_check MODEL --ceilings 3GiB,4GiB,6GiB [--profile FILE] [--ids "5 6 7"]

The profile is that of `flashllm bench io`, made before; nothing is fitted here. Options that it
does not know go to both commands.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.own_command import ask, ended
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.bench.sample_statistics import Spread
from flashllm.cli.bench.options import parse_sizes
from flashllm.cli.shared.flags import argument
from flashllm.units import MIB

TOLERANCE = 0.2


def main() -> int:
    """Measure each ceiling in each round; the last line of the output is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_check", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--ceilings", type=argument(parse_sizes), required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-n", "--tokens", type=int, default=48)
    parser.add_argument("--ids", help="prompt as token ids, for a model without a tokenizer")
    options, passed_on = parser.parse_known_args()
    expected = {ceiling: _plan(options.model, ceiling, passed_on) for ceiling in options.ceilings}
    measured: dict[int, list[float]] = {ceiling: [] for ceiling in options.ceilings}
    for number in range(options.rounds):
        for ceiling in options.ceilings:
            report = _tokens(options, ceiling, passed_on)
            measured[ceiling].append(report["summary"]["decode"]["ns_per_token"]["median"] / 1e9)
            print(f"round {number + 1}, {ceiling >> 20} MiB: {measured[ceiling][-1]:.3f} s a token",
                  file=sys.stderr)  # fmt: skip
    rows = [_row(ceiling, expected[ceiling], measured[ceiling]) for ceiling in options.ceilings]
    header = run_header(None, {"model": options.model, "tolerance": TOLERANCE})
    print(_table(rows))
    print(json.dumps({"header": header, "complete": True, "rows": rows}))
    return 0


def _plan(model: str, ceiling: int, passed_on: list[str]) -> dict[str, Any]:
    found = ask("plan", model, "--memory", str(ceiling), "--json", *passed_on)
    if found["expected"]["token"] is None:
        sys.exit("there is no profile of this disk: run `flashllm bench io` on it first")
    return found


def _tokens(options: argparse.Namespace, ceiling: int, passed_on: list[str]) -> dict[str, Any]:
    prompt = ["--ids", options.ids] if options.ids else []
    length = ["-n", str(options.tokens), "--runs", "3", "--json", "--no-telemetry-cost"]
    limit = ["--memory", str(ceiling)]
    return ask("bench", "tokens", options.model, *limit, *length, *prompt, *passed_on)


def _row(ceiling: int, plan: dict[str, Any], measured: list[float]) -> dict[str, Any]:
    expected = plan["expected"]["token"]
    spread = Spread.of(measured)
    return {
        "ceiling_bytes": ceiling,
        "window": plan["plan"]["window"],
        "expected_seconds": expected["total"],
        "expected_flash": expected["flash"],
        "expected_dram": expected["dram"],
        "expected_overhead": expected["overhead"],
        "expected_bytes_read": plan["expected"]["traffic"]["bytes_read"],
        "bound": plan["expected"]["bound"],
        "measured_seconds": spread.to_json(),
        "ratio": expected["total"] / spread.median,
        "within": abs(expected["total"] / spread.median - 1) <= TOLERANCE,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [["ceiling, MiB", "planned, s/token", "measured (min to max)", "planned ÷ measured"]]
    for row in rows:
        spread = row["measured_seconds"]
        cells.append([
            f"{row['ceiling_bytes'] / MIB:,.0f}",
            f"{row['expected_seconds']:.3g}",
            f"{spread['median']:.3g} ({spread['min']:.3g} to {spread['max']:.3g})",
            f"{row['ratio']:.2f}",
        ])  # fmt: skip
    return markdown(cells)


if __name__ == "__main__":
    sys.exit(ended("plan_check", main))
