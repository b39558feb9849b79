"""A model ready to compute: its weights, its pool of bundles, and schedules over contexts."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Ids, unwarned
from flashllm.core.device_memory import DeviceMemory
from flashllm.errors import Cancelled, ModelError
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.store import Store
from flashllm.kv_cache.context import Context
from flashllm.kv_cache.dram import KvCache
from flashllm.kv_cache.open_contexts import OpenContexts
from flashllm.kv_cache.paged import PagedKvCache
from flashllm.kv_cache.partial_index import Skewing
from flashllm.kv_cache.pool import LimitedPool
from flashllm.kv_cache.protocol import KeysValues, SelectableRows
from flashllm.kv_cache.selection import make_keys_values
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.model.active_set_selectors import Selector
from flashllm.model.block_schedule import BlockSchedule
from flashllm.model.decoder_parts import (
    flash_embedding,
    largest_in_dram,
    make_bundles,
    make_kv_pool,
    make_pool,
)
from flashllm.model.ffn_decode import FeedForwardDecode
from flashllm.model.ffn_prefill import Chosen, FeedForwardPrefill, Tap
from flashllm.model.prefetchers import prefetchers_for
from flashllm.model.products import Products
from flashllm.model.schedule import (
    Beside,
    Mode,
    Pass,
    Progress,
    PromptSchedule,
    PromptsPass,
    TokenSchedule,
)
from flashllm.model.stage_link import StageLink
from flashllm.model.transformer import LayerObserver, Transformer
from flashllm.model.warm_up import WarmUp
from flashllm.options import KvDType, KvSelection
from flashllm.planning.plan import Plan
from flashllm.planning.prefill_shape import LOGIT_ROWS_MAX
from flashllm.planning.release import slots_without
from flashllm.system.clock import PartClock

LOGIT_BLOCK_BYTES = 4 << 20
SHARED_TOKENS_MIN = 8
"""Fewer tokens are computed again rather than copied from another context."""


class Decoder:
    """A model in memory, which computes one call at a time for any of its contexts.

    Only `cancel` and `new_context` may be called from another thread. Calls without a context use
    `context`.
    """

    def __init__(
        self,
        store: Store,
        resident: Mapping[str, RawTensor],
        selector: Selector | None,
        plan: Plan,
        kernels: core.Kernels,
        kv_directories: Sequence[Path] = (),
        skewing: Skewing | None = None,
        link: StageLink | None = None,
        device: DeviceMemory | None = None,
    ) -> None:
        """Keys and values that the plan has on flash are in the first of `kv_directories` that can.

        `device` is where the plan has something on one, with `resident` and `kernels` to match.
        With a `link` it is of a stage of a pipeline, whose layers are those of the store. Errors:
        those of `PagePool`.
        """
        self.spec = spec = store.spec
        self.selects = plan.select
        """Name of the selector."""
        self.kv_dtype: KvDType = plan.kv_dtype
        """Encoding of keys and values."""
        self.before_layer: Callable[[int], None] | None = None
        """Called, while decoding, with the number of each layer before it is computed, and with
        that of layers in all before the head."""
        self.clock = clock = PartClock()
        self.plan = plan
        self._device = device
        self.largest_weight = largest_in_dram(resident, plan)
        """The bytes of the largest resident matrix in DRAM."""
        self._store = store
        self._link = link
        self._kernels, self._skewing = kernels, skewing
        self._cancelled = threading.Event()
        shape = plan.prefill
        self.pool = pool = make_pool(store, plan, clock, kernels, device)
        self._products = products = Products(spec, kernels, shape.bundles)
        embedding = flash_embedding(store, kernels)
        transformer = Transformer(spec, resident, kernels, products, clock, link, embedding)
        weights = transformer.feed_forward_weights
        bundles = make_bundles(store, selector, kernels, weights, pool)
        self._transformer = transformer
        self._norms = [layer.norm for layer in weights]
        self._decode = FeedForwardDecode(spec, pool, bundles, weights, clock)
        self._prefill = FeedForwardPrefill(spec, pool, bundles, weights, products, kernels, clock)
        self._warm_up = WarmUp(pool, self._prefill.warm_up)
        self._tokens = TokenSchedule(transformer, self._decode, pool, self._announce)
        self._prompts = PromptSchedule(
            transformer, self._prefill, pool, plan.seed_tokens, plan.needed_tokens,
            plan.warm_needed_tokens, functools.partial(shape.unused_bytes, spec),
            self._check_cancelled,
        )  # fmt: skip
        self._blocks = BlockSchedule(
            transformer, self._prefill, pool, plan.seed_tokens, plan.union_tokens,
            self._check_cancelled,
        )  # fmt: skip
        self.skewing_problem = ""
        """Why keys and values are chosen without skewing, where they are; "" otherwise."""
        self.steps = 0
        """Prompts and tokens that went through, of all contexts."""
        self.bytes_released = 0
        """Memory of slots, or of pinned bundles, that was given back to the system."""
        self._bytes_to_release = 0
        self._bytes_given = (0, 0)
        """What was asked for, and what a prompt borrows, when slots were given back last."""
        self.kv_pool = make_kv_pool(store, plan, kv_directories)
        """Pages of keys and values, where these have a limit of their own."""
        self._contexts = OpenContexts(plan.contexts)
        self.context = self.new_context()
        """The one that calls go on where they name none."""
        self.use(selector)
        self._kept = contextlib.ExitStack()
        self._keep_arrays()

    @property
    def is_skewed(self) -> bool:
        """Whether there is skewing, where a policy chooses keys and values by it."""
        return self._skewing is not None

    @property
    def skewing(self) -> Skewing | None:
        """What turns queries and keys where a policy chooses by them; None without."""
        return self._skewing

    @property
    def kernels(self) -> core.Kernels:
        """What multiplies encoded rows."""
        return self._kernels

    @property
    def isa(self) -> str:
        """The instructions that the kernels use."""
        return str(self._kernels.isa)

    @property
    def context_tokens(self) -> int:
        """Tokens that a context can hold."""
        return self.plan.context

    @property
    def _prompt_is_selected(self) -> bool:
        return self.plan.prompt_is_selected and self.selector is not None

    @property
    def selector(self) -> Selector | None:
        """What selects the active sets; None selects the neurons whose output is not zero."""
        return self._decode.selector

    def device_report(self) -> dict[str, Any] | None:
        """What lies on a device, and what was copied there and back; None without one."""
        if self._device is None or self.plan.device is None:
            return None
        return asdict(self.plan.device) | self._device.report()

    def new_keys_values(
        self,
        selection: KvSelection,
        kv_dtype: KvDType | None = None,
        *,
        pool: LimitedPool | None = None,
        measures_all: bool = False,
    ) -> KeysValues:
        """Empty keys and values, for a context to compare with; arguments as `make_keys_values`."""
        rows = self._new_rows(kv_dtype or self.plan.kv_dtype)
        return make_keys_values(
            self.spec, rows, self._kernels, selection, self._skewing, pool=pool,
            measures_all=measures_all,
        )  # fmt: skip

    def observe_layers(self, observer: LayerObserver | None) -> None:
        """Who is told of what goes through each layer from now on; None for nobody."""
        self._transformer.observer = observer

    def new_context(self, keys_values: KeysValues | None = None) -> Context:
        """A new, empty context; `UsageError` if the plan has no memory for another one.

        It has `keys_values`, or those that the plan says.
        """

        def make() -> Context:
            return Context(
                keys_values or self.new_keys_values(self.plan.kv_selection),
                self.plan.prefill.tokens,
                decoded_alike=self.plan.prompt_is_decoded_alike,
            )

        return self._contexts.add(make)

    def _new_rows(self, kv_dtype: KvDType) -> SelectableRows:
        settings = self.spec, self.plan.context, kv_dtype, self._kernels
        if self.kv_pool is None or kv_dtype != self.plan.kv_dtype:
            layers = 0
            if self.plan.device is not None and kv_dtype == self.plan.kv_dtype:
                layers = self.plan.device.kv_layers
            return KvCache(*settings, self._device, layers)
        return PagedKvCache(*settings, self.kv_pool)

    def owns(self, context: Context) -> bool:
        """Whether the context is one of this model."""
        return context in self._contexts

    def ask_to_release(self, nbytes: int) -> None:
        """Before the next step, slots go, or come back, until `nbytes` of memory are given back.

        As much as there is beyond what the model needs, where that is less. From any thread.
        """
        self._bytes_to_release = nbytes

    def release(self, prompt_tokens: int = 0) -> None:
        """Gives back, or takes again, what was asked for; answers stay the same.

        What so many tokens of prompts borrow of the slots' memory goes too.
        """
        asked, borrowed = given = (
            self._bytes_to_release,
            self.plan.borrowed_bytes(self.spec, prompt_tokens),
        )
        if given == self._bytes_given:
            return
        self._warm_up.end()
        plan, stride = self.plan, self._store.header.stride
        asked_slots = slots_without(plan, self.spec, stride, asked)
        self.bytes_released = (sum(plan.slots_per_layer) - sum(asked_slots)) * stride
        self._bytes_given = given
        # Before slots grow into it, the memory of a prompt's arrays is given back.
        self._keep_arrays()
        self.pool.resize(slots_without(plan, self.spec, stride, asked + borrowed))

    def _keep_arrays(self) -> None:
        """Keeps the memory of large arrays, as much as slots leave to them now."""
        self._kept.close()
        self._kept.enter_context(LARGE_ARRAYS.kept(self._array_bytes))

    @property
    def _array_bytes(self) -> int:
        """The memory that activations have now."""
        whole = self.plan.prefill.activation_bytes(self.spec, self.plan.contexts)
        return whole - self.plan.lent_activation_bytes + self._bytes_given[1]

    def warm_up(self) -> float:
        """Reads one more block of what there is room for: of everything, or of a hot set.

        Returns the share that was looked at, 1.0 where nothing is left to read. Any other step ends
        it; the next call begins anew and reads what is missing.
        """
        self.release()
        return self._warm_up.step()

    def offer_hot_set(self, hot: Sequence[Ids]) -> None:
        """Experts of each layer that are worth reading while nobody waits, most valuable first."""
        self._warm_up.hot = hot

    def hot_set(self) -> list[Ids]:
        """What the slots of each layer hold, most valuable first."""
        self.pool.drain()
        return [self.pool.valuable(layer) for layer in range(self.spec.bundled_layers)]

    def truncate(self, length: int, context: Context | None = None) -> None:
        """Forget all tokens of a context but the first `length`, found by `cached_prefix`.

        Bundles in DRAM stay there.
        """
        context = context or self.context
        self._warm_up.end()
        self.pool.drain()
        self._decode.forget()
        self.pool.end_expecting()
        context.truncate(length)

    def start_cold(self) -> None:
        """Empty the default context and all slots, and forget what tokens used."""
        self.truncate(0)
        self.pool.clear()

    def prefill(
        self,
        ids: Sequence[int],
        tap: Tap | None = None,
        progress: Progress | None = None,
        cached: int = 0,
        context: Context | None = None,
    ) -> NDArray[np.float32]:
        """Compute a prompt after the first `cached` tokens of a context; 0 empties it first.

        Returns the logits [vocab] after its last token.
        """
        mode: Mode = "needed" if self._prompt_is_selected and tap is None else "dense"
        how = Pass(mode, tap, asks_last=tap is None)
        for hidden in self._chunks(context or self.context, ids, how, progress, cached):
            last = hidden[-1:]
        self._check_cancelled()
        logits: NDArray[np.float32] = self._logits(last)[0]
        return logits

    def prefill_each(
        self, prompts: Sequence[Sequence[int]], contexts: Sequence[Context], cached: Sequence[int]
    ) -> Iterator[NDArray[np.float32]]:
        """Compute several prompts, each after the first `cached` tokens of its context.

        Yields the logits [vocab] after the last token of each, which are to be asked for before
        anything else is computed. The bits are those of a call of `prefill` for each; a layer that
        is read is read once for as many of their tokens as a chunk has.
        """
        last: dict[int, Floats] = {}
        for done in self._passes(prompts, contexts, cached):
            last.update(zip(done.ended, done.last, strict=True))
        self._check_cancelled()
        yield from self._logits_of_each(np.stack([last[at] for at in range(len(prompts))]))

    @property
    def answers_go_beside(self) -> bool:
        """Whether `prefill_beside` can be called: stages of a pipeline do not share passes out."""
        return self._link is None

    def prefill_beside(
        self,
        prompts: Sequence[Sequence[int]],
        contexts: Sequence[Context],
        cached: Sequence[int],
        beside: Beside,
    ) -> Iterator[tuple[tuple[int, ...], Iterator[NDArray[np.float32]]]]:
        """As `prefill_each`, with tokens of answers in other contexts in each pass of the prompts.

        `beside` is asked for them before each pass. Yields, after each, the prompts by number that
        came to their end, and the logits [vocab] of the tokens beside them and then of these, so
        that what is wrong with a prompt is found last. They are to be asked for before the next
        pass.
        """
        for done in self._passes(prompts, contexts, cached, beside):
            each = map(self._logits_of_each, (done.beside, done.last))
            yield done.ended, itertools.chain.from_iterable(each)

    def _passes(
        self,
        prompts: Sequence[Sequence[int]],
        contexts: Sequence[Context],
        cached: Sequence[int],
        beside: Beside | None = None,
    ) -> Iterator[PromptsPass]:
        self.steps += 1
        for context, length in zip(contexts, cached, strict=True):
            self.truncate(length, context)
        self.release(min(sum(map(len, prompts)), self.plan.prefill.tokens))
        how = Pass("needed" if self._prompt_is_selected else "dense", asks_last=True)
        return self._prompts.run_each(contexts, prompts, how, beside)

    def share_prefix(
        self, context: Context, ids: Sequence[int], *, reuse_answers: bool = True
    ) -> None:
        """Let a context begin with what another one has of the prompt `ids`, if that is more.

        Only tokens of prompts are taken over, whose bits are those that the context would compute.
        """
        if not context.shares_prefixes:
            return
        present = context.tokens.cached_prefix(ids, reuse_answers=reuse_answers)
        best, source = 0, None
        for other in self._contexts.all():
            if other is not context and other.shares_prefixes:
                usable = other.tokens.cached_prefix(ids, reuse_answers=False)
                if usable > best:
                    best, source = usable, other
        if source is not None and best >= present + SHARED_TOKENS_MIN:
            self.truncate(0, context)
            context.copy_prefix(source, best)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Empty the context, then compute a prompt; logits [tokens, vocab] after each token."""
        return np.concatenate(list(self.logits_blocks(ids)))

    def logits_blocks(
        self,
        ids: Sequence[int],
        mode: Mode = "dense",
        tap: Tap | None = None,
        chosen: Chosen | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """Empty the context, then compute a text; yields logits [a few tokens, vocab], in order.

        Neurons that `mode` leaves out are missing in all later layers, as they are in decoding.
        `tap` is called in mode dense, `chosen` in the others.
        """
        if mode == "decoded":
            yield from self._decoded_blocks(ids)
            return
        for hidden in self._chunks(self.context, ids, Pass(mode, tap, chosen)):
            yield from self._logits_blocks(hidden)

    def _decoded_blocks(self, ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """`logits_blocks` of a text of which each token is one of an answer; blocks of as many."""
        self.steps += 1
        self.truncate(0)
        self.release()
        step = self.context.chunk_tokens
        for start in range(0, len(ids), step):
            hidden = [self._tokens.run(self.context, token) for token in ids[start : start + step]]
            yield from self._logits_blocks(np.concatenate(hidden))

    def _logits_blocks(
        self, hidden: Floats, block_bytes: int = LOGIT_BLOCK_BYTES
    ) -> Iterator[NDArray[np.float32]]:
        """Logits [a few tokens, vocab] of [tokens, d_model], in order."""
        fitting = block_bytes // (4 * self.spec.vocab_size)
        rows = min(max(fitting, 1), LOGIT_ROWS_MAX)
        for start in range(0, len(hidden), rows):
            yield self._logits(hidden[start : start + rows])

    def decode(self, token: int, context: Context | None = None) -> NDArray[np.float32]:
        """Append one token to a context; logits [vocab] after it."""
        self.steps += 1
        self._warm_up.end()
        self.release()
        LARGE_ARRAYS.give_back()  # a token's own arrays are small: the prompt's are not needed
        hidden = self._tokens.run(context or self.context, token)
        logits: NDArray[np.float32] = self._logits(hidden)[0]
        return logits

    def decode_each(
        self, tokens: Sequence[int], contexts: Sequence[Context]
    ) -> Iterator[NDArray[np.float32]]:
        """Append a token to each of several contexts; yields the logits [vocab] after each.

        They are to be asked for before anything else is computed. The bits are those of a call of
        `decode` for each. What any of them needs is read once.
        """
        self.steps += 1
        self._warm_up.end()
        self.release()
        self.pool.drain()
        self._decode.forget()
        pieces, in_flight = 1, 0
        if self._link is not None:
            pieces, in_flight = self._link.micro_batches, self._link.in_flight
        step = -(-len(tokens) // pieces)
        computed: deque[Floats] = deque()
        for start in range(0, len(tokens), step):
            part = slice(start, start + step)
            computed.append(self._blocks.run(contexts[part], tokens[part]))
            if len(computed) > in_flight:
                yield from self._logits_of_each(computed.popleft())
        while computed:
            yield from self._logits_of_each(computed.popleft())

    def _logits_of_each(self, hidden: Floats) -> Iterator[NDArray[np.float32]]:
        """Logits [vocab] of each of [tokens, d_model], in order."""
        # A step's activations are free again: the head is unpacked once for as many as fit there.
        for block in self._logits_blocks(hidden, max(LOGIT_BLOCK_BYTES, self._array_bytes // 2)):
            yield from block

    @unwarned
    def choose(self, layer: int, x: NDArray[np.float32]) -> Ids:
        """Ids that the layer's selector selects for its input `x` [d_model]."""
        return self._decode.choose(layer, x[None])

    @unwarned
    def gate_opens(self, layer: int, x: Floats) -> NDArray[np.bool_]:
        """[tokens, d_ffn]: neurons that the resident gate lets through for [tokens, d_model]."""
        return self._prefill.gate_opens(layer, x)

    def use(self, selector: Selector | None) -> None:
        """Use another selector from now on."""
        decode = self._decode
        decode.selector = self._prefill.selector = selector
        decode.prefetchers = prefetchers_for(
            self.spec, selector, self.pool, self._norms, self.plan.overlap, self.clock,
            decode.choose_early,
        )  # fmt: skip

    def close(self) -> None:
        """Drop all memory: weights, slots, keys and values. Nothing can be computed afterwards.

        The store is closed before. What is only looked at stays: `marks` of the pool, counters.
        """
        if not self._contexts.end():
            return
        self._decode.selector = self._prefill.selector = None
        self._decode.prefetchers = []  # they refer to what refers to them
        del self._transformer, self._norms, self._decode, self._prefill, self.largest_weight
        del self._tokens, self._prompts, self._blocks, self._products, self._warm_up
        self.pool.close()
        for context in self._contexts.all():
            context.close()
        if self.kv_pool is not None:
            self.kv_pool.close()
        self._kernels.close()
        self._kept.close()
        if self._device is not None:
            self._device.close()

    def settle(self) -> None:
        """Wait for the reads of a call that failed, so that a call for any context may follow.

        A context whose keys and values cannot be read back forgets them, to compute them anew.
        """
        self.pool.drain()
        LARGE_ARRAYS.give_back()
        if self.kv_pool is not None:
            self.kv_pool.staging.drop()
        for context in self._contexts.all():
            if context.keys_values.is_damaged:
                context.truncate(0)

    def cancel(self) -> None:
        """Make the running call raise `Cancelled` within a layer. From any thread."""
        self._cancelled.set()
        self._store.cancel_reads()

    def clear_cancel(self) -> None:
        """Forget an earlier `cancel`."""
        self._cancelled.clear()
        self._store.allow_reads()

    def _chunks(
        self,
        context: Context,
        ids: Sequence[int],
        how: Pass,
        progress: Progress | None = None,
        cached: int = 0,
    ) -> Iterator[Floats]:
        """Hidden states [tokens, d_model] of `ids` after the cached tokens, chunk by chunk."""
        assert 0 < len(ids) <= context.capacity - cached
        self.steps += 1
        self.truncate(cached, context)
        # All of a chunk: what a short prompt leaves is for its ring.
        self.release(self.plan.prefill.tokens)
        return self._prompts.run(context, ids, how, progress)

    def _logits(self, hidden: Floats) -> NDArray[np.float32]:
        try:
            return self._transformer.logits(hidden)
        except ModelError as error:
            raise ModelError(f"{self._store.directory}: {error}") from error

    def _announce(self, index: int) -> None:
        if index < self.spec.n_layers:
            self._check_cancelled()
        if self.before_layer is not None:
            self.clock.switch("io_exposed")
            self.before_layer(index)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled("stopped on request")
