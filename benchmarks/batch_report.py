"""Latency against throughput, where the time goes, and what each part of a batch is worth.

    python -m benchmarks.batch_report MODEL --memory SIZE --out DIR [--case 64+16]
        [--blocks 1,4,16,64] [--rounds 3]

Blocks of each size are run alone: the latency is that of all their rows, the throughput the tokens
of their answers over it. Then the largest is run once more without parts of it: row by row, without
overlap, with keys and values half on flash, and by the schedule that waits for a whole block.
Attention is always computed where keys and values are, by the CPU, so there is no run without
that. Medians of --rounds, by turns. DIR gets batches.png and batches.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.batch_runs import Case, parse_case, random_prompts, run_batch, write_rows
from benchmarks.own_command import ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.errors import CannotCreate
from flashllm.flash.manifest import read_manifest
from flashllm.settings.values import parse_positive, parse_size

NAME = "batch_report"
COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000",
    "#882255", "#44aa99",
)  # fmt: skip


@dataclass(slots=True)
class Measured:
    """One way to answer rows."""

    name: str
    rows: int
    flags: tuple[str, ...]
    seconds: list[float] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def latency(self) -> float:
        """Seconds of all rows: the median."""
        return statistics.median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """Of answers."""
        return float(self._report["completion_tokens"] / self.latency)

    @property
    def tokens_per_megabyte(self) -> float | None:
        """Tokens of answers for 10^6 bytes from flash; None where nothing is read."""
        read = self._report["bytes_per_token"]
        return 1e6 / read if read else None

    @property
    def parts(self) -> dict[str, float]:
        """Milliseconds of a token of an answer, by what it was spent on; prompts as one part."""
        report = self._report
        tokens = max(report["completion_tokens"], 1)
        parts = {"prompts": report["prefill"]["wall_ns"]} | report["decode"]["parts_ns"]
        return {name: value / tokens / 1e6 for name, value in parts.items() if value}

    @property
    def _report(self) -> dict[str, Any]:
        """That of the run in the middle."""
        order = sorted(range(len(self.seconds)), key=lambda at: self.seconds[at])
        return self.reports[order[len(order) // 2]]

    def to_json(self) -> dict[str, Any]:
        """Plain values, derived ones included."""
        return asdict(self) | {
            "latency_s": self.latency,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_megabyte": self.tokens_per_megabyte,
            "parts_ms": self.parts,
        }


def main() -> int:
    """Measure as the arguments ask; the last line of the output is JSON."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a converted model's directory")
    add("--memory", type=argument(parse_size), metavar="SIZE", help="the ceiling")
    add("--out", type=Path, required=True, metavar="DIR")
    add(
        "--case",
        type=argument(parse_case),
        default=parse_case("64+16"),
        metavar="S+N",
        help="(64+16)",
    )
    add("--blocks", type=argument(_blocks), default=_blocks("1,4,16,64"), metavar="N,...")
    add("--rounds", type=argument(parse_positive), default=3, metavar="N", help="(3)")
    options = parser.parse_args()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotCreate(f"{options.out}: {error.strerror}") from error
    sizes = [Measured(f"{n} row{'s' * (n > 1)}", n, ("--block", str(n))) for n in options.blocks]
    whole = max(options.blocks)
    block = ("--block", str(whole))
    ablation = [
        Measured("row by row", whole, ("--block", "1")),
        Measured("without overlap", whole, (*block, "--overlap", "none")),
        Measured(
            "keys and values half on flash", whole, ("--policy", f"{whole},1,0,100,0,50,0,100")
        ),
        Measured(
            "zigzag, half as many at once",
            whole,
            ("--block", str(max(whole // 2, 1)), "--schedule", "zigzag"),
        ),
    ]
    measure(options, [*sizes, *ablation])
    report: dict[str, Any] = {
        "header": run_header(options.model, {key: str(v) for key, v in vars(options).items()}),
        "blocks": [one.to_json() for one in sizes],
        "ablation": [one.to_json() for one in ablation],
    }
    (options.out / "batches.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(sizes, ablation, options.out / "batches.png", options)
    print(table(sizes, ablation))
    print(json.dumps({"out": str(options.out), "synthetic": report["header"]["synthetic"]}))
    return 0


def measure(options: argparse.Namespace, ways: list[Measured]) -> None:
    """All ways, by turns."""
    vocabulary = read_manifest(options.model).spec.vocab_size
    case: Case = options.case
    ceiling = [] if options.memory is None else ["--memory", str(options.memory)]
    with tempfile.TemporaryDirectory(prefix="batch-report-") as folder:
        for number in range(options.rounds):
            for one in ways:
                prompts = random_prompts(vocabulary, one.rows, case, number)
                file = write_rows(Path(folder) / "rows.jsonl", prompts, case.new_tokens)
                flags = [*one.flags, *ceiling, "-n", str(case.new_tokens)]
                found = run_batch(options.model, file, case, flags)
                one.seconds.append(found["seconds"])
                one.reports.append(found)
                remark(NAME, f"{one.name}: {found['seconds']:.2f} s")


def table(sizes: list[Measured], ablation: list[Measured]) -> str:
    """All ways, each beside the largest block."""
    whole = max(sizes, key=lambda one: one.rows)
    rows = [["", "rows", "latency, s", "tokens/s", "tokens/MB of flash", "of the largest block"]]
    for one in [*sizes, *ablation]:
        per = one.tokens_per_megabyte
        rows.append([
            one.name, str(one.rows), f"{one.latency:.2f}", f"{one.tokens_per_second:.4g}",
            "nothing read" if per is None else f"{per:.4g}",
            f"{one.tokens_per_second / whole.tokens_per_second:.2f}",
        ])  # fmt: skip
    return str(markdown(rows))


def draw(
    sizes: list[Measured], ablation: list[Measured], path: Path, options: argparse.Namespace
) -> Path:
    """A PNG file: latency against throughput, and where a token's time goes."""
    from flashllm.predictors.evaluation.plots import save
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    latencies = [one.latency for one in sizes]
    speeds = [one.tokens_per_second for one in sizes]
    left.plot(latencies, speeds, marker="o", color=COLORS[0], label="blocks")
    for one in sizes:
        left.annotate(
            one.name, (one.latency, one.tokens_per_second), textcoords="offset points",
            xytext=(5, -11), fontsize=8,
        )  # fmt: skip
    for number, one in enumerate(ablation, 1):
        left.plot(
            one.latency, one.tokens_per_second, marker="x", linestyle="", color=COLORS[number],
            label=f"{one.rows} rows: {one.name}",
        )  # fmt: skip
    case = options.case
    left.set(
        title=f"{options.model.name}: {case.prompt_tokens} + {case.new_tokens} tokens a row",
        xlabel="latency of all rows, s",
        ylabel="tokens of answers a second",
        xscale="log",
        yscale="log",
    )
    left.margins(0.15)
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    left.legend(frameon=False, fontsize=8)
    everything = [*sizes, *ablation]
    names = list(dict.fromkeys(name for one in everything for name in one.parts))
    bottom = [0.0] * len(everything)
    places = range(len(everything))
    for number, name in enumerate(names):
        heights = [one.parts.get(name, 0.0) for one in everything]
        right.barh(places, heights, left=bottom, color=COLORS[number % len(COLORS)], label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    right.set_yticks(places, [one.name for one in everything], fontsize=8)
    right.invert_yaxis()
    right.set(title="where a token's time goes", xlabel="ms a token of an answer")
    right.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    drawn: Path = save(figure, path)
    return drawn


def _blocks(text: str) -> list[int]:
    return sorted({parse_positive(part) for part in text.split(",")})


if __name__ == "__main__":
    raise SystemExit(ended(NAME, main))
