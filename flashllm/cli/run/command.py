"""`flashllm run`: one prompt, one answer on standard output."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from flashllm.cli.run.prompt import check_prompt, is_chat, read_prompt
from flashllm.cli.run.session import SavedExchange, open_saved
from flashllm.cli.run.words import take_words
from flashllm.cli.shared import open_model
from flashllm.cli.shared.conversation_choice import ignore_named_conversation
from flashllm.cli.shared.flags import add_options, argument, resolve_later
from flashllm.cli.shared.interrupt import RunningModel, Worker, on_interrupt
from flashllm.cli.shared.mistakes import WORDS, Once
from flashllm.cli.shared.output import Output, Ticker, remark
from flashllm.cli.shared.prompt_flags import add_prompt_flags
from flashllm.cli.shared.tracing import add_trace, check_trace, traced
from flashllm.engine.answer import Request, start
from flashllm.settings.options import (
    ANSWER_OPTIONS,
    MODEL,
    MODEL_OPTIONS,
    PROFILE_OPTIONS,
    SESSION_OPTIONS,
)
from flashllm.settings.values import parse_ids
from flashllm.telemetry.token_report import stats_text

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine, EngineGeneration
    from flashllm.telemetry.token_record import EngineToken


PREFILL_QUIET_SECONDS = 0.5
JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Progress of reading the prompt."""

    done: float
    total: int


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The generation is over, perhaps because it was cancelled."""

    report: dict[str, Any]
    has_text: bool
    """False for a model without a tokenizer, whose answer has only ids."""
    stats: str
    """The cost as lines of text, if that was asked for."""
    wants_quick_profile: bool
    """Whether nobody has measured the model's disk yet."""
    cautions: list[str]
    """Those that the answer added: what made it slower than the model was when it was opened."""


Event = Union[PromptProgress, "EngineToken", AnswerEnd]


def run(arguments: argparse.Namespace) -> int:
    """Answers the prompt; returns the exit code."""
    open_model.sampling_of(arguments)  # what makes no sense is said before anything is read
    take_words(arguments)
    if arguments.save or arguments.raw or arguments.ids is not None:
        ignore_named_conversation(arguments)
    check_prompt(arguments)
    check_trace(arguments.trace)
    text = read_prompt(arguments) if arguments.ids is None else ""
    kept = open_saved(text, arguments)
    sampling = open_model.sampling_of(arguments)
    directory = open_model.model_directory(kept.model(arguments))
    running = RunningModel()

    def work(emit: Callable[[Event], None]) -> None:
        with open_model.open_engine(directory, arguments) as model:
            running.model = model
            cautions = model.cautions()
            for caution in cautions:
                remark(caution)
            try:
                request = kept.request(directory, arguments, sampling)
                generation = _start(
                    model, text, request, arguments, lambda *done: emit(PromptProgress(*done))
                )
                kept.begin(directory, arguments)
                if running.is_stopped:  # asked for while there was nothing to stop yet
                    model.cancel()
                with traced(model, arguments.trace):
                    for token in generation:
                        emit(token)
                report = generation.report()
                stats = stats_text(report, model.rates(), model.plan) if arguments.stats else ""
                wants_quick_profile = not arguments.no_quick_profile and model.wants_quick_profile
                added = [caution for caution in model.cautions() if caution not in cautions]
                emit(AnswerEnd(report, model.has_tokenizer, stats, wants_quick_profile, added))
            finally:
                running.model = None

    worker = Worker(work)
    with on_interrupt(running.stop) as interruption:
        try:
            end = _show(worker, arguments, kept)
        except BaseException:
            running.stop()
            worker.join(JOIN_SECONDS)
            kept.close()
            raise
    if end.wants_quick_profile and end.report["finish_reason"] != "cancelled":
        _measure_disk(directory, arguments)
    if kept.error is not None:
        raise kept.error
    return interruption.exit_code if end.report["finish_reason"] == "cancelled" else 0


def _measure_disk(directory: Path, arguments: argparse.Namespace) -> None:
    """Has the disk measured once this command has ended, so that no answer waits for it."""
    from flashllm.library.quick_profile_job import start_detached

    if start_detached(directory) and arguments.stats:
        remark(
            "this disk was not measured yet: that is done now, in the background, at the lowest"
            " priority and for some 10 s, so that speeds are known (--no-quick-profile leaves it"
            " out)"
        )


def _start(
    model: Engine,
    text: str,
    request: Request,
    arguments: argparse.Namespace,
    on_prefill: Callable[[float, int], None],
) -> EngineGeneration:
    """Starts the generation for a conversation, a text or ids."""
    if is_chat(model, arguments):
        for sentence in request.reasoning.unread(model.tokenizer.reasoning_variables):
            remark(sentence)
        started = start(model, request, on_prefill)
        if started.dropped:
            remark(
                "the context is full, and half of it made free: the oldest "
                f"{started.dropped} messages of this conversation are left out"
            )
        return started.generation
    ids = arguments.ids or model.tokenizer.encode(text)
    return model.generate(
        ids,
        max_tokens=request.max_tokens,
        sampling=request.sampling,
        stop=request.stop,
        on_prefill=on_prefill,
    )


def _show(worker: Worker[Event], arguments: argparse.Namespace, kept: SavedExchange) -> AnswerEnd:
    """Prints what the worker emits; returns its last event."""
    output, ticker = Output(), Ticker()
    streams = not (arguments.json or arguments.jsonl or arguments.no_stream)
    start, streamed = time.monotonic(), 0
    end: AnswerEnd | None = None
    try:
        for event in worker.events():
            if isinstance(event, PromptProgress):
                if time.monotonic() - start > PREFILL_QUIET_SECONDS:
                    ticker.show(f"reading the prompt: {int(event.done)} of {event.total} tokens")
                continue
            ticker.clear()
            if isinstance(event, AnswerEnd):
                end = event
                if streams:  # what was held back for a stop string has no token of its own
                    output.write(end.report["text"][streamed:])
                continue
            kept.add(event)
            if arguments.jsonl:
                cost = event.cost.to_json()
                output.json({"type": "token", "id": event.id, "text": event.text, "cost": cost})
            elif streams:
                output.write(event.text)
                streamed += len(event.text)
    finally:
        ticker.clear()
        if streams:
            output.end_line()
    assert end is not None
    kept.end(end.report)
    if kept.session_id is not None:
        end.report["session"] = kept.session_id
    _print_end(output, arguments, end)
    return end


def _print_end(output: Output, arguments: argparse.Namespace, end: AnswerEnd) -> None:
    if arguments.jsonl:
        output.json({"type": "summary", **end.report})
    elif arguments.json:
        output.json(end.report)
    elif not end.has_text:
        output.write(" ".join(map(str, end.report["tokens"])))
        output.end_line()
    elif arguments.no_stream:
        output.write(end.report["text"])
        output.end_line()
    for caution in end.cautions:
        remark(caution)
    sys.stderr.write(end.stats)
    session = end.report.get("session")
    if arguments.save and session is not None:
        remark(f"saved as conversation {session}")
    if end.report["finish_reason"] == "cancelled":
        hint = "" if session is None else f"; `flashllm run --session {session}` goes on with it"
        remark(f"interrupted; the answer is incomplete{hint}")


RUN_EXAMPLES = """\
examples:
  flashllm run "What does ocean mean?"                  # the demo, or FLASHLLM_MODEL, answers
  flashllm run big "The capital of France is" --raw -n 20 --memory 6GiB
  cat notes.txt | flashllm run "Summarise this."        # standard input goes before the text
  flashllm run "Summarise this." -f notes.txt           # and so does a file
  flashllm run "Define river." --save                   # keep it; the chat finds it too
  flashllm run "And sea?" --continue                    # go on with the latest conversation
  flashllm run --continue                               # and with its answer that was stopped
  flashllm run -p "Define river." --json | jq .decode.tokens_per_second

The first word is the model where it names one (`flashllm ls`, a path, ORG/NAME), and the rest the
prompt; otherwise all words are the prompt. -p TEXT is always a prompt.
"""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `run`."""
    parser.add_argument(
        WORDS,
        nargs="*",
        metavar="MODEL|TEXT",
        help=f"{MODEL.help} [{MODEL.variable}], and the prompt",
    )
    resolve_later(parser, (MODEL,))
    parser.add_argument(
        "-p",
        "--prompt",
        action=Once,
        metavar="TEXT",
        help="the prompt; `-`, or a pipe, is standard input",
    )
    parser.add_argument(
        "-f",
        "--file",
        action=Once,
        metavar="FILE",
        help="text that comes before that of -p, or is the prompt",
    )
    parser.add_argument(
        "--ids", type=argument(parse_ids), metavar="IDS", help="the prompt as token ids: 1,2,3"
    )
    add_prompt_flags(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object with every number")
    form.add_argument(
        "--jsonl", action="store_true", help="one JSON object per token, then a summary"
    )
    form.add_argument(
        "--no-stream", action="store_true", help="print the answer when it is complete"
    )
    parser.add_argument(
        "--stats", action="store_true", help="print what the answer cost, on standard error"
    )
    add_trace(parser)
    add_options(parser, "conversation", SESSION_OPTIONS)
    parser.add_argument(
        "--save", action="store_true", help="keep question and answer as a new conversation"
    )
    add_options(parser, "answers", ANSWER_OPTIONS)
    add_options(parser, "model", (*MODEL_OPTIONS, *PROFILE_OPTIONS))
