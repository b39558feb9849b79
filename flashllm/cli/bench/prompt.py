"""`flashllm bench prompt`: how soon the first token comes, beside what this machine allows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.bench.steal_time import stolen_warning
from flashllm.cli.bench.prompt_table import report_table
from flashllm.cli.bench.tokens_table import SYNTHETIC
from flashllm.cli.shared import open_model
from flashllm.cli.shared.interrupt import RunningModel, run_interruptibly
from flashllm.cli.shared.output import Output, Ticker, remark
from flashllm.cli.shared.texts import read_ids
from flashllm.units import format_seconds

if TYPE_CHECKING:
    from flashllm.bench.prompt.machine import PromptMachine
    from flashllm.bench.prompt.runs import PromptRun
    from flashllm.engine.local import Model
    from flashllm.planning.plan import Plan

TEXT_TOKENS = 100_000
"""So many tokens of a text at the most."""


def bench_prompt(arguments: argparse.Namespace) -> int:
    """Measures and prints the report; exit code 130 after Ctrl-C, with a partial report."""
    directory = open_model.model_directory(arguments.model)
    ids = None if arguments.text is None else read_ids(arguments.text, directory, TEXT_TOKENS)
    running, ticker = RunningModel(), Ticker()
    report: dict[str, Any] = {}

    def work() -> None:
        machine, threads = _machine(directory, arguments)
        with open_model.open_engine(directory, arguments) as model:
            running.model = model
            try:
                report.update(_measure(model, arguments, running, ticker, machine, threads, ids))
            finally:
                running.model = None

    interruption = run_interruptibly(work, running, ticker.clear)
    return _print(report, arguments, interruption.exit_code)


def _machine(directory: Path, arguments: argparse.Namespace) -> tuple[PromptMachine, int]:
    """The rates of products, measured before the model takes its memory; and threads."""
    from flashllm.bench.prompt.machine import PromptMachine
    from flashllm.flash.store import Store
    from flashllm.planning.asked_options import prompt_is_selected
    from flashllm.planning.model_facts import choose_selector
    from flashllm.system.processors import compute_threads

    with Store(directory) as store:
        spec, select = store.spec, choose_selector(store, arguments.select)
    options = open_model.options_of(arguments).having(select=select)
    selected = prompt_is_selected(options)
    return PromptMachine(spec, compute_threads(), selected=selected), compute_threads()


def _measure(
    model: Model,
    arguments: argparse.Namespace,
    running: RunningModel,
    ticker: Ticker,
    machine: PromptMachine,
    threads: int,
    text: list[int] | None,
) -> dict[str, Any]:
    from flashllm.bench.header import run_header
    from flashllm.bench.prompt.report import PromptWeights, report_rows
    from flashllm.bench.prompt.runs import fitting_lengths, measure, random_ids
    from flashllm.bench.tokens.machine_probe import MachineProbe
    from flashllm.flash.file_names import BUNDLES_FILE

    for caution in model.cautions():
        remark(caution)
    spec, plan, device = model.info.spec, model.plan, model.io_report()
    lengths = fitting_lengths(model, arguments.lengths)
    ids = random_ids(spec.vocab_size) if text is None else _again_and_again(text)
    probe = MachineProbe(
        Path(model.info.directory) / BUNDLES_FILE, device, threads, plan.ceiling_bytes,
        model.decoder.largest_weight, model.info.bundle_stride_bytes,
    )  # fmt: skip
    settings = _settings(model, arguments, threads, lengths)
    header = run_header(Path(model.info.directory), settings)
    runs: list[PromptRun] = []
    a_round = 2 * len(lengths)
    machine.look(probe, device["threads"])
    with running.ends_when_stopped():
        for run in measure(model, ids, lengths, arguments.runs, lambda: running.is_stopped):
            runs.append(run)
            took = format_seconds(run.first_token_ns)
            ticker.show(f"{run.tokens} tokens, {run.kind}: first token after {took}")
            if len(runs) % a_round == 0:
                machine.look(probe, device["threads"])
    settings["flash_problem"] = probe.problem
    weights = PromptWeights.of(spec, model.info.activity, selected=_is_selected(plan))
    rates = machine.rates
    return {
        "header": header,
        "complete": not running.is_stopped,
        "plan": plan.to_json(),
        "rates": rates.to_json(),
        "dram_rates": machine.dram_rates,
        "prompts": report_rows(runs, weights, rates),
        "runs": [run.to_json() for run in runs],
    }


def _settings(
    model: Model, arguments: argparse.Namespace, threads: int, lengths: list[int]
) -> dict[str, Any]:
    """The settings given and those that resulted, enough to repeat the runs."""
    plan, device = model.plan, model.io_report()
    return {
        "lengths": lengths,
        "runs": arguments.runs,
        "text": None if arguments.text is None else str(arguments.text),
        "memory_asked_bytes": arguments.memory,
        "ceiling_bytes": plan.ceiling_bytes,
        "select": plan.select,
        "through_selected": _is_selected(plan),
        "lossy": plan.lossy,
        "slots": sum(plan.slots_per_layer),
        "chunk_tokens": plan.prefill.tokens,
        "context": plan.context,
        "kv_dtype": plan.kv_dtype,
        "verify": plan.verify,
        "io_threads": device["threads"],
        "direct": device["direct"],
        "kernel_threads": threads,
    }


def _is_selected(plan: Plan) -> bool:
    """Whether prompts go through some of the neurons; experts are chosen for each token anyway."""
    return plan.prompt_is_selected and plan.select != "router"


def _again_and_again(ids: list[int]) -> Iterator[int]:
    while True:
        yield from ids


def _print(report: dict[str, Any], arguments: argparse.Namespace, interrupted: int) -> int:
    """Prints the report in any form; returns the exit code."""
    header = report["header"]
    if header["synthetic"]:
        remark(f"{header['model']['name']} is {SYNTHETIC}: its speed says something, its words not")
    if arguments.json:
        Output().json(report)
    else:
        Output().write(report_table(report))
    if warning := stolen_warning([run["stolen_share"] for run in report["runs"]]):
        remark(warning)
    from flashllm.bench.tokens.machine_probe import memory_warning

    if warning := memory_warning(report["dram_rates"]):
        remark(warning)
    if not report["complete"]:
        remark("interrupted; the report is of what was measured until then")
        return interrupted
    return 0
