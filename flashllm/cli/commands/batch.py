"""`flashllm batch`: answers to all rows of a file, in another file."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.batch.admission import DEFAULT_SCHEDULE, SCHEDULES, admission_of
from flashllm.batch.block import RowsInBlock, waits_for_places
from flashllm.batch.data_parallel.weightless_model import WeightlessModel
from flashllm.batch.encoded_row import encode_row
from flashllm.batch.input_rows import STREAM, InputRows, open_source, read_rows
from flashllm.batch.journal import BatchKey
from flashllm.batch.output import BatchOutput, FileOutput, StreamOutput
from flashllm.batch.row import Row, RowDefaults
from flashllm.batch.row_by_row import RowByRow, Schedule
from flashllm.batch.run import BatchRun, BatchSummary
from flashllm.cli.commands import batch_block, batch_policy
from flashllm.cli.commands.batch_progress import BatchProgress
from flashllm.cli.commands.batch_stages import add_stages, check_stages, follow, opened_stages
from flashllm.cli.commands.batch_workers import add_ray, check_ray, opened_workers
from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import add_model, add_options, argument
from flashllm.cli.shared.interrupt import Cancellable, RunningModel, run_interruptibly
from flashllm.cli.shared.output import Output, remark
from flashllm.cli.shared.policy_flag import AUTO, add_model_options, add_policy
from flashllm.cli.shared.prompt_flags import add_prompt_flags, check_prompt_flags
from flashllm.cli.shared.tracing import add_trace, check_trace, traced
from flashllm.engine.sampling import StopMatcher
from flashllm.errors import FlashllmError, UsageError
from flashllm.flash.manifest import manifest_hash
from flashllm.planning.batch.applied_policy import ROWS_MAX
from flashllm.settings.options import MODEL_OPTIONS, SAMPLING_OPTIONS
from flashllm.settings.values import parse_count
from flashllm.telemetry.token_report import stats_table
from flashllm.units import (
    format_count,
    format_number,
    format_seconds,
    format_token_count,
)

if TYPE_CHECKING:
    from flashllm.batch.answer_order import AnswerOrder
    from flashllm.engine.local import Model
    from flashllm.engine.protocol import PromptModel
    from flashllm.options import ModelOptions
    from flashllm.planning.batch.policy import BatchPolicy
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.device_rates import DeviceRates

EXIT_ROW_ERRORS = 65
"""As of bad data: some rows have an error instead of an answer."""
TRIED_PROMPTS = 16
"""Rows whose prompts the number of rows is found with."""
MODEL_NAMES = ("ctx_size", "select", "kv_dtype", "prompt_neurons", "arithmetic")
"""Options of the model that answers depend on."""


def batch(arguments: argparse.Namespace) -> int:
    """Answers the rows; 0 if all have an answer, 65 if some have errors, 130 after Ctrl-C."""
    check_prompt_flags(arguments)
    StopMatcher(arguments.stop)  # which refuses what can stop nothing
    defaults = _defaults(arguments)
    _check_output(arguments)
    check_trace(arguments.trace)
    batch_policy.check_policy(arguments)
    check_ray(arguments)
    check_stages(arguments)
    if arguments.stage:  # the first one has number 0
        return follow(arguments)
    scratch = None if arguments.output == STREAM else Path(arguments.output).absolute().parent
    with open_source(arguments.rows) as source:
        directory = open_model.model_directory(arguments.model)  # before all rows are read
        with read_rows(source, arguments.rows, defaults, scratch) as rows:
            _remark_failures(rows)
            with _output(arguments, rows, directory) as output:
                return _answer(arguments, directory, rows, defaults, output)


def _block(text: str) -> int:
    """The rows of a block; 0 leaves it to trials."""
    if text == AUTO:
        return 0
    rows = parse_count(text)
    if not 1 <= rows <= ROWS_MAX:
        raise UsageError(f"{text!r}: expected 1 to {ROWS_MAX} rows at once, or {AUTO}")
    return rows


def _defaults(arguments: argparse.Namespace) -> RowDefaults:
    return RowDefaults(
        max_tokens=arguments.max_tokens,
        sampling=open_model.sampling_of(arguments),
        stop=tuple(arguments.stop),
        system=arguments.system,
        raw=arguments.raw,
    )


def _check_output(arguments: argparse.Namespace) -> None:
    if arguments.output != STREAM:
        return
    if arguments.json:
        raise UsageError("--json prints where the answers go; name a file for the answers")
    if arguments.overwrite:
        raise UsageError("--overwrite is for a file, and the answers go to standard output")


def _remark_failures(rows: InputRows) -> None:
    first = rows.first_failure
    if first is not None:
        remark(
            f"{rows.name}: {rows.failures} of {format_count(len(rows))} rows cannot be answered;"
            f" the first is line {first.line}: {first.message} ({first.code})"
        )


def _output(arguments: argparse.Namespace, rows: InputRows, directory: Path) -> BatchOutput:
    if arguments.output == STREAM:
        return StreamOutput(Output().write, len(rows), as_finished=arguments.as_finished)
    output = FileOutput(
        Path(arguments.output),
        rows,
        _key(arguments, rows, directory),
        as_finished=arguments.as_finished,
        overwrite=arguments.overwrite,
    )
    if output.order.n_done:
        remark(
            f"{arguments.output}: {format_count(output.order.n_done)} of"
            f" {format_count(len(rows))} rows are done; going on with the rest"
        )
    return output


def _key(arguments: argparse.Namespace, rows: InputRows, directory: Path) -> BatchKey:
    """What the answers depend on: rows, model, and settings by their flags."""
    options = [*SAMPLING_OPTIONS, *(each for each in MODEL_OPTIONS if each.name in MODEL_NAMES)]
    settings: dict[str, Any] = {
        option.flags[-1]: getattr(arguments, option.name) for option in options
    }
    for name in ("system", "raw", "stop", "as_finished"):
        settings[f"--{name.replace('_', '-')}"] = getattr(arguments, name)
    return BatchKey(rows.content_hash, manifest_hash(directory), settings)


@dataclass(frozen=True, slots=True)
class _Report:
    """How the batch went, made while the model is open."""

    summary: BatchSummary
    values: dict[str, Any]
    """For `--json`."""
    stats: str
    """For `--stats`."""

    @classmethod
    def of(
        cls,
        summary: BatchSummary,
        rates: DeviceRates | None,
        plan: Plan,
        workers: list[dict[str, Any]] | None = None,
        policy: batch_policy.PolicyReport | None = None,
    ) -> _Report:
        """Of one process, or by the rates of one worker; without rates there is no bound."""
        rows, shares = summary.costs.rows(rates, plan), None
        if policy is not None:
            rows, shares = [*policy.rows(), *rows], policy.to_json()
        return cls(summary, summary.to_json(rates, plan, workers, shares), stats_table(rows))


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that is about to be answered."""

    arguments: argparse.Namespace
    directory: Path
    rows: InputRows
    defaults: RowDefaults
    output: BatchOutput
    running: RunningModel
    progress: BatchProgress

    def answer(self) -> _Report:
        """Opens the model, here or on workers, and answers."""
        return self._answer_here() if self.arguments.ray is None else self._answer_by_workers()

    def _answer_here(self) -> _Report:
        arguments, policy = self.arguments, self._policy()
        block, options = arguments.block, open_model.options_of(arguments)
        if not block:
            block, options = self._found_block()
        opened: contextlib.AbstractContextManager[Model]
        if arguments.stages is not None:
            opened = opened_stages(arguments, self.directory)
        elif policy is not None:
            made, block = batch_policy.applied(arguments, self.directory, policy), policy.block.rows
            opened = open_model.open_engine(self.directory, arguments, block, made.options)
        else:
            opened = open_model.open_engine(self.directory, arguments, block, options)
        with opened as model, self._running(model):
            for caution in model.cautions():
                remark(caution)
            schedule: Schedule = RowByRow(model, self._is_stopped, self.progress.token)
            if block > 1:
                waits = waits_for_places(model)
                steps = arguments.max_tokens
                admission = admission_of(arguments.schedule, block, steps, waits=waits)
                schedule = RowsInBlock(model, self._is_stopped, self.progress.token, admission)
            with traced(model, arguments.trace):
                summary = self._run(model).answer(schedule)
            # What a stage waits for is no bound of its own machine.
            rates = None if arguments.stages is not None else model.rates()
            report = None
            if policy is not None:
                report = batch_policy.PolicyReport.of(policy, model.plan, model.decoder.spec)
            return _Report.of(summary, rates, model.plan, policy=report)

    def _answer_by_workers(self) -> _Report:
        workers = opened_workers(
            self.arguments, self.directory, self._is_stopped, self.progress.token, self._on_lost
        )
        # Ctrl-C reaches the workers while they open the model, too.
        with self._running(self), workers as opened:
            first = opened.workers[0].opened
            model = WeightlessModel(self.directory, first.plan)
            summary = self._run(model).answer(opened)
            each = [worker.to_json() for worker in opened.workers]
            return _Report.of(summary, first.rates, first.plan, each)

    def _found_block(self) -> tuple[int, ModelOptions]:
        """The number of rows that was the fastest in trials, and the options it was tried with."""
        prompts = self._tried_prompts()
        if not prompts:
            return 1, open_model.options_of(self.arguments)
        trials = batch_block.BlockTrials(self.arguments, self.directory, self.running)
        return trials.best(prompts, min(len(self.rows), ROWS_MAX))

    def _policy(self) -> BatchPolicy | None:
        """The policy of the block, as it was asked for or found; None where there is none."""
        asked: BatchPolicy | str | None = self.arguments.batch_policy
        if not isinstance(asked, str):
            return asked
        rows = len(self.rows)
        return batch_policy.found_policy(
            self.arguments, self.directory, self._tried_prompts(), rows, self.running
        )

    def _tried_prompts(self) -> list[list[int]]:
        """Prompts of the first rows, for trials."""
        first = map(self.rows.row, range(min(len(self.rows), TRIED_PROMPTS)))
        prompts: list[list[int]] = []
        with open_model.open_engine(self.directory, self.arguments) as model:
            for row in (one for one in first if isinstance(one, Row)):
                with contextlib.suppress(FlashllmError):  # which the row is told in its turn
                    prompts.append(encode_row(model, row, self.defaults).ids)
        return prompts

    def cancel(self) -> None:
        """Nothing: workers ask often enough whether they are to stop."""

    def _run(self, model: PromptModel) -> BatchRun:
        self.progress.begin()
        rows, defaults, output = self.rows, self.defaults, self.output
        return BatchRun(model, rows, defaults, output, self._is_stopped, self.progress.row)

    @contextlib.contextmanager
    def _running(self, what: Cancellable) -> Iterator[None]:
        self.running.model = what
        try:
            yield
        finally:
            self.running.model = None

    def _is_stopped(self) -> bool:
        return self.running.is_stopped

    def _on_lost(self, text: str) -> None:
        self.progress.clear()
        remark(text)


def _answer(
    arguments: argparse.Namespace,
    directory: Path,
    rows: InputRows,
    defaults: RowDefaults,
    output: BatchOutput,
) -> int:
    """Answers on a thread of its own; prints the report."""
    running, progress = RunningModel(), BatchProgress(output.order)
    batch = _Batch(arguments, directory, rows, defaults, output, running, progress)
    reports: list[_Report] = []
    try:
        interruption = run_interruptibly(
            lambda: reports.append(batch.answer()), running, progress.clear
        )
    except FlashllmError:
        if output.order.n_done:
            remark(_how_to_go_on(arguments, output.order))
        raise
    _print(arguments, reports[0])
    if not output.order.is_complete:
        remark(f"interrupted; {_how_to_go_on(arguments, output.order)}")
        return interruption.exit_code
    return EXIT_ROW_ERRORS if output.order.n_failures else 0


def _how_to_go_on(arguments: argparse.Namespace, order: AnswerOrder) -> str:
    done = f"{format_count(order.n_done)} of {format_count(order.n_rows)} rows are done"
    if arguments.output == STREAM:
        return f"{done}; standard output cannot be gone on with, a file can"
    return f"{done}, in {arguments.output}: the same command goes on with the rest"


def _print(arguments: argparse.Namespace, report: _Report) -> None:
    if arguments.json:
        Output().json(report.values)
    if arguments.stats:
        sys.stderr.write(report.stats)
    summary = report.summary
    errors = f", errors: {format_count(summary.errors)}" if summary.errors else ""
    remark(
        f"{format_count(summary.answered)} of {format_count(summary.rows)} rows have answers"
        f"{errors}; {format_token_count(summary.costs.completion_tokens)} in"
        f" {format_seconds(summary.seconds * 1e9)},"
        f" {format_number(summary.tokens_per_second)} a second"
    )


BATCH_EXAMPLES = """\
examples:
  flashllm batch rows.jsonl answers.jsonl                 # the demo, or FLASHLLM_MODEL, answers
  flashllm batch rows.jsonl answers.jsonl big --memory 6GiB -n 200 --stats
  flashllm batch requests.jsonl answers.jsonl big         # OpenAI's batch files, in and out
  some-program | flashllm batch - - big | jq .text
  flashllm batch rows.jsonl answers.jsonl big --ray auto  # by all machines of a Ray cluster

IN has a JSON object a line: {"id": "a", "prompt": "What does ocean mean?"}, or with "messages". A
row may say max_tokens, temperature, top_p, top_k, min_p, repetition_penalty, seed and stop. What
is wrong with a row is its answer; the others go on. Stopped or killed, the same command goes on.
"""


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `batch`."""
    parser.add_argument(
        "rows", metavar="IN", help="a file of rows, JSON a line; `-` is standard input"
    )
    parser.add_argument(
        "output", metavar="OUT", help="the file for the answers; `-` is standard output"
    )
    add_model(parser)
    add_prompt_flags(parser)
    parser.add_argument(
        "--block",
        type=argument(_block),
        metavar="N",
        help="answer so many rows at once: what they need is read once for all of them, and each"
        " has keys and values of its own in memory (1); auto tries which number is the fastest, and"
        " puts a part of keys and values on disk where they do not fit",
    )
    parser.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default=DEFAULT_SCHEDULE,
        metavar="NAME",
        help="when rows come into a block: continuous (as others finish; the default), zigzag (a"
        " block to its end, then the next), or diagonal (evenly over the tokens of an answer, so"
        " that keys and values take less memory at once)",
    )
    parser.add_argument(
        "--as-finished",
        action="store_true",
        help="write answers as they are finished, not in the order of the rows",
    )
    parser.add_argument("--overwrite", action="store_true", help="begin anew, whatever OUT has")
    parser.add_argument(
        "--stats", action="store_true", help="print what the answers cost, on standard error"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object with every number at the end"
    )
    add_ray(parser)
    add_stages(parser)
    add_trace(parser)
    add_options(parser, "answers, where rows do not say otherwise", SAMPLING_OPTIONS)
    add_policy(parser.add_argument, batch_policy.HELP, auto=True)
    add_model_options(parser)
