"""The engine's thread: opens the model, answers one request after the other, closes it.

All calls into the engine but `cancel` come from here. It is a daemon thread, so that leaving the
application never waits for a read or a conversion that takes its time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from flashllm.engine.answer import Request, start
from flashllm.errors import FlashllmError, UsageError
from flashllm.library.models import ModelChoice
from flashllm.ui.chat import messages

if TYPE_CHECKING:
    from textual.message import Message as TextualMessage

    from flashllm.engine.protocol import Engine, EngineGeneration, OpeningProgress
    from flashllm.telemetry.costs import PrefillCost
    from flashllm.telemetry.token_record import EngineToken

PREFILL_REPORT_SECONDS = 0.03


class EngineThread:
    """Owns the model. Tokens are kept until `take`, all else is posted as it happens."""

    def __init__(
        self,
        open_engine: Callable[[ModelChoice], Engine],
        post: Callable[[TextualMessage], object],
    ) -> None:
        self._open_engine = open_engine
        self._post = post
        self._commands: queue.SimpleQueue[Request | ModelChoice | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._model: Engine | None = None
        self._stopping = threading.Event()
        self._leaving = False
        self.abandon: Callable[[], None] | None = None
        """Ends an opening that is under way, where whoever opens models can do that."""
        self._lock = threading.Lock()
        self._tokens: list[EngineToken] = []
        self._announced = False
        self.prompt_tokens = 0
        """Of the request that is being answered, or was last; those that were kept among them."""
        self.prefill: PrefillCost | None = None
        """What the prompt of the last tokens cost."""

    def open(self, choice: ModelChoice) -> None:
        """Closes what is open and opens this; `Opened` or `OpenFailed` tells the end of it."""
        if not self._thread.is_alive():
            self._thread.start()
        self._commands.put(choice)

    def ask(self, request: Request) -> None:
        """Starts an answer; `Answered` or `Failed` tells the end of it."""
        self._stopping.clear()
        self._commands.put(request)

    def stop(self) -> None:
        """Ends the running answer within a layer."""
        self._stopping.set()
        with self._lock:
            if self._model is not None:
                self._model.cancel()

    def take(self) -> list[EngineToken]:
        """The tokens that came since the last call."""
        with self._lock:
            tokens, self._tokens = self._tokens, []
            self._announced = False
        return tokens

    def close(self, seconds: float) -> bool:
        """Stops and closes; False if that takes longer than one wants to wait."""
        self._leaving = True
        self.stop()
        self._commands.put(None)
        if self.abandon is not None:
            self.abandon()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def tell_opening(self, progress: OpeningProgress) -> None:
        """How far opening is; called by what opens the model."""
        self._post(messages.Opening(progress))

    def tell_lost(self, error: BaseException) -> None:
        """An engine has gone without being closed; called by what opens models."""
        self._post(messages.Lost(error))

    def _run(self) -> None:
        while (command := self._commands.get()) is not None and not self._leaving:
            if isinstance(command, ModelChoice):
                self._open(command)
            else:
                self._serve(command)
        self._close()

    def _close(self) -> None:
        with self._lock:
            model, self._model = self._model, None
        if model is not None:
            with contextlib.suppress(FlashllmError, OSError):  # it may be gone already
                model.close()

    def _open(self, choice: ModelChoice) -> None:
        try:
            self._close()
            model = self._open_engine(choice)
            if model.tokenizer is None:
                model.close()
                raise UsageError(
                    "this model came without a tokenizer, which a chat needs; "
                    "`flashllm run MODEL --ids 1,2,3` works without one"
                )
        except BaseException as error:  # noqa: BLE001  shown in the application
            self._post(messages.OpenFailed(error))
        else:
            self._model = model
            self._post(messages.Opened(model))

    def _serve(self, request: Request) -> None:
        try:
            generation = self._start(request)
            for token in generation:
                self.prefill = generation.prefill
                self._push(token)
            reason, report = generation.finish_reason or "stop", generation.report()
        except BaseException as error:  # noqa: BLE001  shown in the application
            self._post(messages.Failed(error))
        else:
            self._post(messages.Answered(reason, report))

    def _start(self, request: Request) -> EngineGeneration:
        model = self._model
        assert model is not None
        started = start(model, request, self._report_prefill())
        self.prompt_tokens = started.generation.prompt_tokens
        if started.dropped:
            self._post(messages.Shortened(started.dropped))
        if self._stopping.is_set():  # asked for while there was nothing to stop yet
            model.cancel()
        return started.generation

    def _report_prefill(self) -> Callable[[float, int], None]:
        last = 0.0

        def report(done: float, total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= PREFILL_REPORT_SECONDS or done == total:
                last = now
                self._post(messages.Prefilling(done, total))

        return report

    def _push(self, token: EngineToken) -> None:
        with self._lock:
            self._tokens.append(token)
            announce = not self._announced
            self._announced = True
        if announce:
            self._post(messages.TokensReady())
