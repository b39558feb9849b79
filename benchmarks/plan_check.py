"""Compares what `flashllm plan` expects with what `flashllm bench tokens` measures, interleaved.

    python -m benchmarks.plan_check MODEL --ceilings 3GiB,4GiB,6GiB [--profile FILE] [--ids "5 6 7"]

The profile is that of `flashllm bench io`, made before; nothing is fitted here. Without one only
bytes and hits are compared, which time does not change. Runs begin with empty slots, and so many
tokens are decoded as a plan has an estimate for from there. Of experts a plan assumes the reuse
that was recorded of other models. Options that it does not know go to both commands.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from benchmarks.own_command import ask, ended
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.bench.sample_statistics import Spread
from flashllm.cli.bench.options import parse_sizes
from flashllm.cli.shared.flags import argument
from flashllm.planning.latency_model import FIRST_TOKENS
from flashllm.units import MIB

TOLERANCE = 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """What one round of a ceiling gave."""

    seconds: float
    """A token, the median of its runs."""
    bytes_read: float
    """From flash, a token."""
    hit_rate: float

    @classmethod
    def of(cls, summary: dict[str, Any]) -> Self:
        """From the summary of `bench tokens`."""
        return cls(
            summary["decode"]["ns_per_token"]["median"] / 1e9,
            summary["flash"]["bytes_read_per_token"],
            summary["cache"]["hit_rate"],
        )


def main() -> int:
    """Measure each ceiling in each round; the last line of the output is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_check", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--ceilings", type=argument(parse_sizes), required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ids", help="prompt as token ids, for a model without a tokenizer")
    options, passed_on = parser.parse_known_args()
    expected = {ceiling: _plan(options.model, ceiling, passed_on) for ceiling in options.ceilings}
    measured: dict[int, list[Measured]] = {ceiling: [] for ceiling in options.ceilings}
    for number in range(options.rounds):
        for ceiling in options.ceilings:
            found = Measured.of(_tokens(options, ceiling, passed_on)["summary"])
            measured[ceiling].append(found)
            print(f"round {number + 1}, {ceiling >> 20} MiB: {found.seconds:.3f} s a token",
                  file=sys.stderr)  # fmt: skip
    rows = [_row(ceiling, expected[ceiling], measured[ceiling]) for ceiling in options.ceilings]
    header = run_header(None, {"model": options.model, "tolerance": TOLERANCE})
    print(_table(rows))
    print(json.dumps({"header": header, "complete": True, "rows": rows}))
    return 0


def _plan(model: str, ceiling: int, passed_on: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = ask("plan", model, "--memory", str(ceiling), "--json", *passed_on)
    return found


def _tokens(options: argparse.Namespace, ceiling: int, passed_on: list[str]) -> dict[str, Any]:
    prompt = ["--ids", options.ids] if options.ids else []
    length = ["-n", str(FIRST_TOKENS), "--runs", "3", "--json", "--no-telemetry-cost"]
    limit = ["--memory", str(ceiling)]
    return ask("bench", "tokens", options.model, *limit, *length, *prompt, *passed_on)


def _row(ceiling: int, plan: dict[str, Any], measured: Sequence[Measured]) -> dict[str, Any]:
    """Expected and measured figures; times are left out where the profile knows none."""
    expected, first = plan["expected"], plan["first_tokens"]
    if first is None:  # no slots, which could be empty
        first = {
            "bytes_read": expected["traffic"]["bytes_read"],
            "hit_rate": expected["hit_rate"],
            "seconds": expected["token"] and expected["token"]["total"],
        }
    seconds = Spread.of([one.seconds for one in measured])
    nbytes = Spread.of([one.bytes_read for one in measured])
    hits = Spread.of([one.hit_rate for one in measured])
    row = {
        "ceiling_bytes": ceiling,
        "window": plan["plan"]["window"],
        "assumed": expected["assumed"],
        "expected_bytes_read": first["bytes_read"],
        "measured_bytes_read": nbytes.to_json(),
        "bytes": _compared(first["bytes_read"], nbytes.median),
        "expected_hit_rate": first["hit_rate"],
        "expected_full_hit_rate": expected["hit_rate"],
        "measured_hit_rate": hits.to_json(),
        "measured_seconds": seconds.to_json(),
    }
    if (token := expected["token"]) is not None:
        row |= {
            "expected_seconds": first["seconds"],
            "expected_full_seconds": token["total"],
            "expected_flash": token["flash"],
            "expected_dram": token["dram"],
            "expected_overhead": token["overhead"],
            "bound": expected["bound"],
            "seconds": _compared(first["seconds"], seconds.median),
        }
    return row


def _compared(expected: float, measured: float) -> dict[str, Any]:
    """Their ratio, and whether it is within the tolerance."""
    ratio = expected / measured if measured else float(expected == 0) or math.inf
    return {"ratio": ratio, "within": abs(ratio - 1) <= TOLERANCE}


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            "ceiling, MiB", "planned, s/token", "measured (min to max)", "planned ÷ measured",
            "planned, MiB/token", "measured", "planned ÷ measured", "hits planned", "measured",
        ]
    ]  # fmt: skip
    for row in rows:
        spread, timed = row["measured_seconds"], "seconds" in row
        cells.append([
            f"{row['ceiling_bytes'] / MIB:,.0f}",
            f"{row['expected_seconds']:.3g}" if timed else "no profile",
            f"{spread['median']:.3g} ({spread['min']:.3g} to {spread['max']:.3g})",
            f"{row['seconds']['ratio']:.2f}" if timed else "",
            f"{row['expected_bytes_read'] / MIB:,.4g}",
            f"{row['measured_bytes_read']['median'] / MIB:,.4g}",
            f"{row['bytes']['ratio']:.2f}",
            f"{row['expected_hit_rate']:.1%}",
            f"{row['measured_hit_rate']['median']:.1%}",
        ])  # fmt: skip
    return markdown(cells)


if __name__ == "__main__":
    sys.exit(ended("plan_check", main))
