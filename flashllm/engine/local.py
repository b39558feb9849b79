"""The engine: open a model, ask for logits, generate tokens, each with its cost.

    with flashllm.open_model(path, memory=4 << 30) as model:
        for token in model.generate(model.tokenizer.encode("Hello"), max_tokens=32):
            print(token.text, token.cost.bytes_read)

One generation at a time in each context; `cancel` may be called from any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.core.numpy_twin.latency import Latencies
from flashllm.engine.generation import Generation, OnPrefill, Token
from flashllm.engine.loading import OnLoading, load_planned, open_decoder
from flashllm.engine.sampling import Sampling
from flashllm.errors import UsageError
from flashllm.flash.store import Store
from flashllm.hardware import staleness
from flashllm.hardware.machine_profile import Profile
from flashllm.hardware.staleness import profile_for
from flashllm.kv_cache.context import Context
from flashllm.model.decoder import Decoder
from flashllm.options import DEFAULT_OPTIONS, ModelOptions, ModelOverrides
from flashllm.planning.model_info import ModelInfo, describe
from flashllm.planning.plan import Plan
from flashllm.telemetry.device_rates import DeviceRates
from flashllm.telemetry.neuron_map import NeuronMap
from flashllm.tokenizer.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "Generation",
    "Model",
    "ModelInfo",
    "Sampling",
    "Token",
    "load_info",
    "open_decoder",
    "open_model",
]


def open_model(
    directory: str | os.PathLike[str],
    options: ModelOptions = DEFAULT_OPTIONS,
    *,
    on_loading: OnLoading | None = None,
    **overrides: Unpack[ModelOverrides],
) -> Model:
    """Open the converted model in a directory, with `options` changed by `overrides`.

    `flashllm.open_model` also knows the demo. `on_loading` is called with the bytes read and those
    to be read. Errors: `ModelNotFound`, `ModelError`,
    `MemoryCeilingTooSmall`, `UsageError`, `ReadFailed`.
    """
    where, options = Path(directory), options.having(**overrides)
    profile = profile_for(where, options)
    decoder, plan, store = load_planned(where, options, profile, on_loading=on_loading)
    try:
        return Model(decoder, plan, store, options, profile)
    except BaseException:
        store.close()
        raise


def load_info(directory: str | os.PathLike[str]) -> ModelInfo:
    """Describe a converted model without loading it."""
    with Store(Path(directory)) as store:
        return describe(store, load_tokenizer(store.directory) is not None)


class Model:
    """An open model. Close it, or use it as a context manager."""

    def __init__(
        self,
        decoder: Decoder,
        plan: Plan,
        store: Store,
        options: ModelOptions = DEFAULT_OPTIONS,
        profile: Profile | None = None,
    ) -> None:
        self.plan = plan
        self._options = options
        self._caution = _profile_caution(store.directory, options)
        self._profile = profile
        self._rates: DeviceRates | None = None
        self.tokenizer: Tokenizer | None = load_tokenizer(store.directory)
        self.info = describe(store, self.tokenizer is not None)
        self._decoder = decoder
        self._store = store
        self.reader_stats: Callable[[], dict[str, Any]] = store.reader.stats
        """Counts of the reader since the model was opened; asked after every token, so without
        detours."""
        self._running: WeakKeyDictionary[Context, Generation] = WeakKeyDictionary()

    @property
    def decoder(self) -> Decoder:
        """The layers, their slots and the context in use, for those who look at how it computes."""
        return self._decoder

    def new_context(self) -> Context:
        """A new context for `generate`, besides the default one.

        `UsageError` if the model was opened with memory for no more (option `contexts`).
        """
        return self._decoder.new_context()

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Exact logits [tokens, vocab] after each of `ids`, all neurons computed.

        Keys and values are rounded to the cache's encoding, as for every answer; with
        `kv_dtype="f32"` only f32 arithmetic rounds.
        """
        self.info.check_prompt(ids, self.plan.context)
        self._stop_running(self._decoder.context)
        return self._decoder.logits(ids)

    def generate(
        self,
        ids: Sequence[int],
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        on_prefill: OnPrefill | None = None,
        *,
        telemetry: bool = True,
        answer: int = 0,
        context: Context | None = None,
    ) -> Generation:
        """Continue `ids` by up to `max_tokens`; nothing runs before the first token is asked for.

        The part of `ids` that the context still holds is not read again. The strings `stop` end the
        text and are not part of it. `on_prefill` is called after each layer with (tokens done,
        tokens to be read in all), where one layer counts as 1 / layers of a token. Without
        `telemetry` nothing is measured, and costs are empty. The last `answer` ids are a stopped
        answer, which continues as if it had not been stopped. A `context` has one generation at a
        time; generations of several contexts may be interleaved token by token.
        """
        self.info.check_prompt(ids, self.plan.context)
        if not 0 <= answer < len(ids):
            raise UsageError(f"answer is {answer}; expected 0 to {len(ids) - 1}, fewer than ids")
        if max_tokens < 0:
            raise UsageError(f"max_tokens is {max_tokens}; expected 0 or more")
        if stop and self.tokenizer is None:
            raise UsageError("stop strings need a tokenizer, and this model came without one")
        context = context or self._decoder.context
        self._stop_running(context)
        generation = self._running[context] = Generation(
            self,
            self._decoder,
            list(ids),
            max_tokens,
            sampling or Sampling(),
            stop,
            on_prefill,
            telemetry,
            answer,
            context,
        )
        return generation

    def forget(self) -> None:
        """Empty the default context and the slots: the next prompt is read whole."""
        self._stop_running(self._decoder.context)
        self._decoder.truncate(0)

    def cancel(self) -> None:
        """End the running generation within a layer. From any thread, also after `close`."""
        self._decoder.cancel()

    def close(self) -> None:
        """Stop the threads and free the memory."""
        for context in list(self._running):
            self._stop_running(context)
        self._store.close()

    def io_report(self) -> dict[str, Any]:
        """How bundles are read: directly or not, how many at a time, by which back-end, and why."""
        reader = self._store.reader
        return {
            "direct": bool(reader.direct),
            "threads": int(reader.threads),
            "alignment_bytes": int(reader.alignment),
            "fallback": str(reader.fallback) or None,
            "backend": str(reader.backend),
            "backend_problem": str(reader.backend_problem) or None,
        }

    def rates(self) -> DeviceRates:
        """What this device and machine can give, as far as the profile knows."""
        if self._rates is None:
            direct = bool(self._store.reader.direct)
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

    def neuron_map(self) -> NeuronMap:
        """Which neurons are in DRAM, and which the last token used or read; from any thread."""
        pool = self._decoder.pool
        return NeuronMap.of([pool.marks(layer) for layer in range(self.info.spec.n_layers)])

    def cautions(self) -> list[str]:
        """Sentences about what makes this machine slower than it could be; may be empty."""
        found = []
        if core.FALLBACK:
            found.append(f"without the compiled core everything is slow ({core.FALLBACK})")
        if self._decoder.isa == "scalar":
            found.append("the kernels use no vector instructions (scalar), so computing is slow")
        fallback = str(self._store.reader.fallback)
        if fallback and self._options.direct:
            found.append(f"reads go through the page cache, not direct ({fallback})")
        return [*found, self._caution] if self._caution else found

    def read_latencies(self) -> Latencies:
        """A histogram of the latencies of all reads since the model was opened."""
        return Latencies(self._store.reader.latency_histogram())

    def _stop_running(self, context: Context) -> None:
        running = self._running.pop(context, None)
        if running is not None:
            running.close()
        self._decoder.clear_cancel()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _profile_caution(directory: Path, options: ModelOptions) -> str:
    """What is doubtful about the plan's profile; "" if nothing is, or if it used none."""
    file = None if options.profile is None else Path(options.profile)
    return staleness.caution(directory, file) if options.direct or file is not None else ""
