"""The engine's thread: opens the model, answers one request after the other, closes it.

All calls into the engine but `cancel` come from here. It is a daemon thread, so that leaving the
application never waits for a read or a conversion that takes its time.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flashllm.engine.answer import Request, Started, start
from flashllm.engine.prefix_reuse import PrefixReuse
from flashllm.engine.protocol import EngineWait
from flashllm.errors import FlashllmError, UsageError
from flashllm.library.models import NO_TOKENIZER, OpenRequest
from flashllm.ui.chat import messages

if TYPE_CHECKING:
    from textual.message import Message as TextualMessage

    from flashllm.engine.protocol import Engine, OpeningProgress
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.costs import PrefillCost
    from flashllm.telemetry.token_record import EngineToken


LET_GO_SECONDS = 1.0
"""A stopped answer ends within a layer. Where it does not, a read hangs, for which nobody waits."""
_LOG = logging.getLogger("flashllm")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request under its number; later requests have higher ones."""

    number: int
    request: Request


@dataclass(slots=True)
class Progress:
    """What an answer made since it was looked at last."""

    tokens: list[EngineToken] = field(default_factory=list)
    prompt: tuple[float, int] | None = None
    """Tokens of the prompt that were read, and how many there are to be read."""


Check = Callable[[OpenRequest, "Plan"], None]
"""Raises what is known to end an opening, by the plan of the model that is open."""


class EngineThread:
    """Owns the model. Progress is kept until `take`, all else is posted as it happens.

    A ceiling holds for one model, so the one that is open is closed before another is opened; what
    `check` finds is found before that. Where the other fails all the same, the first one is opened
    again.
    """

    def __init__(
        self,
        open_engine: Callable[[OpenRequest], Engine],
        post: Callable[[TextualMessage], object],
        check: Check | None = None,
    ) -> None:
        self._open_engine = open_engine
        self._post = post
        self._check: Check = check or (lambda _request, _plan: None)
        self._commands: queue.SimpleQueue[_Asked | OpenRequest | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._model: Engine | None = None
        self._opened: OpenRequest | None = None
        """How the model was opened, while it is there."""
        self._asked = self._stopped = self._ended = 0
        """Numbers: of the last request, of the last one that was stopped, and of the last one of
        which the chat knows that it is over."""
        self._leaving = False
        self.abandon: Callable[[], None] | None = None
        """Ends an opening that is under way, where whoever opens models can do that."""
        self._lock = threading.Lock()
        self._progress = Progress()
        self._announced = False
        self.prompt_tokens = 0
        """Of the request that is being answered, or was last; those that were kept among them."""
        self.prefill: PrefillCost | None = None
        """What the prompt of the last tokens cost."""
        self._prefix = PrefixReuse()

    def open(self, request: OpenRequest) -> None:
        """Opens this model instead of the one that is open.

        `Opened` or `OpenFailed` tells the end of it, and `Closed` that the first one is gone.
        """
        if not self._thread.is_alive():
            self._thread.start()
        self._commands.put(request)

    def ask(self, request: Request) -> None:
        """Starts an answer; `Answered` or `Failed` tells the end of it."""
        with self._lock:
            self._asked += 1
            asked = _Asked(self._asked, request)
        self._commands.put(asked)

    def stop(self) -> None:
        """Ends the answer within a layer; where a read hangs, what comes of it is dropped."""
        with self._lock:
            number = self._stopped = self._asked
            is_over = self._ended >= number
            if self._model is not None:
                self._model.cancel()
        if not is_over and not self._leaving:
            timer = threading.Timer(LET_GO_SECONDS, self._let_go, [number])
            timer.daemon = True
            timer.start()

    def current_wait(self) -> EngineWait:
        """What the engine waits for at this moment."""
        model = self._model
        return EngineWait() if model is None else model.current_wait()

    def take(self) -> Progress:
        """The progress since the last call."""
        with self._lock:
            progress, self._progress = self._progress, Progress()
            self._announced = False
        return progress

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
        self._opened = None  # nothing that a failure should bring back
        self._post(messages.Lost(error))

    def tell_released(self, nbytes: int) -> None:
        """So much memory of slots is given back now; called by what opens models."""
        self._post(messages.SlotsReleased(nbytes))

    def tell_warming(self, share: float) -> None:
        """So much was read ahead; called by what opens models."""
        self._post(messages.Warming(share))

    def _run(self) -> None:
        while (command := self._commands.get()) is not None and not self._leaving:
            if isinstance(command, OpenRequest):
                self._open(command)
            else:
                self._serve(command.number, command.request)
        self._close()

    def _close(self) -> None:
        with self._lock:
            model, self._model = self._model, None
            self._opened = None
        if model is not None:
            with contextlib.suppress(FlashllmError, OSError):  # it may be gone already
                model.close()

    def _open(self, request: OpenRequest) -> None:
        before, model = self._opened, self._model
        if before is not None and model is not None:
            try:
                self._check(request, model.plan)
            except BaseException as error:  # noqa: BLE001  shown in the application
                self._post(messages.OpenFailed(request, error, stays=True))
                return
        failure = self._replace(request)
        if failure is None:
            return
        returns = None if self._leaving or before == request else before
        self._post(messages.OpenFailed(request, failure, returns=returns))
        if returns is not None and (again := self._replace(returns)) is not None:
            self._post(messages.OpenFailed(returns, again))

    def _replace(self, request: OpenRequest) -> BaseException | None:
        """Closes what is open, and opens this; the error where that fails."""
        try:
            if self._model is not None:
                self._post(messages.Closed())
                self._close()
            model = self._open_engine(request)
            if not model.has_tokenizer:
                model.close()
                raise UsageError(NO_TOKENIZER)
        except BaseException as error:  # noqa: BLE001  shown in the application
            return error
        self._model, self._opened = model, request
        self._prefix.open()
        self._post(messages.Opened(request, model))
        return None

    def _serve(self, number: int, request: Request) -> None:
        if self._ended >= number:  # stopped while the one before it hung
            return
        try:
            started = self._start(number, request)
            generation = started.generation
            for index, token in enumerate(generation):
                if index == 0:
                    self._keep_prefill(number, request, started)
                self._keep(number, token, at_once=index == 0)
            self._prefix.end(request, started.dropped, generation)
            reason, report = generation.finish_reason or "stop", generation.report()
            cautions = [] if self._model is None else self._model.cautions()
        except BaseException as error:  # noqa: BLE001  shown in the application
            self._prefix.lose()
            if not self._end(number, messages.Failed(error)):
                _LOG.warning("an answer that had been stopped failed", exc_info=error)
        else:
            self._end(number, messages.Answered(reason, report, cautions))

    def _start(self, number: int, request: Request) -> Started:
        model = self._model
        assert model is not None

        def keep_prompt(done: float, total: int) -> None:
            self._keep_prompt(number, done, total)

        started = start(model, request, keep_prompt)
        if self._ended < number:
            self.prompt_tokens = started.generation.prompt_tokens
            if started.dropped:
                self._post(messages.Shortened(started.dropped))
        if self._stopped >= number:  # asked for while there was nothing to stop yet
            model.cancel()
        return started

    def _let_go(self, number: int) -> None:
        """A stopped answer that has not ended by now is over for the chat."""
        self._end(number, messages.Answered("cancelled", None))

    def _end(self, number: int, message: TextualMessage) -> bool:
        """Tells of the end of an answer; False where that was told before."""
        with self._lock:
            is_known = self._ended >= number
            self._ended = max(self._ended, number)
        if not is_known:
            self._post(message)
        return not is_known

    def _keep_prompt(self, number: int, done: float, total: int) -> None:
        with self._lock:
            if self._ended >= number:
                return
            self._progress.prompt = (done, total)
        self._announce()

    def _keep_prefill(self, number: int, request: Request, started: Started) -> None:
        prefill = started.generation.prefill
        why = self._prefix.reason(request, started.dropped, prefill.reused)
        with self._lock:
            if self._ended < number:
                self.prefill = replace(prefill, not_reused_why=why)

    def _keep(self, number: int, token: EngineToken, *, at_once: bool) -> None:
        with self._lock:
            if self._ended >= number:
                return
            self._progress.tokens.append(token)
        self._announce(at_once=at_once)

    def _announce(self, *, at_once: bool = False) -> None:
        with self._lock:
            announce, self._announced = at_once or not self._announced, True
        if announce:
            self._post(messages.ProgressReady(at_once=at_once))
