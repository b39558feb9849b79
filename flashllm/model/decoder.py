"""One forward pass for every model: what differs between models are features of the spec.

    ids -> embed -> [ attention, feed-forward ] x layers -> norm -> head -> logits

A prompt goes through in chunks, exactly; a token goes through the selected neurons only.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.arrays import Ids
from flashllm.errors import Cancelled, ModelError
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.store import Store
from flashllm.kv_cache.context_tokens import Running
from flashllm.kv_cache.dram import KvCache
from flashllm.model.active_set_selectors import Selector
from flashllm.model.ffn_decode import Chosen, FeedForward, Tap
from flashllm.model.layer import ResidentParts
from flashllm.model.linear import Table, torch_view
from flashllm.model.rope import Rotary, Rotation
from flashllm.options import KvDType
from flashllm.planning.plan import Plan
from flashllm.system.clock import PartClock
from flashllm.weight_cache.pinned import PinnedBundles
from flashllm.weight_cache.slot_pool import SlotPool

Mode = Literal["dense", "selected", "oracle"]
"""How the tokens of a text are computed: with all neurons, with those that the decoder's selector
names, or with those that are not zero."""
ONE_THREAD_WEIGHTS = 1 << 22
"""Weights of a feed-forward matrix up to which one thread computes a chunk. Two gain little there,
and where other programs keep the cores busy they wait for each other (measured: ten times as long,
and more)."""
LOGIT_ROWS_MAX = 64
LOGIT_BLOCK_BYTES = 4 << 20
FeedForwardCall = Callable[[Tensor, Tensor], Tensor]
"""From the feed-forward input, and what the norm made it of, to the output."""
Progress = Callable[[float, int], None]
"""Called with (tokens done, tokens in all) after each layer of a prompt; a layer is its share of
each token in its chunk."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What tokens that go through together have in common."""

    mode: Mode = "dense"
    tap: Tap | None = None
    chosen: Chosen | None = None
    keep_tokens: int = 0
    """The last so many tokens' bundles stay in the window."""
    passed: Callable[[float], None] | None = None
    """Called after each layer with the share of all layers that is done."""


class Decoder:
    """A model in memory with one running context.

    Not for several threads at once, `cancel` apart.
    """

    def __init__(
        self,
        store: Store,
        resident: Mapping[str, RawTensor],
        selector: Selector | None,
        plan: Plan,
        kernels: core.Kernels,
    ) -> None:
        self.spec = spec = store.spec
        self.selects = plan.select
        """Name of the selector."""
        self.before_layer: Callable[[int], None] | None = None
        """Called, while decoding, with the number of each layer before it is computed, and with
        that of layers in all before the head."""
        self.clock = PartClock()
        self._plan = plan
        self._store = store
        self._kernels = kernels
        small = spec.d_model * spec.d_ffn <= ONE_THREAD_WEIGHTS
        self._chunk_threads = 1 if small else kernels.threads
        self._cancelled = threading.Event()
        self._cache = KvCache(spec, plan.context, plan.kv_dtype, kernels)
        self.running = Running(plan.prefill.tokens)
        """The tokens of the running context."""
        self.pool: SlotPool | PinnedBundles
        if plan.select == "all":
            self.pool = PinnedBundles(store, plan.slots_per_layer)
        else:
            self.pool = SlotPool(store, plan.slots_per_layer, plan.policy, plan.window)
        parts = ResidentParts(spec, resident, kernels, plan.prefill.linear_rows)
        weights = [parts.feed_forward(index) for index in range(spec.n_layers)]
        self._ffn = FeedForward(store, self.pool, selector, kernels, plan, self.clock, weights)
        self._embedding = Table(resident["embed.weight"], kernels)
        positions = resident.get("embed.positions")
        self._positions = None if positions is None else torch_view(positions)
        self._rotary = None if spec.rope is None else Rotary(spec.rope)
        self._layers = [parts.layer(index) for index in range(spec.n_layers)]
        self._final_norm = parts.norm("final_norm") if spec.final_norm else None
        self._head = parts.linear("embed" if spec.tied_head else "head", "head")
        narrow = spec.embed_dim != spec.d_model
        self._project_in = parts.linear("embed.project_in") if narrow else None
        self._project_out = parts.linear("head.project_out") if narrow else None

    @property
    def isa(self) -> str:
        """The instructions that the kernels use."""
        return str(self._kernels.isa)

    @property
    def length(self) -> int:
        """Tokens in the running context."""
        return self._cache.length

    @property
    def context(self) -> int:
        """Tokens that a context can hold."""
        return self._cache.context

    @property
    def kv_dtype(self) -> KvDType:
        """Encoding of keys and values."""
        return self._cache.dtype

    def truncate(self, length: int) -> None:
        """Forget all tokens of the context but the first `length`, as `running.kept` names them.

        What is in DRAM of the feed-forward layers stays there, unless nothing of the context does.
        """
        if length:
            self.pool.drain()
        else:
            self.pool.clear()
        self._ffn.end_expecting()
        self._cache.truncate(length)
        self.running.truncate(length)

    def prefill(
        self,
        ids: Sequence[int],
        tap: Tap | None = None,
        progress: Progress | None = None,
        kept: int = 0,
    ) -> NDArray[np.float32]:
        """Put a prompt behind the first `kept` tokens of the context, 0 of them for a new one.

        Logits [vocab] after its last token.
        """
        for hidden in self._chunks(ids, Pass(tap=tap), progress, kept):
            last = hidden[-1:]
        self._check_cancelled()
        logits: NDArray[np.float32] = self._logits(last)[0]
        return logits

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Start a new context with a prompt; logits [tokens, vocab] after each token."""
        return np.concatenate(list(self.logits_blocks(ids)))

    def logits_blocks(
        self,
        ids: Sequence[int],
        mode: Mode = "dense",
        tap: Tap | None = None,
        chosen: Chosen | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """Start a new context with a text; logits [a few tokens, vocab] of all of them, in order.

        What `mode` leaves out is missing in all later layers, as it would be while decoding.
        `tap` is called in mode dense, `chosen` in the others.
        """
        fitting = LOGIT_BLOCK_BYTES // (4 * self.spec.vocab_size)
        rows = min(max(fitting, 1), LOGIT_ROWS_MAX)
        for hidden in self._chunks(ids, Pass(mode, tap, chosen)):
            for start in range(0, len(hidden), rows):
                yield self._logits(hidden[start : start + rows])

    @torch.inference_mode()
    def decode(self, token: int) -> NDArray[np.float32]:
        """Append one token to the context; logits [vocab] after it."""
        # Torch's pool waits for its threads after every small step, and on a busy machine that wait
        # is most of a token; the row kernels have threads of their own.
        torch.set_num_threads(1)
        self._ffn.end_expecting()
        x = self._embed([token])
        rotation = self._rotation(1)
        for index in range(self.spec.n_layers):
            self._check_cancelled()
            self._announce(index)
            x = self._block(index, x, rotation, functools.partial(self._ffn.token, index), True)
        self._cache.length += 1
        self.running.decoded(token)
        self.pool.advance()
        self._announce(self.spec.n_layers)
        logits: NDArray[np.float32] = self._logits(x)[0]
        return logits

    def _announce(self, index: int) -> None:
        if self.before_layer is not None:
            self.clock.switch("io_exposed")
            self.before_layer(index)

    @torch.inference_mode()
    def choose(self, layer: int, x: NDArray[np.float32]) -> Ids:
        """Ids that the selector of a layer names for what it reads, `x` [d_model]."""
        return self._ffn.choose(layer, torch.from_numpy(x)[None])

    @torch.inference_mode()
    def gate_opens(self, layer: int, x: Tensor) -> Tensor:
        """Which neurons a resident gate lets through, [tokens, d_ffn], for [tokens, d_model]."""
        return self._ffn.gate_opens(layer, x)

    def use(self, selector: Selector) -> None:
        """Select by another selector from now on."""
        self._ffn.use(selector)

    def cancel(self) -> None:
        """Make the running call raise `Cancelled` within a layer. From any thread."""
        self._cancelled.set()
        self._store.cancel_reads()

    def clear_cancel(self) -> None:
        """Forget an earlier `cancel`."""
        self._cancelled.clear()
        self._store.allow_reads()

    def _chunks(
        self, ids: Sequence[int], how: Pass, progress: Progress | None = None, kept: int = 0
    ) -> Iterator[Tensor]:
        """Hidden states [tokens, d_model] of `ids` behind what is kept, chunk by chunk."""
        assert 0 < len(ids) <= self.context - kept
        self.truncate(kept)
        step, layers = self._plan.prefill.tokens, self.spec.n_layers
        starts = range(0, len(ids), step)
        self._ffn.expect(layer for _ in starts for layer in range(layers))
        for start in starts:
            chunk = ids[start : start + step]
            after = len(ids) - start - len(chunk)
            keep_tokens = max(0, min(self._plan.seed_tokens - after, len(chunk)))
            passed = None
            if progress is not None:
                passed = functools.partial(_tell, progress, start, len(chunk), len(ids))
            yield self._chunk(
                chunk, dataclasses.replace(how, keep_tokens=keep_tokens, passed=passed)
            )

    @torch.inference_mode()
    def _chunk(self, ids: Sequence[int], how: Pass) -> Tensor:
        torch.set_num_threads(self._chunk_threads)
        x = self._embed(ids)
        rotation = self._rotation(len(ids))
        for index in range(self.spec.n_layers):
            self._check_cancelled()
            x = self._block(index, x, rotation, functools.partial(self._chunk_ffn, index, how))
            if how.passed is not None:
                how.passed((index + 1) / self.spec.n_layers)
        self._cache.length += len(ids)
        self.running.prefilled(ids)
        self.pool.advance(len(ids))
        return x

    def _chunk_ffn(self, index: int, how: Pass, x: Tensor, before_norm: Tensor) -> Tensor:
        if how.mode == "dense":
            return self._ffn.chunk(index, x, before_norm, how.keep_tokens, how.tap)
        oracle = how.mode == "oracle"
        return self._ffn.chunk_selected(index, x, before_norm, oracle, how.chosen)

    def _block(
        self,
        index: int,
        x: Tensor,
        rotation: Rotation | None,
        feed_forward: FeedForwardCall,
        look_ahead: bool = False,
    ) -> Tensor:
        spec, layer = self.spec, self._layers[index]
        pre = spec.norm_placement == "pre"
        self.clock.switch("attention")
        normed = layer.attention_norm(x) if pre else x
        if look_ahead:
            self._look_ahead(index, x, normed)
        attended = self._scaled(layer.attention(normed, index, self._cache, rotation))
        if spec.block == "parallel":
            ffn_input = normed if layer.ffn_norm is None else layer.ffn_norm(x)
            return x + attended + self._scaled(feed_forward(ffn_input, x))
        assert layer.ffn_norm is not None
        x = x + attended
        if not pre:
            x = layer.attention_norm(x)
        x = x + self._scaled(feed_forward(layer.ffn_norm(x) if pre else x, x))
        return x if pre else layer.ffn_norm(x)

    def _look_ahead(self, index: int, x: Tensor, normed: Tensor) -> None:
        """Let the feed-forward layer begin its reads before attention is computed."""
        if self.spec.block == "parallel":
            norm = self._layers[index].ffn_norm
            self._ffn.foreknow(index, normed if norm is None else norm(x), x)
        elif self._plan.overlap == "attention" or index == 0:
            self._ffn.guess(index, x)
        self.clock.switch("attention")

    def _scaled(self, branch: Tensor) -> Tensor:
        scale = self.spec.residual_scale
        return branch if scale == 1.0 else branch.mul_(scale)

    def _embed(self, ids: Sequence[int]) -> Tensor:
        self.clock.switch("other")
        x = self._embedding(ids)
        if self.spec.embed_scale != 1.0:
            x = x * self.spec.embed_scale
        if self._project_in is not None:
            x = self._project_in(x)
        if self._positions is None:
            return x
        first = self._cache.length + self.spec.position_offset
        return x + self._positions[first : first + len(ids)].float()

    def _rotation(self, tokens: int) -> Rotation | None:
        return None if self._rotary is None else self._rotary.at(self._cache.length, tokens)

    @torch.inference_mode()
    def _logits(self, hidden: Tensor) -> NDArray[np.float32]:
        self.clock.switch("head")
        if self._final_norm is not None:
            hidden = self._final_norm(hidden)
        if self._project_out is not None:
            hidden = self._project_out(hidden)
        if self.spec.logit_scale != 1.0:
            hidden = hidden * self.spec.logit_scale
        logits: NDArray[np.float32] = self._head(hidden).numpy()
        if not np.isfinite(logits).all():
            raise ModelError(
                f"{self._store.directory}: what the model computes overflows f32, so there is no"
                " answer; its weights are damaged, or its activation is not the one it was trained"
                " with"
            )
        self.clock.switch("other")
        return logits

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled("stopped on request")


def _tell(progress: Progress, start: int, tokens: int, total: int, share: float) -> None:
    progress(start + tokens * share, total)
