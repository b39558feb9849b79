"""The engine's process: one model, asked over a socket by the application (`supervisor`).

The main thread opens the model and generates answers. A reader thread takes messages, so a stop
takes effect within one layer; a writer thread sends; a third thread answers calls. The process ends
with its application: the reader thread sees the socket close, whatever the model is doing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pkgutil
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from flashllm.engine.process import messages as messages
from flashllm.engine.process.channel import Channel
from flashllm.engine.process.messages import Failure
from flashllm.engine.protocol import OnOpening, OpeningProgress
from flashllm.options import ModelOptions
from flashllm.system.imports import gc_paused

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine, EngineGeneration

    Opener = Callable[[str | None, ModelOptions, OnOpening], Engine]

BATCH_SECONDS = 1 / 10
"""The least time between two batches of tokens. A screen that changes more often takes more
processor time than the engine can spare, and each batch costs thread switches."""
WARMING_STEP = 0.05
"""The application hears of so much more that was read ahead."""
_TOKENIZER_CALLS = ("encode", "encode_answer", "encode_chat", "decode", "chat_stops")
LEAVE_SECONDS = 1.0
"""After this time the process is ended by force, for example if a read hangs."""


class Worker:
    """Serves one application until it goes."""

    def __init__(self, connection: Connection) -> None:
        self._channel = Channel(connection, self._on_message, self._leave, BATCH_SECONDS)
        self._commands: queue.SimpleQueue[messages.Open | messages.Generate | None]
        self._commands = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[messages.Call] = queue.SimpleQueue()
        self._model: Engine | None = None
        self._lock = threading.Lock()
        self._running = 0
        self._cancelled = 0
        """All answers up to this number are cancelled."""

    def serve(self, opener: str) -> None:
        """Runs until the application goes; `opener`, a module:function, opens the engine."""
        self._channel.start()
        threading.Thread(target=self._answer_calls, name="engine-calls", daemon=True).start()
        with self._sending_errors(messages.OPENING):
            with gc_paused(freeze=True):
                opens: Opener = pkgutil.resolve_name(opener)
            self._channel.send(messages.Ready())
            while (command := self._next_command()) is not None:
                if isinstance(command, messages.Open):
                    self._open(opens, command)
                else:
                    self._generate(command)
        if self._model is not None:
            self._model.close()
        self._channel.close(LEAVE_SECONDS)

    def _next_command(self) -> messages.Open | messages.Generate | None:
        """The next command; until it comes, the context is kept, and what fits is read ahead."""
        told = share = 0.0
        while self._model is not None and self._commands.empty():
            if self._model.keep_context():
                continue
            was_begun, share = share > 0, self._model.warm_up()
            is_over = share == 1.0
            if (is_over and was_begun) or told + WARMING_STEP <= share < 1.0:
                told = share
                self._channel.send(messages.Warming(share), urgent=False)
            if is_over:
                break
        return self._commands.get()

    def _on_message(self, message: object) -> None:
        if isinstance(message, messages.Call):
            self._calls.put(message)
        elif isinstance(message, (messages.Open, messages.Generate)):
            self._commands.put(message)
        elif isinstance(message, messages.Cancel):
            self._cancel(message.number)
        else:
            assert isinstance(message, messages.Close), message
            self._leave()

    def _leave(self) -> None:
        """Ends this process, since the application closed it or is gone."""
        if self._model is None:  # a conversion leaves nothing half-written that would open
            os._exit(0)
        last_resort = threading.Timer(LEAVE_SECONDS, os._exit, [0])
        last_resort.daemon = True
        last_resort.start()
        self._commands.put(None)
        self._cancel(sys.maxsize)

    def _cancel(self, number: int) -> None:
        with self._lock:
            self._cancelled = max(self._cancelled, number)
            if self._model is not None and 0 < self._running <= number:
                self._model.cancel()

    def _open(self, opens: Opener, command: messages.Open) -> None:
        def report(progress: OpeningProgress) -> None:
            self._channel.send(messages.Opening(progress))

        with self._sending_errors(messages.OPENING):
            model = opens(command.path, command.options, report)
            tokenizer = model.tokenizer if model.has_tokenizer else None
            opened = messages.Opened(
                info=model.info,
                plan=model.plan,
                has_tokenizer=model.has_tokenizer,
                has_chat_template=tokenizer is not None and tokenizer.has_chat_template,
                reasoning_variables=tokenizer.reasoning_variables if tokenizer else frozenset(),
                cautions=model.cautions(),
                io_report=model.io_report(),
                rates=model.rates(),
                wants_quick_profile=model.wants_quick_profile,
            )
            self._model = model
            self._channel.send(opened)

    def _generate(self, command: messages.Generate) -> None:
        number, model = command.number, self._model
        assert model is not None, "an answer before the model is open"
        with self._sending_errors(number):
            with self._lock:
                generation = model.generate(
                    command.ids,
                    on_prefill=lambda done, total: self._channel.send(
                        messages.Prefilling(number, done, total), urgent=False
                    ),
                    **command.options,
                )
                self._running = number
                if self._cancelled >= number:  # while it had not begun
                    model.cancel()
            try:
                self._write(number, generation)
            finally:
                with self._lock:
                    self._running = 0

    def _write(self, number: int, generation: EngineGeneration) -> None:
        is_first = True
        for token in generation:
            if is_first:
                self._send_prefilled(number, generation)
            # The first word is waited for: it joins no batch that the prompt's progress began.
            self._channel.send(
                messages.Token(number, token.id, token.text, token.cost), urgent=is_first
            )
            is_first = False
        if is_first:
            self._send_prefilled(number, generation)
        reason = generation.finish_reason or "stop"
        cautions = [] if self._model is None else self._model.cautions()
        self._channel.send(
            messages.Finished(
                number, reason, generation.text, list(generation.ids), generation.report(), cautions
            )
        )

    def _send_prefilled(self, number: int, generation: EngineGeneration) -> None:
        prefilled = messages.Prefilled(number, generation.prefill, generation.reused_tokens)
        self._channel.send(prefilled, urgent=False)

    def _answer_calls(self) -> None:
        while True:
            call = self._calls.get()
            with self._sending_errors(call.number):
                self._channel.send(messages.Returned(call.number, self._answer(call)))

    def _answer(self, call: messages.Call) -> Any:
        model = self._model
        assert model is not None, "a call before the model is open"
        if call.name in ("current_wait", "neuron_map", "renew_rates", "release_slots"):
            return getattr(model, call.name)(*call.arguments)
        tokenizer = model.tokenizer
        assert call.name in _TOKENIZER_CALLS, call.name
        value = getattr(tokenizer, call.name)
        return value(*call.arguments) if callable(value) else value

    @contextlib.contextmanager
    def _sending_errors(self, number: int) -> Any:
        """Context manager that sends errors instead of raising them."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  raised again in the application
            failure = Failure.of(error)
            if not failure.kind:
                traceback.print_exc()  # into the application's log
            self._channel.send(messages.Raised(number, failure))


def main(arguments: list[str]) -> None:
    """Serves the application; arguments are the socket's descriptor and module:function."""
    faulthandler.enable()
    descriptor, opener = arguments
    code = 1
    try:
        Worker(Connection(int(descriptor))).serve(opener)
        code = 0
    except BaseException:  # noqa: BLE001  what ends this process is written down
        traceback.print_exc()
    sys.stderr.flush()
    # Not `sys.exit`, which waits for threads of libraries.
    os._exit(code)
