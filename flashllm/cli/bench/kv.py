"""`flashllm bench kv`: what it costs and saves to see some keys and values only, on a text."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.cli.shared import open_model
from flashllm.cli.shared.decoded_text import read_decoded_passages
from flashllm.cli.shared.interrupt import RunningModel, run_interruptibly
from flashllm.cli.shared.output import Output, Ticker, remark
from flashllm.errors import UsageError

if TYPE_CHECKING:
    from flashllm.bench.kv.cases import KvCase
    from flashllm.bench.kv.runs import KvPassage
    from flashllm.options import KvPolicy, ModelOptions

BUDGETS = [0.05, 0.1, 0.2]
NAMES = ["full", "window", "h2o", "int4", "infinigen-ahead", "infinigen", "values", "specache"]
VICTIMS = ["fifo", "lru", "counter"]


def bench_kv(arguments: argparse.Namespace) -> int:
    """Measures and prints the table or one JSON object; 130 after Ctrl-C, with what there is."""
    from flashllm.bench.kv.cases import parse_cases
    from flashllm.predictors.evaluation import plots

    directory = open_model.model_directory(arguments.model)
    if arguments.plot is not None:
        plots.require_matplotlib()
        plots.make_directory(arguments.plot)
    options = open_model.options_of(arguments)
    if options.kv_policy is not None:
        raise UsageError("bench kv compares policies: give them with --kv, not with --kv-policy")
    victims = (arguments.victims or VICTIMS) if arguments.pool is not None else []
    if arguments.victims and arguments.pool is None:
        raise UsageError("--victims is for a limited pool; give --pool SHARE too")
    from flashllm.options import DEFAULT_KV_DTYPE

    cases = parse_cases(
        arguments.kv or NAMES,
        arguments.budget or BUDGETS,
        options.kv_selection,
        options.kv_dtype or DEFAULT_KV_DTYPE,
        victims,
    )
    passages = read_decoded_passages(arguments, directory)
    longest = max(len(passage.ids) for passage in passages)
    options = _with_room(options, cases, longest)
    found: dict[str, Any] = {}
    running, ticker = RunningModel(), Ticker()

    def work() -> None:
        found.update(_measure(directory, options, arguments, cases, passages, running, ticker))

    interruption = run_interruptibly(work, running, ticker.clear)
    _print(found, arguments)
    if not found["complete"]:
        remark("interrupted; the report is of the passages that were complete until then")
        return interruption.exit_code
    return 0


def _measure(
    directory: Path,
    options: ModelOptions,
    arguments: argparse.Namespace,
    cases: list[KvCase],
    passages: list[KvPassage],
    running: RunningModel,
    ticker: Ticker,
) -> dict[str, Any]:
    from flashllm.bench.header import run_header
    from flashllm.bench.kv.report import report
    from flashllm.bench.kv.runs import run_cases
    from flashllm.library import open as library_open

    total = len(cases) * sum(len(passage.ids) for passage in passages)
    done = 0

    def on_tokens(name: str, tokens: int) -> bool:
        nonlocal done
        done += tokens
        ticker.show(f"{name}: {done:,} of {total:,} tokens")
        return running.is_stopped

    with library_open.open_directory(directory, options, contexts=2) as model:
        running.model = model
        for caution in model.cautions():
            remark(caution)
        try:
            runs = run_cases(model.decoder, cases, passages, arguments.pool, on_tokens)
        finally:
            running.model = None
        settings = {
            "text": str(arguments.text),
            "tokens": sum(len(passage.ids) for passage in passages),
            "passages": len(passages),
            "prompt_share": arguments.prompt_share,
            "pool_share": arguments.pool,
            "selection": dataclasses.asdict(options.kv_selection),
            "skewed": model.decoder.is_skewed,
            "select": model.plan.select,
        }
        return {
            "header": run_header(directory, settings),
            "complete": not running.is_stopped,
            "rows": report(runs),
        }


def _with_room(options: ModelOptions, cases: list[KvCase], longest: int) -> ModelOptions:
    """A context for the longest passage, and memory for the policy that needs most."""
    # The copy of all columns of the keys is the largest index there is.
    policies = {case.selection.policy for case in cases}
    order: tuple[KvPolicy, ...] = ("specache", "infinigen", "h2o", "full")
    largest = next(one for one in order if one in policies)
    return options.having(context=options.context or longest, kv_policy=largest)


def _print(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    from flashllm.bench.kv import report

    output, rows = Output(), found["rows"]
    if arguments.json:
        output.json(found)
    else:
        settings = found["header"]["settings"]
        skewed = "with" if settings["skewed"] else "without"
        output.write(
            f"{settings['tokens']:,} tokens in {settings['passages']:,} passages, of which the"
            f" first {settings['prompt_share']:.0%} are the prompt; {skewed} skewing\n\n"
            + report.table(rows)
        )
    if arguments.plot is not None:
        title = found["header"]["model"]["name"]
        remark(f"drawn: {report.draw(rows, title, arguments.plot)}")
