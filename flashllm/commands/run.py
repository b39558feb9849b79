"""`flashllm run`: one prompt, one answer on standard output."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from flashllm.commands import opening
from flashllm.commands.output import Output, Ticker, remark
from flashllm.commands.prompt import answer_stops, encode_prompt, read_prompt
from flashllm.commands.worker import EXIT_INTERRUPTED, Worker, on_interrupt
from flashllm.errors import UsageError

if TYPE_CHECKING:
    from flashllm.engine import Model, Token

PREFILL_QUIET_SECONDS = 0.5
JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """So much of the prompt has been read."""

    done: float
    total: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation is over, perhaps because it was cancelled."""

    report: dict[str, Any]
    has_text: bool
    """False for a model without a tokenizer: its answer is its ids."""


class Running:
    """The model that is answering, as the main thread sees it."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._model: Model | None = None
        # Reentrant, since Ctrl-C may come while the main thread holds it already.
        self._lock = threading.RLock()

    @property
    def model(self) -> Model | None:
        """None before it is open, and from the moment that it closes."""
        return self._model

    @model.setter
    def model(self, model: Model | None) -> None:
        with self._lock:
            self._model = model

    def stop(self) -> bool:
        """Ends the answer; False if there is no model that could."""
        self.is_stopped = True
        with self._lock:
            if self._model is not None:
                self._model.cancel()
            return self._model is not None


Event = Union[Prefilled, "Token", Finished]


def run(arguments: argparse.Namespace) -> int:
    """Answers the prompt; returns the exit code."""
    sampling = opening.sampling_of(arguments)
    if arguments.ids is not None and arguments.prompt is not None:
        raise UsageError("--ids and -p are two prompts; give one")
    if arguments.ids is not None and not arguments.ids:
        raise UsageError("--ids is empty; give at least one token id")
    text = read_prompt(arguments) if arguments.ids is None else ""
    directory = opening.model_directory(arguments.model, opening.terminal_progress())
    running = Running()

    def work(emit: Callable[[Event], None]) -> None:
        with opening.open_engine(directory, arguments) as model:
            running.model = model
            for caution in model.cautions():
                remark(caution)
            try:
                ids = arguments.ids or encode_prompt(model.tokenizer, text, arguments)
                generation = model.generate(
                    ids,
                    max_tokens=arguments.max_tokens,
                    sampling=sampling,
                    stop=answer_stops(model.tokenizer, arguments),
                    on_prefill=lambda done, total: emit(Prefilled(done, total)),
                )
                if running.is_stopped:  # asked for while there was nothing to stop yet
                    model.cancel()
                for token in generation:
                    emit(token)
                emit(Finished(generation.report(), has_text=model.tokenizer is not None))
            finally:
                running.model = None

    worker = Worker(work)
    with on_interrupt(running.stop):
        try:
            end = _show(worker, arguments)
        except BaseException:
            running.stop()
            worker.join(JOIN_SECONDS)
            raise
    return EXIT_INTERRUPTED if end.report["finish_reason"] == "cancelled" else 0


def _show(worker: Worker[Event], arguments: argparse.Namespace) -> Finished:
    """Prints what the worker emits; returns its last event."""
    output, ticker = Output(), Ticker()
    streams = not (arguments.json or arguments.jsonl or arguments.no_stream)
    start = time.monotonic()
    end: Finished | None = None
    try:
        for event in worker.events():
            if isinstance(event, Prefilled):
                if time.monotonic() - start > PREFILL_QUIET_SECONDS:
                    ticker.show(f"reading the prompt: {int(event.done)} of {event.total} tokens")
                continue
            ticker.clear()
            if isinstance(event, Finished):
                end = event
            elif arguments.jsonl:
                output.json({"type": "token", **event.to_json()})
            elif streams:
                output.write(event.text)
    finally:
        ticker.clear()
        if streams:
            output.end_line()
    assert end is not None
    _print_end(output, arguments, end)
    return end


def _print_end(output: Output, arguments: argparse.Namespace, end: Finished) -> None:
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
    if end.report["finish_reason"] == "cancelled":
        remark("interrupted; the answer is incomplete")
