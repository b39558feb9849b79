"""The engine: open a model, ask for logits, generate tokens, each with its cost.

    with flashllm.open_model(path, memory="4GiB") as model:
        for token in model.generate("Hello", max_tokens=32):
            print(token.text, token.cost.bytes_read)

One answer at a time in each context; other contexts may be used from other threads (`turns`).
"""

from __future__ import annotations

import asyncio
import logging
import operator
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.core.numpy_twin.latency import Latencies
from flashllm.engine import leftovers
from flashllm.engine.answer import Request, encode
from flashllm.engine.answer_message import AnswerMessage
from flashllm.engine.async_generation import AsyncGeneration
from flashllm.engine.generation import Generation, OnPrefill, Token, Usage
from flashllm.engine.hot_set import keep_hot_set, kept_hot_set
from flashllm.engine.kept_context import KeptContext, kept_context_for
from flashllm.engine.loading import OnLoading, Stage, load_planned, open_decoder
from flashllm.engine.protocol import EngineWait
from flashllm.engine.sampling import Sampling
from flashllm.engine.turns import Turns
from flashllm.errors import FlashllmError, NoTokenizer, UsageError
from flashllm.flash.opening_errors import opening_errors
from flashllm.flash.store import Store
from flashllm.hardware import staleness
from flashllm.hardware.machine_profile import Profile
from flashllm.hardware.staleness import profile_for
from flashllm.kv_cache.context import Context
from flashllm.model.decoder import Decoder
from flashllm.options import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_OPTIONS,
    DEFAULT_REASONING,
    ModelOptions,
    ModelOverrides,
    ReasoningOptions,
)
from flashllm.planning.model_info import ModelInfo, describe
from flashllm.planning.plan import Plan
from flashllm.system import right_of_way
from flashllm.system.allocation import allocation_errors
from flashllm.system.malloc import give_back_free_memory
from flashllm.telemetry.device_rates import DeviceRates
from flashllm.telemetry.neuron_map import NeuronMap
from flashllm.telemetry.step_trace import StepTrace
from flashllm.tokenizer.chat_template import Message
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer
from flashllm.units import format_bytes
from flashllm.untrusted.terminal import sanitize_line

__all__ = [
    "AnswerMessage",
    "AsyncGeneration",
    "Context",
    "Generation",
    "Message",
    "Model",
    "ModelInfo",
    "Sampling",
    "Token",
    "Usage",
    "load_info",
    "open_decoder",
    "open_model",
]

_log = logging.getLogger("flashllm.engine")
RELEASE_SECONDS = 0.1
"""For so long who wants memory back waits for a step: a block that is read ahead is one."""


def open_model(
    directory: str | os.PathLike[str],
    options: ModelOptions = DEFAULT_OPTIONS,
    *,
    on_loading: OnLoading | None = None,
    stage: Stage | None = None,
    **overrides: Unpack[ModelOverrides],
) -> Model:
    """Open the converted model in a directory, with `options` changed by `overrides`.

    `flashllm.open_model` also knows the demo. `on_loading` is called with the bytes read and those
    to be read; `stage` is the first one of a pipeline, which computes for all. Errors:
    `ModelNotFound`, `ModelError`, `MemoryCeilingTooSmall`, `OutOfMemory`, `UsageError`,
    `ReadFailed`.
    """
    where, options = Path(directory), options.having(**overrides)
    with opening_errors(where), allocation_errors(f"opening {where}"):
        profile = profile_for(where, options)
        tokenizers: list[Tokenizer | None] = []

        def load() -> None:
            # Reading it takes three times what stays, which is given back before weights come.
            tokenizers.append(load_tokenizer(where))
            give_back_free_memory()

        decoder, plan, store = load_planned(
            where, options, profile, on_loading=on_loading, stage=stage, before_weights=load
        )
        try:
            return Model(decoder, plan, store, tokenizers[0], options, profile)
        except BaseException:
            store.close()
            decoder.close()
            raise


def load_info(directory: str | os.PathLike[str]) -> ModelInfo:
    """Describe a converted model without loading it."""
    with opening_errors(directory), Store(Path(directory)) as store:
        return describe(store, load_tokenizer(store.directory) is not None)


class AnswerOptions(TypedDict, total=False):
    """Keywords of `Model.chat` and of the asynchronous calls, with the meanings of `generate`."""

    max_tokens: int
    sampling: Sampling | None
    stop: str | Sequence[str]
    on_prefill: OnPrefill | None
    telemetry: bool
    context: Context | None


class Model:
    """An open model. Close it, or use it as a context manager.

    Calls may come from any thread, and wait for a token or a prompt that another one computes.
    """

    def __init__(
        self,
        decoder: Decoder,
        plan: Plan,
        store: Store,
        tokenizer: Tokenizer | None,
        options: ModelOptions = DEFAULT_OPTIONS,
        profile: Profile | None = None,
    ) -> None:
        self.plan = plan
        self._options = options
        self._caution = _profile_caution(store.directory, options)
        self._profile = profile
        self._rates: DeviceRates | None = None
        self._tokenizer = tokenizer
        self.info = describe(store, self._tokenizer is not None)
        self._decoder = decoder
        self._store = store
        self.reader_stats: Callable[[], dict[str, Any]] = _reader_stats(store, decoder)
        """Counts of all reads since the model was opened; asked after every token, so without
        detours."""
        self._kept: KeptContext | None = kept_context_for(options, store, plan, decoder)
        self._turns = Turns(decoder, sanitize_line(self.info.name))
        self._is_idle_host = False
        """Whether what holds the model ever let it read ahead."""
        self._last_io_report: dict[str, Any] = {}
        """How bundles were read, once the model is closed."""
        # Computes for all asynchronous answers: each thread that computes has pools of its own.
        self._own_thread = ThreadPoolExecutor(1, thread_name_prefix="flashllm")
        leftovers.opened()

    @property
    def decoder(self) -> Decoder:
        """The layers, their slots and the context in use, for those who look at how it computes."""
        return self._decoder

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model came with a tokenizer; without one, prompts are ids."""
        return self.info.has_tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; `NoTokenizer` if it came without one."""
        if self._tokenizer is None and self.has_tokenizer:  # the model was closed
            self._tokenizer = load_tokenizer(self._store.directory)
        if self._tokenizer is None:
            raise NoTokenizer
        return self._tokenizer

    def new_context(self) -> Context:
        """A new context for `generate`, besides the default one.

        `UsageError` if the model was opened with memory for no more (option `contexts`).
        """
        self._turns.check_open()
        return self._decoder.new_context()

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Exact logits [tokens, vocab] after each of `ids`, all neurons computed.

        Keys and values are rounded to the cache's encoding, as for every answer; with
        `kv_dtype="f32"` only f32 arithmetic rounds. Computed in the default context: `EngineBusy`
        while an answer is written there.
        """
        known = _checked_ids(ids)
        self.info.check_prompt(known, self.plan.context)
        claim = self._turns.claim(self._decoder.context)
        return claim.compute(lambda: self._decoder.logits(known))

    def generate(
        self,
        prompt: str | Sequence[int],
        max_tokens: int = DEFAULT_MAX_TOKENS,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] = (),
        on_prefill: OnPrefill | None = None,
        *,
        telemetry: bool = True,
        answer: int = 0,
        reuse_answers: bool = True,
        context: Context | None = None,
    ) -> Generation:
        """Continue a text, or ids, by up to `max_tokens`; runs when tokens are asked for.

        The part of the prompt that the context still holds is not read again. The strings `stop`
        end the text and are not part of it. `on_prefill` is called after each layer with (tokens
        done, tokens to be read in all), where one layer counts as 1 / layers of a token. Without
        `telemetry` nothing is measured, and costs are empty. The last `answer` ids are a stopped
        answer, which continues as if it had not been stopped. Where tokens of answers are computed
        otherwise than those of prompts, a conversation goes on from its answers as they were
        written; without `reuse_answers` the whole prompt is computed as one, so that what comes
        does not depend on what was answered before. A `context` writes one answer at a
        time: `EngineBusy` until it is over, closed or no longer referred to. Answers in several
        contexts may be interleaved token by token, also from several threads.
        """
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else _checked_ids(prompt)
        self.info.check_prompt(ids, self.plan.context)
        if not 0 <= answer < len(ids):
            raise UsageError(f"answer is {answer}; expected 0 to {len(ids) - 1}, fewer than ids")
        if not isinstance(max_tokens, int) or max_tokens < 0:
            raise UsageError(f"max_tokens is {max_tokens!r}; expected a whole number, 0 or more")
        if not isinstance(sampling, Sampling | None):
            raise UsageError(f"sampling is {sampling!r}; expected flashllm.Sampling(...)")
        if context is not None and not self._decoder.owns(context):
            raise UsageError("this context is another model's; model.new_context() makes one")
        if stop and not self.has_tokenizer:
            raise NoTokenizer("stop strings need a tokenizer, and this model came without one")
        return Generation(
            self,
            self._decoder,
            self._tokenizer,
            self._turns.claim(context or self._decoder.context),
            ids,
            max_tokens,
            sampling or Sampling(),
            (stop,) if isinstance(stop, str) else stop,
            on_prefill,
            telemetry,
            answer,
            reuse_answers,
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        reasoning: ReasoningOptions = DEFAULT_REASONING,
        **options: Unpack[AnswerOptions],
    ) -> Generation:
        """Answer a conversation by the model's chat template; `options` are those of `generate`.

        `reasoning` is what the template is told of that, if it reads it. `messages` have a role
        (system, user, assistant) and a content. If the last one is the assistant's, the answer
        continues it. Messages that do not fit into the context are left out, the oldest first
        (`Generation.dropped_messages`). Append `Generation.message` for the next turn: with it,
        only what is new is read. Errors: as of `generate`, `UsageError` for a last message that is
        too long.
        """
        stop, most = options.get("stop", ()), options.get("max_tokens", DEFAULT_MAX_TOKENS)
        stops = (stop,) if isinstance(stop, str) else stop
        request = replace(Request.of(messages, most, stops), reasoning=reasoning)
        prompt = encode(self, request)
        given: AnswerOptions = {**options, "stop": prompt.stop}
        generation = self.generate(prompt.ids, answer=len(prompt.begun), **given)
        generation.dropped_messages = prompt.dropped
        if prompt.begun:
            generation.continued = AnswerMessage(messages[-1]["content"], prompt.begun)
        return generation

    async def agenerate(
        self, prompt: str | Sequence[int], **options: Unpack[AnswerOptions]
    ) -> AsyncGeneration:
        """`generate` for asyncio: `async for token in await model.agenerate("The sea is")`."""
        return await self._asynchronous(lambda: self.generate(prompt, **options))

    async def achat(
        self,
        messages: Sequence[Message],
        *,
        reasoning: ReasoningOptions = DEFAULT_REASONING,
        **options: Unpack[AnswerOptions],
    ) -> AsyncGeneration:
        """`chat` for asyncio: `async for token in await model.achat(messages)`."""
        return await self._asynchronous(lambda: self.chat(messages, reasoning=reasoning, **options))

    def forget(self) -> None:
        """Empty the default context and the slots: the next prompt is read whole.

        `EngineBusy` while an answer is written there.
        """
        claim = self._turns.claim(self._decoder.context)
        try:
            claim.compute(self._decoder.start_cold)
        finally:
            claim.release()  # an error that somebody keeps refers to it

    def release_slots(self, nbytes: int) -> int:
        """Give `nbytes` of memory in slots back to the system, in all; 0 takes all of it again.

        Answers stay the same and read more. Returns the bytes that are given back by now: the next
        token or prompt does what a running one does not let happen, and a model keeps what it needs
        at the least. From any thread.
        """
        self._decoder.ask_to_release(nbytes)
        self._turns.between_steps(self._decoder.release, RELEASE_SECONDS)
        return self._decoder.bytes_released

    def warm_up(self) -> float:
        """Read a little of what is not in memory yet, where there is room for all neurons.

        Of experts that do not all fit, those that the last run which called this held at its end.
        Takes some milliseconds. Returns the share that was looked at: 1.0 where nothing is left to
        read, where there is less room, or where something is computed. Damage that is found is left
        to the answer that needs it. From any thread.
        """
        shares = [1.0]
        if not self._is_idle_host and self.info.spec.experts is not None:
            self._decoder.offer_hot_set(kept_hot_set(self._store.header.file_id, self.info.spec))
        self._is_idle_host = True
        try:
            with right_of_way.taken():
                self._turns.between_steps(lambda: shares.append(self._decoder.warm_up()))
        except (FlashllmError, MemoryError) as error:
            _log.warning("reading ahead has stopped: %s", error)
        return shares[-1]

    def keep_context(self) -> bool:
        """Write a little of the default context to flash, if it was opened with `keep_kv`.

        Whether more is left to keep and nothing is computed. Closing the model keeps the rest. From
        any thread.
        """
        left = [False]
        if self._kept is not None:
            kept = self._kept
            self._turns.between_steps(lambda: left.append(kept.keep_some()))
        return left[-1]

    def restore_kept(self, context: Context, ids: Sequence[int], answer: int) -> None:
        """Bring back what was kept of a prompt, where that is more than `context` has.

        Within a step; `generate` calls it.
        """
        if self._kept is not None and context is self._decoder.context:
            self._kept.restore(ids, answer, lambda: self._decoder.truncate(0))

    def cancel(self) -> None:
        """End all unfinished answers within a layer. From any thread, also after `close`."""
        self._turns.cancel_all()

    def close(self) -> None:
        """Stop the threads and free the memory; answers that are not finished raise `ModelClosed`.

        From any thread; waits for the layer that is being computed. May be called again.
        """
        self._turns.close(self._release)

    def io_report(self) -> dict[str, Any]:
        """How bundles are read: directly or not, how many at a time, by which back-end, and why.

        After `close`, how they were read at the end.
        """
        return self._last_io_report or self._read_io_report()

    def kv_report(self) -> dict[str, Any] | None:
        """Where keys and values are, if they have a limit of their own, and what went to flash.

        After `close`, what it was at the end.
        """
        pool = self._decoder.kv_pool
        return None if pool is None else pool.report()

    def device_report(self) -> dict[str, Any] | None:
        """What lies on a device, if there is one, and what was copied there and back."""
        return self._decoder.device_report()

    def rates(self) -> DeviceRates:
        """What this device and machine can give, as far as the profile knows."""
        if self._rates is None:
            direct = self.io_report()["direct"]
            self._rates = DeviceRates.of(self._profile, self.info, self.plan, direct)
        return self._rates

    def renew_rates(self) -> DeviceRates:
        """The same by the profile that is kept now; it may have been measured meanwhile."""
        self._profile, self._rates = profile_for(self._store.directory, self._options), None
        return self.rates()

    @property
    def wants_quick_profile(self) -> bool:
        """Whether a quick profile would tell of the model's disk what nobody has measured yet."""
        is_possible = core.NAME == "native" and self._store.reader.direct
        if self._options.profile is not None or not is_possible:
            return False
        return staleness.wants_quick_profile(self._store.directory)

    def trace(self) -> StepTrace:
        """A context manager that records what is computed and read, and when, by all answers.

        Its `write(path)` gives JSON for Perfetto and Chrome's viewer.
        """
        self._turns.check_open()
        kv_file = self._decoder.kv_pool and self._decoder.kv_pool.file
        others = kv_file.timed if kv_file else None
        return StepTrace(self._decoder.clock, self._store.reader, others)

    def current_wait(self) -> EngineWait:
        """How long the present wait for the disk has lasted; from any thread."""
        return EngineWait(disk_seconds=self._store.read_wait.seconds())

    def neuron_map(self) -> NeuronMap:
        """Which neurons are in DRAM, and which the last token used or read; from any thread."""
        self._turns.check_open()
        pool = self._decoder.pool
        spec = self.info.spec
        marks = [pool.marks(layer) for layer in range(spec.bundled_layers)]
        return NeuronMap.of(marks, noun=spec.bundle_noun)

    def cautions(self) -> list[str]:
        """Sentences about what makes this machine slower than it could be; may be empty.

        One may be added while answers are written: where the system refuses a direct read.
        """
        found = []
        if core.FALLBACK:
            found.append(f"without the compiled core everything is slow ({core.FALLBACK})")
        if self._decoder.isa == "scalar":
            found.append("the kernels use no vector instructions (scalar), so computing is slow")
        fallback = self.io_report()["fallback"]
        if fallback and self._options.direct:
            found.append(f"reads go through the page cache, not direct ({fallback})")
        pool = self._decoder.kv_pool
        if pool is not None and pool.file is not None:
            found += pool.file.cautions
        if self._kept is not None and self._kept.problem:
            found.append(self._kept.problem)
        if self._decoder.skewing_problem:
            found.append(self._decoder.skewing_problem)
        if self.plan.kv_selection.lossy and self._options.keep_kv:
            found.append(
                f"keys and values are not kept: with --kv-policy {self.plan.kv_selection.policy}"
                " an answer does not see all of them"
            )
        return [*found, self._caution] if self._caution else found

    def read_latencies(self) -> Latencies:
        """A histogram of the latencies of all reads of bundles since the model was opened."""
        self._turns.check_open()
        return Latencies(self._store.reader.latency_histogram())

    def _read_io_report(self) -> dict[str, Any]:
        reader = self._store.reader
        stats: dict[str, Any] = reader.stats()
        return {
            "direct": bool(reader.direct),
            "threads": int(reader.threads),
            "alignment_bytes": int(reader.alignment),
            "fallback": str(reader.fallback) or None,
            "downgrades": int(stats["downgrades"]),
            "backend": str(reader.backend),
            "backend_problem": str(reader.backend_problem) or None,
            **self._verify_report(stats),
        }

    def _verify_report(self, stats: dict[str, Any]) -> dict[str, Any]:
        """Which weights are verified, and what was found so far."""
        counts = ("bundles_verified", "bundles_mismatched", "bundles_damaged")
        return {"verify": self._store.verify} | {name: int(stats[name]) for name in counts}

    async def _asynchronous(self, start: Callable[[], Generation]) -> AsyncGeneration:
        # Not in the model's own thread: making ids of messages may take a tenth of a second, and a
        # refusal should not wait for the prompt that is being read there.
        return AsyncGeneration(await asyncio.to_thread(start), self._own_thread)

    def _release(self) -> None:
        self._last_io_report = self._read_io_report()
        self._own_thread.shutdown(wait=False)
        if self._kept is not None:
            self._kept.finish()
        if self._is_idle_host and self.info.spec.experts is not None and self._decoder.pool.token:
            keep_hot_set(self._store.header.file_id, self._decoder.hot_set())
        self._store.close()
        # The memory goes back now, though answers and contexts may still refer to the model.
        self._decoder.close()
        self._tokenizer = None  # 10 MB of words, for a vocabulary of 8,000
        give_back_free_memory()
        leftovers.closed(self.plan)

    def __repr__(self) -> str:
        spec = self.info.spec
        state = "closed" if self._turns.is_closed else f"in {format_bytes(self.plan.ceiling_bytes)}"
        name = sanitize_line(self.info.name)
        return f"<Model {name!r}: {spec.n_layers} layers, {spec.encoding_label}, {state}>"

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reader_stats(store: Store, decoder: Decoder) -> Callable[[], dict[str, Any]]:
    """What counts reads: of bundles, of keys and values, and of embeddings that are on flash."""
    readers: list[Callable[[], dict[str, Any]]] = [store.reader.stats]
    pool = decoder.kv_pool
    if pool is not None and pool.file is not None:
        readers.append(pool.file.stats)
    if store.embedding_rows is not None:
        readers.append(store.embedding_rows.stats)
    if len(readers) == 1:
        return readers[0]

    def together() -> dict[str, Any]:
        each = [stats() for stats in readers]
        sizes = zip(*(counts["size_histogram"] for counts in each), strict=True)
        names = [name for name in each[0] if name != "size_histogram"]
        sums = {name: sum(counts[name] for counts in each) for name in names}
        sums["depth_max"] = max(counts["depth_max"] for counts in each)
        return {**sums, "size_histogram": [sum(numbers) for numbers in sizes]}

    return together


def _checked_ids(ids: Sequence[int]) -> list[int]:
    """The ids as plain whole numbers; `UsageError` for what is none."""
    try:
        if not isinstance(ids, bytes | str):
            return [operator.index(token) for token in ids]
    except TypeError:
        pass
    raise UsageError(f"the prompt is {ids!r:.80}; expected a text, or a list of token ids")


def _profile_caution(directory: Path, options: ModelOptions) -> str:
    """What is doubtful about the plan's profile; "" if nothing is, or if it used none."""
    file = None if options.profile is None else Path(options.profile)
    return staleness.caution(directory, file) if options.direct or file is not None else ""
