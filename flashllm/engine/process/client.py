"""An engine that runs in another process, behind the same names as `local.Model`.

Its plan and its numbers cover both processes: a part of the ceiling is the application's.
"""

from __future__ import annotations

import functools
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from flashllm.engine.process import messages as messages
from flashllm.engine.process.memory_watch import MemoryWatch, OnReleased
from flashllm.engine.process.supervisor import WorkerSupervisor, error_of
from flashllm.engine.protocol import EngineWait
from flashllm.errors import EngineBusy, NoTokenizer
from flashllm.options import DEFAULT_REASONING, ReasoningOptions
from flashllm.planning.model_info import ModelInfo
from flashllm.planning.plan import Plan
from flashllm.system.memory import rss_bytes, rss_peak_bytes
from flashllm.telemetry.costs import PrefillCost
from flashllm.telemetry.device_rates import DeviceRates
from flashllm.telemetry.neuron_map import NeuronMap

if TYPE_CHECKING:
    from flashllm.engine.protocol import GenerateOptions, OnPrefill
    from flashllm.telemetry.costs import TokenCost
    from flashllm.tokenizer.chat_template import Message

MAP_SECONDS = 0.2
"""How old a map of neurons may be before the next one is requested."""
WAIT_SECONDS = 0.2
"""How old what is known of a wait may be before it is asked for again."""
FORGET_SECONDS = 2.0
"""What was told of a wait before a pause of this length says nothing of the present one."""
RSS_SECONDS = 0.1
"""How old the application's memory in a token's cost may be."""


class RemoteTokenizer:
    """The tokenizer in the engine's process: vocabularies are large, and one is enough."""

    def __init__(self, process: WorkerSupervisor, opened: messages.Opened) -> None:
        self._process = process
        self.has_chat_template = opened.has_chat_template
        self.reasoning_variables = opened.reasoning_variables

    @functools.cached_property
    def chat_stops(self) -> tuple[str, ...]:
        """Strings that end an answer, beside the model's own end."""
        stops: tuple[str, ...] = self._call("chat_stops")
        return stops

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, the beginning-of-text id in front where the model has one."""
        ids: list[int] = self._call("encode", text)
        return ids

    def encode_chat(
        self,
        messages: Sequence[Message],
        known: Mapping[int, Sequence[int]] | None = None,
        reasoning: ReasoningOptions = DEFAULT_REASONING,
    ) -> list[int]:
        """Ids of a conversation, ready for the next answer."""
        plain = [dict(message) for message in messages]
        ids: list[int] = self._call("encode_chat", plain, dict(known or {}), reasoning)
        return ids

    def encode_answer(self, text: str, prompt: Sequence[int] = ()) -> list[int]:
        """Ids of the beginning of an answer, to go behind a prompt."""
        ids: list[int] = self._call("encode_answer", text, list(prompt))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        text: str = self._call("decode", list(ids))
        return text

    def _call(self, name: str, *arguments: Any) -> Any:
        return _called(self._process, name, *arguments)


def _called(process: WorkerSupervisor, name: str, *arguments: Any) -> Any:
    """The result of a call in the engine's process; waits for it."""
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    process.ask(lambda number: messages.Call(number, name, arguments), answers.put)
    answer = answers.get()
    if isinstance(answer, messages.Returned):
        return answer.value
    raise error_of(answer)


class RemoteGeneration:
    """Yields the tokens of one answer, which arrive in batches: all but the newest may be late."""

    def __init__(
        self,
        process: WorkerSupervisor,
        request: messages.Generate,
        on_prefill: OnPrefill | None,
        on_finished: Callable[[messages.Finished], None] = lambda _: None,
    ) -> None:
        """Sends `request` under a new number."""
        self.finish_reason: str | None = None
        self.text = ""
        self.ids: list[int] = []
        self.prompt_tokens = len(request.ids)
        self.reused_tokens = 0
        self.prefill = PrefillCost()
        self._process = process
        self._on_prefill = on_prefill
        self._on_finished = on_finished
        self._memory = _ApplicationMemory()
        self._inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._report: dict[str, Any] | None = None
        self._is_over = False
        self._is_cancelled = False
        self._number = process.ask(lambda number: replace(request, number=number), self._inbox.put)

    def __iter__(self) -> Iterator[messages.Token]:
        return self

    def __next__(self) -> messages.Token:
        while self.finish_reason is None and not self._is_over:
            message = self._inbox.get()
            if isinstance(message, messages.Token):
                self.ids.append(message.id)
                self.text += message.text
                return replace(message, cost=self._memory.added(message.cost))
            self._take(message)
        raise StopIteration

    def report(self) -> dict[str, Any]:
        """Everything about this generation; waits for the end of one that was closed."""
        while self._report is None:
            message = self._inbox.get()
            if not isinstance(message, messages.Token):
                self._take(message)
        return self._report

    @property
    def is_running(self) -> bool:
        """Whether it is neither over nor cancelled."""
        return self.finish_reason is None and not (self._is_over or self._is_cancelled)

    def cancel(self) -> None:
        """Ends it within a layer; tokens that were already sent still arrive."""
        self._is_cancelled = True
        self._process.send(messages.Cancel(self._number))

    def __del__(self) -> None:
        # Nobody will take the tokens: the engine need not write them.
        if getattr(self, "_number", None) is not None and self.is_running:
            self.cancel()

    def close(self) -> None:
        """Stop here; the next `__next__` ends the iteration."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
            self.cancel()

    def _take(self, message: object) -> None:
        if isinstance(message, messages.Prefilling):
            if self._on_prefill is not None:
                self._on_prefill(message.done, message.total)
        elif isinstance(message, messages.Prefilled):
            self.prefill, self.reused_tokens = message.prefill, message.reused_tokens
        elif isinstance(message, messages.Finished):
            self.finish_reason = self.finish_reason or message.finish_reason
            self.text, self.ids = message.text, message.ids
            self._report = self._memory.reported(message.report)
            self._on_finished(message)
        else:
            self._is_over = True
            self._inbox.put(message)  # for who asks again
            raise error_of(message)


class _WaitAsked:
    """What the engine waits for, by questions of which one at a time is under way."""

    def __init__(self, process: WorkerSupervisor) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        """When the question was asked that is not answered yet."""
        self._told = EngineWait()
        self._told_at = self._looked_at = -math.inf

    def now(self) -> EngineWait:
        now = time.monotonic()
        with self._lock:
            if now - self._looked_at > FORGET_SECONDS:  # nobody has asked for long
                self._told = EngineWait()
            self._looked_at = now
            due = self._asked_at is None and now - self._told_at >= WAIT_SECONDS
            if due:
                self._asked_at = now
            asked_at, told, told_at = self._asked_at, self._told, self._told_at
        if due:
            self._process.ask(lambda number: messages.Call(number, "current_wait"), self._take)
        disk_seconds = told.disk_seconds and told.disk_seconds + now - told_at
        return EngineWait(disk_seconds, 0.0 if asked_at is None else now - asked_at)

    def _take(self, message: object) -> None:
        with self._lock:
            self._asked_at, self._told_at = None, time.monotonic()
            if isinstance(message, messages.Returned):
                self._told = message.value
            else:  # the engine has gone
                self._told = EngineWait()


class EngineClient:
    """A model that is open in another process; one generation at a time."""

    def __init__(self, process: WorkerSupervisor, opened: messages.Opened) -> None:
        self.info: ModelInfo = opened.info
        self.plan: Plan = opened.plan
        self.has_tokenizer = opened.has_tokenizer
        self._tokenizer = RemoteTokenizer(process, opened)
        self._process = process
        self._opened = opened
        self._rates: DeviceRates = opened.rates
        self._cautions = opened.cautions
        self._io_report = opened.io_report
        self._running: weakref.ref[RemoteGeneration] | None = None
        self._lock = threading.Lock()
        self._watch: MemoryWatch | None = None
        self._map: NeuronMap | None = None
        self._map_asked_at: float | None = None
        self._wait = _WaitAsked(process)

    @property
    def tokenizer(self) -> RemoteTokenizer:
        """The model's tokenizer; `NoTokenizer` if it came without one."""
        if not self.has_tokenizer:
            raise NoTokenizer
        return self._tokenizer

    def generate(
        self,
        ids: Sequence[int],
        /,
        *,
        on_prefill: OnPrefill | None = None,
        **options: Unpack[GenerateOptions],
    ) -> RemoteGeneration:
        """Continue `ids`, like `local.Model.generate`, but begins at once."""
        self.info.check_prompt(ids, self.plan.context)
        if options.get("stop") and not self.has_tokenizer:
            raise NoTokenizer("stop strings need a tokenizer, and this model came without one")
        before = self._last_generation()
        if before is not None and before.is_running:
            raise EngineBusy("the engine is writing another answer; close() that, or wait for it")
        request = messages.Generate(messages.OPENING, list(ids), options)
        generation = RemoteGeneration(self._process, request, on_prefill, self._take_finished)
        self._running = weakref.ref(generation)
        return generation

    def cancel(self) -> None:
        """End the running generation within a layer. From any thread, also after `close`."""
        running = self._last_generation()
        if running is not None:
            running.cancel()

    def release_slots(self, nbytes: int) -> int:
        """Gives slots back, as `local.Model.release_slots`; waits for the other process."""
        released: int = _called(self._process, "release_slots", nbytes)
        return released

    def warm_up(self) -> float:
        """1.0: the other process reads ahead by itself while nothing is asked."""
        return 1.0

    def keep_context(self) -> bool:
        """False: the other process keeps it by itself while nothing is asked."""
        return False

    def watch_memory(self, on_released: OnReleased) -> None:
        """From now on slots are given back before both processes are at their ceiling."""
        self._watch = MemoryWatch(self._process, self.plan, on_released)

    def close(self) -> None:
        """Ends the process, by force where it does not end by itself."""
        if self._watch is not None:
            self._watch.stop()
        self._process.close()

    def cautions(self) -> list[str]:
        """Sentences about what makes this machine slower than it could be; may be empty."""
        return self._cautions

    def io_report(self) -> dict[str, Any]:
        """How bundles are read: directly or not, how many at a time, by which back-end, and why."""
        return self._io_report

    def rates(self) -> DeviceRates:
        """What this device and machine can give, as far as a profile knows."""
        return self._rates

    def renew_rates(self) -> DeviceRates:
        """The same by the profile that is kept now; waits for the other process."""
        self._rates = _called(self._process, "renew_rates")
        return self._rates

    @property
    def wants_quick_profile(self) -> bool:
        """Whether a quick profile would have told of the disk what was not known at opening."""
        return self._opened.wants_quick_profile

    def current_wait(self) -> EngineWait:
        """The last wait that was told of, and the time since; asks anew without waiting."""
        return self._wait.now()

    def neuron_map(self) -> NeuronMap | None:
        """The last map that arrived; requests the next one without waiting for it."""
        now = time.monotonic()
        with self._lock:
            due = self._map_asked_at is None or now - self._map_asked_at >= MAP_SECONDS
            if due:
                self._map_asked_at = now
        if due:
            self._process.ask(lambda number: messages.Call(number, "neuron_map"), self._take_map)
        return self._map

    def _take_finished(self, message: messages.Finished) -> None:
        """How bundles are read may have changed during the answer."""
        self._cautions, self._io_report = message.cautions, message.report["io"]

    def _last_generation(self) -> RemoteGeneration | None:
        return None if self._running is None else self._running()

    def _take_map(self, message: object) -> None:
        if isinstance(message, messages.Returned):
            self._map = message.value

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ApplicationMemory:
    """Adds this process's memory to numbers that cover both processes."""

    def __init__(self) -> None:
        self._bytes = 0
        self._until = 0.0

    def added(self, cost: TokenCost) -> TokenCost:
        """A token's cost, with the memory of both processes."""
        if not cost.rss_bytes:  # nothing was measured
            return cost
        if time.monotonic() >= self._until:
            self._bytes, self._until = rss_bytes(), time.monotonic() + RSS_SECONDS
        return replace(cost, rss_bytes=cost.rss_bytes + self._bytes)

    def reported(self, report: dict[str, Any]) -> dict[str, Any]:
        """A report, with an upper bound of the peak memory of both processes."""
        memory = dict(report["memory"])
        memory["application_rss_peak_bytes"] = rss_peak_bytes()
        memory["rss_peak_bytes"] += memory["application_rss_peak_bytes"]
        return report | {"memory": memory}
