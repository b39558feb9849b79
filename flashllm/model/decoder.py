"""One forward pass for every model: what differs between models are features of the spec.

    ids -> embed -> [ attention, feed-forward ] x layers -> norm -> head -> logits

A prompt goes through in chunks, exactly; a token goes through the selected neurons only.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm.accounting import PartClock
from flashllm.errors import Cancelled
from flashllm.flash import core
from flashllm.flash.plan import Plan
from flashllm.flash.store import RawTensor, Store
from flashllm.flash.stream import SlotPool
from flashllm.model.attention import Attention, KvCache
from flashllm.model.ffn import FeedForward, Tap
from flashllm.model.select import Selector
from flashllm.model.weights import Linear, Norm, torch_view, vector

Progress = Callable[[int, int], None]
"""Called with (tokens done, tokens in all) after each chunk of a prompt."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Resident weights of one layer."""

    attention_norm: Norm
    attention: Attention
    ffn_norm: Norm
    up_bias: Tensor | None  # [d_ffn]
    down_bias: Tensor | None  # [d_model]


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
        self.spec = store.spec
        self.clock = PartClock()
        self.pool = SlotPool(store, plan.slots_per_layer, plan.window)
        self._plan = plan
        self._store = store
        self._resident = resident
        self._kernels = kernels
        self._cancelled = threading.Event()
        self._cache = KvCache(self.spec, plan.context)
        self._ffn = FeedForward(store, self.pool, selector, kernels, plan.prefill, self.clock)
        self._embedding = torch_view(resident["embed.weight"])
        self._positions = torch_view(resident["embed.positions"])
        self._layers = [self._layer(index) for index in range(self.spec.n_layers)]
        self._final_norm = self._norm("final_norm") if self.spec.final_norm else None
        self._head = self._linear("embed" if self.spec.tied_head else "head")
        narrow = self.spec.embed_dim != self.spec.d_model
        self._project_in = self._linear("embed.project_in") if narrow else None
        self._project_out = self._linear("head.project_out") if narrow else None

    @property
    def length(self) -> int:
        """Tokens in the running context."""
        return self._cache.length

    @property
    def context(self) -> int:
        """Tokens that a context can hold."""
        return self._cache.context

    def prefill(
        self, ids: Sequence[int], tap: Tap | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Start a new context with a prompt; logits [vocab] after its last token."""
        hidden = self._prompt(ids, tap, progress)[-1]
        logits: NDArray[np.float32] = self._logits(hidden[-1:])[0]
        return logits

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Start a new context with a prompt; logits [tokens, vocab] after each token."""
        out = np.empty((len(ids), self.spec.vocab_size), dtype=np.float32)
        done = 0
        for hidden in self._prompt(ids, None, None, every=True):
            out[done : done + len(hidden)] = self._logits(hidden)
            done += len(hidden)
        return out

    @torch.inference_mode()
    def decode(self, token: int) -> NDArray[np.float32]:
        """Append one token to the context; logits [vocab] after it."""
        # Torch's pool waits for its threads after every small step, and on a busy machine that wait
        # is most of a token; the row kernels have threads of their own.
        torch.set_num_threads(1)
        x = self._embed([token])
        for index, layer in enumerate(self._layers):
            self._check_cancelled()
            x = self._block(index, layer, x, functools.partial(self._token_ffn, index, layer))
        self._cache.length += 1
        self.pool.advance()
        logits: NDArray[np.float32] = self._logits(x)[0]
        return logits

    def cancel(self) -> None:
        """Make the running call raise `Cancelled` within a layer. From any thread."""
        self._cancelled.set()
        self._store.cancel_reads()

    def clear_cancel(self) -> None:
        """Forget an earlier `cancel`."""
        self._cancelled.clear()
        self._store.allow_reads()

    @torch.inference_mode()
    def _prompt(
        self, ids: Sequence[int], tap: Tap | None, progress: Progress | None, every: bool = False
    ) -> list[Tensor]:
        # Hidden states of each chunk if `every`, else of the last one.
        assert 0 < len(ids) <= self.context
        torch.set_num_threads(self._kernels.threads)
        self._cache.clear()
        self.pool.clear()
        self._ffn.reset()
        kept: list[Tensor] = []
        step = self._plan.prefill.tokens
        for start in range(0, len(ids), step):
            chunk = ids[start : start + step]
            after = len(ids) - start - len(chunk)
            hidden = self._chunk(chunk, tap, max(0, min(self._plan.window - after, len(chunk))))
            kept = [*kept, hidden] if every else [hidden]
            if progress is not None:
                progress(start + len(chunk), len(ids))
                self._check_cancelled()
        return kept

    def _chunk(self, ids: Sequence[int], tap: Tap | None, keep_tokens: int) -> Tensor:
        x = self._embed(ids)
        for index, layer in enumerate(self._layers):
            self._check_cancelled()
            self._ffn.begin(index)
            following = index + 1 if index + 1 < len(self._layers) else None
            feed_forward = functools.partial(
                self._chunk_ffn, index, layer, following, keep_tokens, tap
            )
            x = self._block(index, layer, x, feed_forward)
        self._cache.length += len(ids)
        self.pool.advance(len(ids))
        return x

    def _chunk_ffn(
        self,
        index: int,
        layer: Layer,
        following: int | None,
        keep_tokens: int,
        tap: Tap | None,
        x: Tensor,
    ) -> Tensor:
        out = self._ffn.chunk(index, x, layer.up_bias, following, keep_tokens, tap)
        return out if layer.down_bias is None else out.add_(layer.down_bias)

    def _token_ffn(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        up_bias = None if layer.up_bias is None else layer.up_bias.numpy()
        out = self._ffn.token(index, x, up_bias)
        return out if layer.down_bias is None else out.add_(layer.down_bias)

    def _block(
        self, index: int, layer: Layer, x: Tensor, feed_forward: Callable[[Tensor], Tensor]
    ) -> Tensor:
        pre = self.spec.norm_placement == "pre"
        self.clock.switch("attention")
        attended = layer.attention(layer.attention_norm(x) if pre else x, index, self._cache)
        x = x + attended
        if not pre:
            x = layer.attention_norm(x)
        added = feed_forward(layer.ffn_norm(x) if pre else x)
        x = x + added
        return x if pre else layer.ffn_norm(x)

    def _embed(self, ids: Sequence[int]) -> Tensor:
        self.clock.switch("other")
        x = self._embedding[torch.tensor(ids)].float()
        if self._project_in is not None:
            x = self._project_in(x)
        first = self._cache.length + self.spec.position_offset
        return x + self._positions[first : first + len(ids)].float()

    @torch.inference_mode()
    def _logits(self, hidden: Tensor) -> NDArray[np.float32]:
        self.clock.switch("head")
        if self._final_norm is not None:
            hidden = self._final_norm(hidden)
        if self._project_out is not None:
            hidden = self._project_out(hidden)
        logits: NDArray[np.float32] = self._head(hidden).numpy()
        self.clock.switch("other")
        return logits

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled("stopped on request")

    def _layer(self, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(
            attention_norm=self._norm(f"{name}.attn_norm"),
            attention=Attention(
                self.spec, *(self._linear(f"{name}.attn.{part}") for part in ("q", "k", "v", "o"))
            ),
            ffn_norm=self._norm(f"{name}.ffn_norm"),
            up_bias=self._vector(f"{name}.ffn.up.bias"),
            down_bias=self._vector(f"{name}.ffn.down.bias"),
        )

    def _linear(self, name: str) -> Linear:
        weight, bias = self._resident[f"{name}.weight"], self._resident.get(f"{name}.bias")
        return Linear.of(weight, bias, self._kernels, self._plan.prefill.linear_rows)

    def _norm(self, name: str) -> Norm:
        width, eps = self.spec.d_model, self.spec.norm_eps
        return Norm(width, eps, self._vector(f"{name}.weight"), self._vector(f"{name}.bias"))

    def _vector(self, name: str) -> Tensor | None:
        tensor = self._resident.get(name)
        return None if tensor is None else vector(tensor)
