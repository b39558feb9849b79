"""What decoding costs, as in the README: `python -m benchmarks.decode [OPTIONS]`.

Runs `flashllm run --json` in processes of its own, five times, and prints medians and spread;
options that it does not know go to `flashllm run`, such as --memory 2GiB.
The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

PROMPT = ["-p", "What does ocean mean?"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One row: medians over the runs."""

    model: str
    runs: int
    tokens: int
    select: str
    window: int
    ceiling_bytes: int
    rss_peak_bytes: int
    tokens_per_second: float
    tokens_per_second_min: float
    tokens_per_second_max: float
    bytes_read_per_token: float
    hit_rate: float
    io_bytes_per_second: float
    io_exposed_share: float
    prefill_seconds: float
    direct: bool

    @classmethod
    def of(cls, reports: Sequence[dict[str, Any]]) -> Measured:
        """The medians of some runs of the same command."""
        decodes = [report["decode"] for report in reports]
        speeds = [decode["tokens_per_second"] for decode in decodes]
        last = reports[-1]

        def median(values: list[float]) -> float:
            return statistics.median(values)

        return cls(
            model=last["model"],
            runs=len(reports),
            tokens=last["decode"]["tokens"],
            select=last["settings"]["select"],
            window=last["settings"]["window"],
            ceiling_bytes=last["memory"]["ceiling_bytes"],
            rss_peak_bytes=max(report["memory"]["rss_peak_bytes"] for report in reports),
            tokens_per_second=median(speeds),
            tokens_per_second_min=min(speeds),
            tokens_per_second_max=max(speeds),
            bytes_read_per_token=median([d["bytes_read"] / d["tokens"] for d in decodes]),
            hit_rate=median([decode["hit_rate"] for decode in decodes]),
            io_bytes_per_second=median([decode["io_bytes_per_second"] for decode in decodes]),
            io_exposed_share=median([d["parts_ns"]["io_exposed"] / d["wall_ns"] for d in decodes]),
            prefill_seconds=median([report["prefill"]["wall_ns"] / 1e9 for report in reports]),
            direct=last["io"]["direct"],
        )

    def markdown(self) -> str:
        """A row of the README's table."""
        spread = f"{self.tokens_per_second_min:.1f} to {self.tokens_per_second_max:.1f}"
        return (
            f"| {self.model} | {self.select}, {self.window} | {self.ceiling_bytes / 2**20:,.0f} "
            f"| {self.rss_peak_bytes / 2**20:,.0f} | {self.tokens_per_second:.1f} ({spread}) "
            f"| {self.bytes_read_per_token / 1e6:.2f} | {self.hit_rate:.1%} "
            f"| {self.io_bytes_per_second / 1e6:,.0f} |"
        )


HEADER = (
    "| model | select, window | ceiling MiB | peak RSS MiB | tokens/s (of 5) | MB/token | hits "
    "| flash MB/s |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> int:
    """Measure one model at one setting."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__)
    parser.add_argument("--model", help="a converted model; without one, the demo")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("--ids", help="prompt as token ids, for a model without a tokenizer")
    arguments, passed_on = parser.parse_known_args()
    prompt = ["--ids", arguments.ids] if arguments.ids else PROMPT
    model = [arguments.model] if arguments.model else []
    command = [sys.executable, "-m", "flashllm", "run", *model, *prompt, "-n",
               str(arguments.tokens), "--json", *passed_on]  # fmt: skip
    reports = []
    for number in range(arguments.runs):
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode:
            sys.stderr.write(finished.stderr)
            return finished.returncode
        reports.append(json.loads(finished.stdout))
        if not reports[-1]["decode"]["tokens"]:
            print("the answer ended at once: give another prompt with --ids", file=sys.stderr)
            return 1
        speed = reports[-1]["decode"]["tokens_per_second"]
        print(f"run {number + 1} of {arguments.runs}: {speed:.1f} tokens/s", file=sys.stderr)
    measured = Measured.of(reports)
    print(HEADER)
    print(measured.markdown())
    print(json.dumps(asdict(measured)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
