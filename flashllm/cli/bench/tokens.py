"""`flashllm bench tokens`: what each token costs, compared with what this machine allows."""

from __future__ import annotations

import argparse
import csv
import io
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flashllm.bench.steal_time import stolen_warning
from flashllm.bench.tokens.samples import (
    ProbeSample,
    RunSample,
    Sample,
    TokenSample,
    check_tokens,
)
from flashllm.cli.bench.tokens_table import SYNTHETIC, report_table
from flashllm.cli.shared import open_model
from flashllm.cli.shared.interrupt import RunningModel, run_interruptibly
from flashllm.cli.shared.output import Output, Ticker, remark
from flashllm.errors import FlashllmError, UsageError
from flashllm.telemetry.costs import ratio

if TYPE_CHECKING:
    from flashllm.engine.local import Model

_Kind = TypeVar("_Kind", bound=Sample)

PROMPT = "What does ocean mean?"
RUNS_ADVISED = 5


def bench_tokens(arguments: argparse.Namespace) -> int:
    """Measures and prints the report; exit code 130 after Ctrl-C, with a partial report."""
    if arguments.ids is not None and not arguments.ids:
        raise UsageError("--ids is empty; give at least one token id")
    check_tokens(arguments.tokens)
    if arguments.plot is not None:
        from flashllm.predictors.evaluation import plots

        plots.require_matplotlib()
        plots.make_directory(arguments.plot)
    directory = open_model.model_directory(arguments.model)
    running, samples = RunningModel(), _Samples(arguments)
    report: dict[str, Any] = {}

    def work() -> None:
        # Lines are written here, between two tokens: were the main thread to write them while the
        # engine runs, the two would wait for each other.
        threads = _dram_threads()
        start_ns = time.perf_counter_ns()
        with open_model.open_engine(directory, arguments) as model:
            opening_ns = time.perf_counter_ns() - start_ns
            running.model = model
            try:
                report.update(_measure(model, arguments, running, samples, opening_ns, threads))
            finally:
                running.model = None

    interruption = run_interruptibly(work, running, samples.ticker.clear)
    return _print(report, samples, arguments, interruption.exit_code)


def _dram_threads() -> int:
    import flashllm.engine.local  # noqa: F401  loading the libraries is no part of opening a model
    from flashllm.system.processors import compute_threads

    return compute_threads()


def _measure(
    model: Model,
    arguments: argparse.Namespace,
    running: RunningModel,
    samples: _Samples,
    opening_ns: int,
    threads: int,
) -> dict[str, Any]:
    from flashllm.bench.header import run_header
    from flashllm.bench.tokens.machine_probe import MachineProbe
    from flashllm.bench.tokens.runs import TokenSettings, check_length, measure
    from flashllm.bench.tokens.summary import summarize
    from flashllm.flash.file_names import BUNDLES_FILE

    for caution in model.cautions():
        remark(caution)
    ids = arguments.ids or _encode(model, arguments.prompt)
    check_length(model, ids, arguments.tokens)
    settings = TokenSettings(arguments.tokens, arguments.runs, not arguments.no_telemetry_cost)
    directory = Path(model.info.directory)
    probe = MachineProbe(
        directory / BUNDLES_FILE, model.io_report(), threads, model.plan.ceiling_bytes,
        model.decoder.largest_weight, model.info.bundle_stride_bytes,
    )  # fmt: skip
    header = run_header(directory, _settings(model, ids, arguments, threads))
    samples.begin(header)
    with running.ends_when_stopped():
        for sample in measure(model, ids, settings, probe, lambda: running.is_stopped):
            samples.add(sample)
    header["settings"]["flash_problem"] = probe.problem
    return {
        "header": header,
        "complete": not running.is_stopped,
        "plan": model.plan.to_json(),
        "summary": summarize(model, samples.all, opening_ns),
        "runs": [sample.to_json() for sample in samples.of(RunSample)],
        "probes": [sample.to_json() for sample in samples.of(ProbeSample)],
    }


def _encode(model: Model, prompt: str | None) -> list[int]:
    tokenizer = model.tokenizer
    text = PROMPT if prompt is None else prompt
    if not text.strip():
        raise UsageError("the prompt is empty; give it some text")
    if tokenizer.has_chat_template:
        return tokenizer.encode_chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def _print(
    report: dict[str, Any],
    samples: _Samples,
    arguments: argparse.Namespace,
    interrupted: int,
) -> int:
    """Prints the end of the report in any form; returns the exit code."""
    output, header = Output(), report["header"]
    if header["synthetic"]:
        remark(f"{header['model']['name']} is {SYNTHETIC}: its speed says something, its words not")
    if arguments.jsonl:
        output.json({"type": "summary", "synthetic": header["synthetic"],
                     "complete": report["complete"], **report["summary"]})  # fmt: skip
    elif arguments.json:
        output.json(report)
    elif not arguments.csv:
        output.write(report_table(report))
    if arguments.plot is not None:
        from flashllm.bench.tokens import plots as token_plots

        for path in token_plots.draw(report, samples.of(RunSample), arguments.plot):
            remark(f"wrote {path}")
    if arguments.runs < RUNS_ADVISED:
        remark(f"{arguments.runs} runs say little about spread; {RUNS_ADVISED} or more would")
    if warning := stolen_warning([run["stolen_share"] for run in report["runs"]]):
        remark(warning)
    from flashllm.bench.tokens.machine_probe import memory_warning

    if warning := memory_warning([one["dram_bytes_per_second"] for one in report["probes"]]):
        remark(warning)
    if not report["complete"]:
        remark("interrupted; the report is of what was measured until then")
        return interrupted
    if not report["summary"]["same_tokens"]:
        remark("runs of one prompt gave different tokens; this is a bug of flashllm, please report")
        return FlashllmError.exit_code
    return 0


def _settings(
    model: Model, ids: Sequence[int], arguments: argparse.Namespace, threads: int
) -> dict[str, Any]:
    """The settings given and those that resulted, enough to repeat the run."""
    plan, device = model.plan, model.io_report()
    return {
        "prompt": None if arguments.ids else arguments.prompt or PROMPT,
        "prompt_ids": list(ids),
        "prompt_tokens": len(ids),
        "tokens": arguments.tokens,
        "runs": arguments.runs,
        "temperature": 0.0,
        "seed": 0,
        "memory_asked_bytes": arguments.memory,
        "ceiling_bytes": plan.ceiling_bytes,
        "select": plan.select,
        "lossy": plan.lossy,
        "policy": plan.policy,
        "window": plan.window,
        "slots": sum(plan.slots_per_layer),
        "context": plan.context,
        "kv_dtype": plan.kv_dtype,
        "verify": plan.verify,
        "io_threads": device["threads"],
        "io_backend": device["backend"],
        "io_backend_problem": device["backend_problem"],
        "direct": device["direct"],
        "direct_problem": device["fallback"],
        "kernel_threads": threads,
        "device": None if plan.device is None else asdict(plan.device),
    }


class _Samples:
    """Collects all samples, and prints each as it comes if that was asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.all: list[Sample] = []
        self.ticker = Ticker()
        self._arguments = arguments
        self._output = Output()
        self._header: dict[str, Any] = {}
        self._columns: list[str] = []

    def begin(self, header: dict[str, Any]) -> None:
        """The model is open."""
        self._header = header
        if self._arguments.jsonl:
            self._output.json({"type": "header", **header})

    def add(self, sample: Sample) -> None:
        """A token, a run or a measurement of the machine is over."""
        self.all.append(sample)
        if self._arguments.jsonl:
            self._output.json(sample.to_json())
        elif self._arguments.csv and isinstance(sample, TokenSample):
            self._row(sample)
        if isinstance(sample, RunSample):
            speed = ratio(len(sample.tokens) * 1e9, sample.decode_ns)
            self.ticker.show(f"run {sample.run + 1} ({sample.kind}): {speed:.1f} tokens/s")

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        """The samples of one kind."""
        return [sample for sample in self.all if isinstance(sample, kind)]

    def _row(self, sample: TokenSample) -> None:
        model = self._header["model"]
        row = {"model": model["name"], "synthetic": model["synthetic"], **sample.to_row()}
        text = io.StringIO()
        writer = csv.DictWriter(text, list(row), lineterminator="\n")
        if not self._columns:
            self._columns = list(row)
            writer.writeheader()
        writer.writerow(row)
        self._output.write(text.getvalue())
