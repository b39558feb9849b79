"""`flashllm bench ablation`: the paper's Table 2, measured here."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.cli.shared import open_model
from flashllm.cli.shared.output import Output, Ticker, remark
from flashllm.errors import EXIT_INTERRUPTED, UsageError
from flashllm.library.directories import shown_name

if TYPE_CHECKING:
    from flashllm.bench.ablation.rows import Row
    from flashllm.bench.ablation.run import Ablation, RowResult

DEMO_TEXT = "heldout.jsonl"


def bench_ablation(arguments: argparse.Namespace) -> int:
    """Runs the rows interleaved; prints the table or one JSON object."""
    from flashllm.bench.ablation import plots as ablation_plots
    from flashllm.bench.ablation import report
    from flashllm.bench.ablation.run import Ablation, Settings
    from flashllm.bench.header import run_header
    from flashllm.predictors.evaluation import plots

    if arguments.beside and not arguments.add:
        raise UsageError("--beside adds a row to those of --add; give both")
    if arguments.plot is not None:
        plots.require_matplotlib()
        plots.make_directory(arguments.plot)
    directory = open_model.model_directory(arguments.model)
    settings = Settings(
        tokens=arguments.tokens,
        runs=arguments.runs,
        memory=arguments.memory,
        select=arguments.select,
        window=arguments.window,
        io_threads=arguments.io_threads,
        kv_dtype=arguments.kv_dtype,
        verify=arguments.verify,
        direct=not arguments.no_direct,
        add=arguments.add,
        beside=tuple(open_model.model_directory(model) for model in arguments.beside),
        profile=Path(arguments.profile) if arguments.profile else None,
    )
    text = _text(arguments, directory)
    ablation = Ablation(directory, text, settings)
    if not ablation.sparse:
        remark("this model needs every neuron, so only the first two rows can be measured")
    results, complete = _run(ablation, settings.runs)
    if not results:
        return EXIT_INTERRUPTED
    found: dict[str, Any] = {"header": run_header(directory, _plain(settings))}
    found |= report.report(ablation, results, complete)
    output = Output()
    if arguments.json:
        output.json(found)
    else:
        output.write(_title(found, directory) + "\n\n" + report.table(found))
    if arguments.plot is not None:
        path = ablation_plots.draw(found, _title(found, directory), arguments.plot)
        remark(f"wrote {path}")
    return 0 if complete else EXIT_INTERRUPTED


def _run(ablation: Ablation, runs: int) -> tuple[list[RowResult], bool]:
    """The results, and whether they are complete."""
    ticker, results = Ticker(), []

    def report(row: Row, number: int) -> None:
        ticker.show(f"run {number + 1} of {runs}: {row.title}")

    try:
        for results in ablation.run(report):  # noqa: B007
            pass
    except KeyboardInterrupt:
        remark("interrupted")
        return results, False
    finally:
        ticker.clear()
    return results, True


def _text(arguments: argparse.Namespace, directory: Path) -> list[int]:
    """Token ids of the text asked for; for a demo alone, of what comes with it."""
    from flashllm.bench.ablation.run import PROMPT_TOKENS
    from flashllm.flash.store import Store
    from flashllm.planning.slot_allocation import DEFAULT_WINDOW
    from flashllm.predictors.calibration_texts import ContextLimits
    from flashllm.predictors.evaluation.texts import TOKENS_MIN, TextSettings, read_passages
    from flashllm.tokenizer.tokenizer import load_tokenizer

    path = arguments.text
    if path is None:
        demo = open_model.demo_folder(arguments.model, directory)
        if demo is None:
            raise UsageError("there is no text to decode; give --text FILE (.ids, .txt or .jsonl)")
        path = demo / DEMO_TEXT
    with Store(directory) as store:
        spec = store.spec
    bos_id = spec.bos_id
    needed = PROMPT_TOKENS + (arguments.window or DEFAULT_WINDOW) + arguments.tokens
    wanted = max(TOKENS_MIN, 4 * needed)
    limits = ContextLimits(spec.vocab_size, spec.max_positions, wanted, bos_id)
    settings = TextSettings(tokens=wanted, all_tokens=True)
    tokenizer = load_tokenizer(directory)
    passages = read_passages(path, tokenizer, limits, settings, open_model.terminal_progress())
    return [token for passage in passages.passages for token in passage.ids]


def _title(found: dict[str, Any], directory: Path) -> str:
    made_up = " (synthetic weights)" if found["header"].get("synthetic") else ""
    return f"{shown_name(directory)}{made_up}, {found['model_bytes'] / 1e9:.2f} GB of weights"


def _plain(settings: Any) -> dict[str, Any]:
    values = dataclasses.asdict(settings)
    return values | {"beside": [str(directory) for directory in settings.beside]}
