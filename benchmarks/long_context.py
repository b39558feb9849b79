"""A long context whose keys and values are on flash: chosen ones against all, and against DRAM.

    python -m benchmarks.synthetic llama-7b-grouped-relu SRC --layers 8
    flashllm convert SRC MODEL --dtype int4 && rm -r SRC
    python -m benchmarks.long_context MODEL [--tokens 32768] [--decoded 12] [--rounds 3]

The model is synthetic, and so are the keys and values, which fill the context directly
(`benchmarks.planted_keys`): what is measured is time, bytes and memory, no quality. Each case has a
process of its own, one after the other, in each round in another order:

    full      everything is seen, keys and values are on flash
    ahead     infinigen as the paper has it: what is guessed a layer ahead
    infinigen the same, corrected by the layer's own queries
    fits      everything is seen, keys and values are in DRAM, under a ceiling that they fit

All but the last have the same ceiling, which all keys and values together exceed. Of each token are
counted its time, bytes from the device by /proc/self/io, and what of them were keys and values or
measuring. The bound is those bytes at the rate of random reads of their mean size. The exit code
is 1 where resident memory passed a ceiling; the last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.own_command import ask_module, ended, remark
from benchmarks.planted_keys import OUTLIER, OUTLIERS, TOKEN, fill
from benchmarks.results import markdown
from flashllm.bench.disk.probe import probe
from flashllm.bench.header import run_header
from flashllm.bench.page_cache import device_bytes
from flashllm.cli.shared.flags import argument
from flashllm.engine.local import Model, load_info, open_model
from flashllm.flash.file_names import BUNDLES_FILE
from flashllm.kv_cache.layout import kv_bytes
from flashllm.options import ModelOptions
from flashllm.settings.values import parse_positive, parse_share, parse_size
from flashllm.system.memory import rss_peak_bytes
from flashllm.units import MIB

NAME = "long_context"
CASES = ("full", "ahead", "infinigen", "fits")
WARM_TOKENS = 3
PROBE_SECONDS = 1.0
READ_THREADS = 32
_STEP_BYTES = 64 * MIB


def main() -> int:
    """Measure as the arguments ask; the last line of the output is JSON."""
    options = _arguments().parse_args()
    if options.case is not None:
        print(json.dumps(measure(options, options.case)))
        return 0
    spec = load_info(options.model).spec
    whole_bytes = kv_bytes(spec, options.tokens, "f16")
    if options.memory is None:
        options.memory = int(0.9 * whole_bytes)
    if options.memory >= whole_bytes:
        remark(
            NAME,
            f"the ceiling of {options.memory / MIB:.0f} MiB is more than all keys and values take,"
            f" {whole_bytes / MIB:.0f} MiB",
        )
    runs: dict[str, list[dict[str, Any]]] = {case: [] for case in options.cases}
    for number in range(options.rounds):
        turn = number % len(options.cases)
        for case in options.cases[turn:] + options.cases[:turn]:
            runs[case].append(_run(options, case))
            remark(NAME, f"round {number + 1}, {case}: {json.dumps(runs[case][-1])}")
    rows = {case: _summary(options, own) for case, own in runs.items()}
    passed = [case for case, row in rows.items() if row["rss_peak_bytes"] > row["ceiling_bytes"]]
    print(_table(rows))
    settings = {key: str(value) for key, value in vars(options).items() if key != "case"}
    values = {
        "header": run_header(options.model, settings),
        "synthetic": f"random keys and values, {OUTLIERS} channels of each head {OUTLIER:g} times"
        " as large; nothing here says anything about quality",
        "kv_bytes": whole_bytes,
        "cases": rows,
        "passed_ceiling": passed,
    }
    print(json.dumps(values))
    return int(bool(passed))


def measure(options: argparse.Namespace, case: str) -> dict[str, Any]:
    """One case, in this process."""
    with _opened(options, case) as (model, ceiling_bytes):
        decoder, context, spec = model.decoder, model.decoder.context, model.info.spec
        begin = time.perf_counter()
        fill(context, spec, options.tokens, options.seed, options.stretch)
        fill_seconds = time.perf_counter() - begin
        for _ in range(WARM_TOKENS):
            decoder.decode(TOKEN, context)
        context.keys_values.take_counts()
        before, seconds = _read(model), []
        for _ in range(options.decoded):
            begin = time.perf_counter()
            decoder.decode(TOKEN, context)
            seconds.append(time.perf_counter() - begin)
        counts, after = context.keys_values.take_counts(), _read(model)
        read = {name: after[name] - before[name] for name in before}
        tokens = options.decoded
        return {
            "case": case,
            "ceiling_bytes": ceiling_bytes,
            "rss_peak_bytes": rss_peak_bytes(),
            "fill_seconds": fill_seconds,
            "seconds": seconds,
            **{f"{name}_a_token": value / tokens for name, value in read.items()},
            "seen_share": 1.0 if counts is None else counts.share,
            "late_share": 0.0 if counts is None else counts.late / max(1, counts.tokens),
            "recall": None if counts is None else counts.recall,
            "measured_bytes_a_token": 0 if counts is None else counts.measured_bytes / tokens,
        }


def _read(model: Model) -> dict[str, float]:
    pool = model.decoder.kv_pool
    both = model.reader_stats()
    pages = dict.fromkeys(both, 0) if pool is None or pool.file is None else pool.file.stats()
    return {
        "device_bytes": float(device_bytes() or 0),
        "kv_bytes": float(pages["bytes_read"]),
        "kv_reads": float(pages["reads"]),
        "weight_bytes": float(both["bytes_read"] - pages["bytes_read"]),
        "weight_reads": float(both["reads"] - pages["reads"]),
    }


@contextlib.contextmanager
def _opened(options: argparse.Namespace, case: str) -> Any:
    """The model for a case, and its ceiling."""
    spec = load_info(options.model).spec
    context = options.tokens + WARM_TOKENS + options.decoded + 1
    whole = kv_bytes(spec, context, "f16")
    settings = ModelOptions(
        memory=options.memory,
        context=context,
        kv_dtype="f16",
        kv_memory=options.kv_memory or int(options.kv_share * whole),
        kv_dir=options.kv_dir,
    )
    if case == "fits":
        settings = dataclasses.replace(settings, memory=options.memory + whole, kv_memory=None)
    elif case != "full":
        settings = dataclasses.replace(
            settings,
            kv_policy="infinigen",
            kv_budget=options.budget,
            kv_alpha=options.alpha,
            spec_start_layer=options.start_layer,
        )
    with open_model(options.model, settings) as model:
        if case == "ahead":
            _without_correction(model)
        yield model, settings.memory


def _without_correction(model: Model) -> None:
    """The paper's choice, for which there is no option: it is worse, and no faster to choose."""
    decoder = model.decoder
    decoder.context.keys_values.close()
    selection = dataclasses.replace(model.plan.kv_selection, corrects=False)
    decoder.context.keys_values = decoder.new_keys_values(selection)


def _run(options: argparse.Namespace, case: str) -> dict[str, Any]:
    """One case in a process of its own, which has the arguments of this one."""
    given = [
        str(options.model), "--case", case, "--tokens", str(options.tokens),
        "--decoded", str(options.decoded), "--seed", str(options.seed),
        "--memory", str(options.memory), "--kv-share", str(options.kv_share),
        "--budget", str(options.budget), "--spec-start-layer", str(options.start_layer),
        "--alpha", str(options.alpha), "--stretch", str(options.stretch),
    ]  # fmt: skip
    for name in ("kv_memory", "kv_dir"):
        if getattr(options, name) is not None:
            given += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    return ask_module(f"benchmarks.{NAME}", *given)


def _summary(options: argparse.Namespace, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the rounds, the largest peak, and the bound by flash."""
    row = dict(runs[0])
    for name, value in runs[0].items():
        if isinstance(value, float):
            row[name] = statistics.median(run[name] for run in runs)
    row["rss_peak_bytes"] = max(run["rss_peak_bytes"] for run in runs)
    row["seconds"] = statistics.median(second for run in runs for second in run["seconds"])
    row["seconds_of_rounds"] = [statistics.median(run["seconds"]) for run in runs]
    bound = 0.0
    for kind in ("kv", "weight"):
        nbytes, reads = row[f"{kind}_bytes_a_token"], row[f"{kind}_reads_a_token"]
        if not reads:
            continue
        mean = max(4096, round(nbytes / reads / 4096) * 4096)
        rate = _rate(options.model / BUNDLES_FILE, mean)
        row[f"{kind}_mean_read_bytes"], row[f"{kind}_bytes_per_second"] = mean, rate
        bound += nbytes / rate
    row["bound_seconds"] = bound
    row["of_bound"] = bound / row["seconds"]
    return row


def _rate(path: Path, read_bytes: int) -> float:
    found = probe(path, read_bytes, READ_THREADS, PROBE_SECONDS, 3, direct="optional")
    return statistics.median(result.bytes_per_second for result in found)


def _table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [["", "s a token", "device, MB a token", "of it kv", "of it measuring", "seen", "late",
              "recall", "bound, s", "of bound", "RSS peak, MiB", "ceiling, MiB"]]  # fmt: skip
    for case, row in rows.items():
        recall = row["recall"]
        lines.append([
            case,
            f"{row['seconds']:.3f}",
            f"{row['device_bytes_a_token'] / 1e6:,.1f}",
            f"{row['kv_bytes_a_token'] / 1e6:,.1f}",
            f"{row['measured_bytes_a_token'] / 1e6:,.1f}",
            f"{row['seen_share']:.1%}",
            f"{row['late_share']:.1%}",
            "" if recall is None else f"{recall:.3f}",
            f"{row['bound_seconds']:.3f}",
            f"{row['of_bound']:.0%}",
            f"{row['rss_peak_bytes'] / MIB:,.0f}",
            f"{row['ceiling_bytes'] / MIB:,.0f}",
        ])  # fmt: skip
    return markdown(lines)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, positive = parser.add_argument, argument(parse_positive)
    add("model", type=Path, metavar="MODEL", help="a converted model")
    add("--tokens", type=positive, default=32768, help="(%(default)d)")
    add("--decoded", type=positive, default=12, help="tokens that are measured (%(default)d)")
    add("--rounds", type=positive, default=3, help="(%(default)d)")
    add("--memory", type=argument(parse_size), metavar="SIZE",
        help="the ceiling (0.9 of all keys and values)")  # fmt: skip
    add("--kv-share", type=argument(parse_share), default=0.2,
        help="of all keys and values, what may be in DRAM (%(default)g)")  # fmt: skip
    add("--kv-memory", type=argument(parse_size), metavar="SIZE", help="the same in bytes")
    add("--kv-dir", type=Path, help="where keys and values go (the model's directory)")
    add("--budget", type=argument(parse_share), default=0.1, help="of infinigen (%(default)g)")
    add("--alpha", type=float, default=8.0,
        help="of infinigen, to begin with: few tokens teach it nothing (%(default)g)")  # fmt: skip
    add("--stretch", type=positive, default=1, metavar="N",
        help="tokens in a row that are chosen together (%(default)d, the worst)")  # fmt: skip
    add("--spec-start-layer", dest="start_layer", type=positive, default=2, help="(%(default)d)")
    add("--seed", type=int, default=0)
    add("--cases", type=lambda text: tuple(text.split(",")), default=CASES,
        help=f"some of {','.join(CASES)}")  # fmt: skip
    add("--case", choices=CASES, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(ended(NAME, main))
