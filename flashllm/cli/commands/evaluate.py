"""`flashllm eval`: what selecting neurons costs in quality and saves in bytes."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import add_model, add_options, argument
from flashllm.cli.shared.output import Output, PacedLine, remark
from flashllm.errors import UsageError
from flashllm.settings.options import MODEL_OPTIONS
from flashllm.settings.values import parse_count, parse_positive

NAMES = (
    "memory", "select", "kv_dtype", "kv_memory", "kv_dir", "kv_victims", "verify", "kv_policy",
    "kv_budget", "kv_alpha", "kv_recall", "spec_start_layer", "arithmetic",
)  # fmt: skip
"""Its options of a model."""
MEMORY_HELP = (
    "ceiling for the memory of the whole program, like 4GiB (default: as little as the evaluation"
    " can work with)"
)
DEMO_TEXT = "heldout.jsonl"
DEMO_TASKS = ("choices.jsonl", "heldout.jsonl")
DEMO_LIMIT = 400
"""Questions of each of the demo's own files by default: some minutes, not ten."""


class CountProgress:
    """Progress of a phase and the time left: one line on a terminal, else a few lines."""

    def __init__(self) -> None:
        self._line = PacedLine()
        self._phase = ""
        self._total = self._done = 0
        self._start = 0.0

    def start(self, phase: str, total_bytes: int) -> None:
        """A phase begins."""
        self._phase, self._total, self._done = phase, max(total_bytes, 1), 0
        self._start = time.monotonic()

    def advance(self, nbytes: int) -> None:
        """`nbytes` more are done."""
        self._done += nbytes
        self._line.show(self._format)

    def warn(self, text: str) -> None:
        """A sentence."""
        self._line.clear()
        remark(text)

    def finish(self) -> None:
        """The phase is over."""
        self._line.clear()

    def _format(self) -> str:
        left = (time.monotonic() - self._start) * (self._total / self._done - 1)
        return f"{self._phase}: {self._done / self._total:.0%}, about {left:.0f} s left"


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluates as the arguments ask, and prints tables or one JSON object."""
    directory = open_model.model_directory(arguments.model)
    text, tasks, limit = _wanted(arguments, directory)
    if arguments.plot is not None and text is None:
        raise UsageError("--plot draws what --text measures; give a text")
    from flashllm.predictors.evaluation import (
        EvaluatedModel,
        TaskSettings,
        TextSettings,
        evaluate_tasks,
        evaluate_text,
        plots,
        tables,
    )

    if arguments.plot is not None:
        plots.require_matplotlib()
        plots.make_directory(arguments.plot)
    progress, start = CountProgress(), time.monotonic()
    with EvaluatedModel.open(
        directory,
        arguments.select,
        arguments.kv_dtype,
        arguments.verify,
        arguments.memory,
        open_model.options_of(arguments),
    ) as model:
        report: dict[str, Any] = model.to_json()
        try:
            if text is not None:
                settings = TextSettings(
                    arguments.tokens, arguments.skip, arguments.all_tokens, arguments.seed
                )
                report["text"] = evaluate_text(model, text, settings, progress)
            if tasks:
                limits = TaskSettings(limit)
                report["tasks"] = [evaluate_tasks(model, path, limits, progress) for path in tasks]
        finally:
            progress.finish()
    report["seconds"] = round(time.monotonic() - start, 3)
    output = Output()
    if arguments.json:
        output.json(report)
    else:
        output.write(tables.report_table(report))
    if arguments.plot is not None:
        drawn = plots.draw_text(report["text"], report["model"], arguments.plot)
        for path in drawn:
            remark(f"wrote {path}")
        if not drawn:
            remark("nothing was drawn: the neurons of this model are never zero")
    return 0


def _wanted(
    arguments: argparse.Namespace, directory: Path
) -> tuple[Path | None, list[Path], int | None]:
    """The text, the tasks and their number; for the demo, its own unless others are given."""
    text, tasks = arguments.text, list(arguments.tasks)
    if text is not None or tasks:
        return text, tasks, arguments.limit
    demo = open_model.demo_folder(arguments.model, directory)
    if demo is None:
        raise UsageError("there is nothing to evaluate on; give --text FILE, --tasks FILE, or both")
    limit = DEMO_LIMIT if arguments.limit is None else arguments.limit
    return demo / DEMO_TEXT, [demo / name for name in DEMO_TASKS], limit


EVAL_EXAMPLES = """\
examples:
  flashllm eval                                 the demo, on its own text and questions
  flashllm eval ~/big.flash --text notes.txt --plot pictures
  flashllm eval ~/big.flash --tasks questions.jsonl --limit 200 --json

TEXT: .txt; .jsonl with a conversation a line, whose answers count; .ids with token ids a line.
TASKS: .jsonl, a question a line, scored dense and as selected, side by side:
  {"query": "The sea is", "choices": ["wet", "dry"], "answer": 0}      the likelier choice
  {"messages": [{"role": "user", "content": "..."}], "expected": "..."}    the greedy answer
"""


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `eval`."""
    add_model(parser)
    parser.add_argument(
        "--text", type=Path, metavar="TEXT", help="perplexity, errors and window use on a text"
    )
    parser.add_argument(
        "--tasks",
        type=Path,
        action="append",
        default=[],
        metavar="TASKS",
        help="count right answers to the questions in TASKS; repeatable",
    )
    count = argument(parse_positive)
    parser.add_argument(
        "--tokens",
        type=count,
        default=20_000,
        metavar="N",
        help="tokens of the text, taken evenly from all of its lines (20000)",
    )
    parser.add_argument(
        "--skip",
        type=argument(parse_count),
        default=0,
        metavar="N",
        help="tokens at the start of each passage that are not counted (0)",
    )
    parser.add_argument(
        "--all-tokens", action="store_true", help="in conversations, count questions too"
    )
    parser.add_argument(
        "--limit",
        type=count,
        metavar="N",
        help="questions of each file, taken evenly from all of it (all; 400 of the demo's own)",
    )
    parser.add_argument(
        "--seed",
        type=argument(parse_count),
        default=0,
        metavar="N",
        help="of the sample of neurons whose friends are looked for (0)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object with every number")
    parser.add_argument(
        "--plot", type=Path, metavar="DIR", help="draw PNG pictures into DIR (needs matplotlib)"
    )
    options = tuple(
        replace(option, help=MEMORY_HELP) if option.name == "memory" else option
        for option in MODEL_OPTIONS
        if option.name in NAMES
    )
    add_options(parser, "model", options)
