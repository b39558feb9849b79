"""The feed-forward layer: select, fetch, compute for one token; streamed whole for a prompt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm.accounting import PartClock
from flashllm.errors import FlashllmError
from flashllm.flash import core
from flashllm.flash.plan import PrefillShape
from flashllm.flash.store import Store
from flashllm.flash.stream import SlotPool, block_ends
from flashllm.flash.window import Ids
from flashllm.model.select import Selector
from flashllm.model.weights import TORCH_DTYPES

Tap = Callable[[int, Tensor, Tensor], None]
"""Called with (layer, input [tokens, d_model], pre-activation [tokens, d_ffn]) while prefilling."""


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring bundles of one layer, in memory until the next block is asked for."""

    first: int
    raw: NDArray[np.uint8]  # [bundles, stride]


class LayerStream:
    """Reads layers whole, in order, block by block, always one block ahead."""

    def __init__(self, store: Store, bundles: int) -> None:
        self._store = store
        self._bundles = bundles
        stride = store.header.stride
        self._buffers = [core.Buffer(bundles * stride) for _ in range(2)]
        self._arrays = [buffer.array().reshape(bundles, stride) for buffer in self._buffers]
        self._turn = 0
        self._ahead: tuple[int, int, int] | None = None  # layer, first bundle, ticket

    def blocks(self, layer: int, following: int | None = None) -> Iterator[Block]:
        """The blocks of a layer; the first block of layer `following` is begun at the end."""
        n_bundles = self._store.header.bundles_per_layer
        self.begin(layer)
        for first in range(0, n_bundles, self._bundles):
            assert self._ahead is not None
            ticket = self._ahead[2]
            self._ahead = None
            self._store.wait(ticket, layer)
            rows = self._arrays[self._turn][: min(self._bundles, n_bundles - first)]
            self._turn = 1 - self._turn
            if first + self._bundles < n_bundles:
                self._submit(layer, first + self._bundles)
            elif following is not None:
                self._submit(following, 0)
            yield Block(first, rows)

    def begin(self, layer: int) -> None:
        """Begin to read the first block of a layer, unless that is under way."""
        if self._ahead is None or self._ahead[:2] != (layer, 0):
            self.drain()
            self._submit(layer, 0)

    def drain(self) -> None:
        """Let what was begun end, wanted or not: its buffer is free afterwards."""
        if self._ahead is not None:
            layer, _, ticket = self._ahead
            self._ahead = None
            self._store.wait(ticket, layer)

    def _submit(self, layer: int, first: int) -> None:
        count = min(self._bundles, self._store.header.bundles_per_layer - first)
        ticket = self._store.submit_span(layer, first, count, self._buffers[self._turn])
        self._ahead = (layer, first, ticket)


class FeedForward:
    """Feed-forward layers of a model over the store's bundles."""

    def __init__(
        self,
        store: Store,
        pool: SlotPool,
        selector: Selector | None,
        kernels: core.Kernels,
        shape: PrefillShape,
        clock: PartClock,
    ) -> None:
        self._spec = store.spec
        self._pool = pool
        self._stream = LayerStream(store, shape.bundles)
        self._selector = selector
        self._kernels = kernels
        self._clock = clock
        # Preallocated: decoded rows of a block, up then down.
        rows = 0 if self._spec.dtype == "f32" else shape.bundles
        self._decoded = torch.empty(rows, 2 * self._spec.d_model)

    def begin(self, layer: int) -> None:
        """A prompt's layer is about to be computed: begin to read it."""
        self._stream.begin(layer)

    def reset(self) -> None:
        """Let reads that nobody will wait for end."""
        with contextlib.suppress(FlashllmError):
            self._stream.drain()

    def token(self, layer: int, x: Tensor, up_bias: NDArray[np.float32] | None) -> Tensor:
        """[1, d_model] to the same, down bias apart: the active neurons only."""
        clock = self._clock
        clock.switch("predict")
        vector = x.contiguous().numpy()[0]
        ids = self._select(layer, vector, up_bias)
        out = np.zeros(self._spec.d_model, dtype=np.float32)
        clock.switch("plan")
        for piece in self._pool.passes(layer, ids):
            clock.switch("manage")
            claim = self._pool.claim(layer, piece)
            clock.switch("io_exposed")
            positions = self._pool.fetch(layer, claim)
            clock.switch("ffn")
            self._add_rows(piece, positions, vector, up_bias, out)
        return torch.from_numpy(out)[None]

    def _select(
        self, layer: int, x: NDArray[np.float32], up_bias: NDArray[np.float32] | None
    ) -> Ids:
        if self._selector is not None:
            return self._selector.select(layer, x)
        return self._nonzero(layer, x, up_bias)

    def _nonzero(
        self, layer: int, x: NDArray[np.float32], up_bias: NDArray[np.float32] | None
    ) -> Ids:
        """The oracle: ids above zero, from the whole layer, by the kernel that computes them."""
        found = []
        for block in self._stream.blocks(layer):
            local = np.arange(len(block.raw), dtype=np.int32)
            up = np.empty(len(local), dtype=np.float32)
            raw = block.raw.reshape(-1)
            self._kernels.dot_rows(raw, self._pool.stride, 0, self._spec.dtype, local, x, up)
            ids = local + np.int32(block.first)
            found.append(ids[(up if up_bias is None else up + up_bias[ids]) > 0])
        return np.concatenate(found)

    def _add_rows(
        self,
        ids: Ids,
        positions: Ids,
        x: NDArray[np.float32],
        up_bias: NDArray[np.float32] | None,
        out: NDArray[np.float32],
    ) -> None:
        if not len(ids):
            return
        spec, rows, stride = self._spec, self._pool.rows, self._pool.stride
        up = np.empty(len(ids), dtype=np.float32)
        self._kernels.dot_rows(rows, stride, 0, spec.dtype, positions, x, up)
        if up_bias is not None:
            up += up_bias[ids]
        np.maximum(up, 0.0, out=up)
        ends = block_ends(ids)
        self._kernels.weighted_sum_rows(
            rows, stride, spec.row_bytes, spec.dtype, positions, up, ends, out
        )

    def chunk(
        self,
        layer: int,
        x: Tensor,
        up_bias: Tensor | None,
        following: int | None,
        keep_tokens: int,
        tap: Tap | None,
    ) -> Tensor:
        """[tokens, d_model] to the same, down bias apart: all neurons, exactly.

        Bundles that the last `keep_tokens` tokens used stay in the window.
        """
        self._clock.switch("ffn")
        out = torch.zeros_like(x)
        seen = []
        for block in self._stream.blocks(layer, following):
            up, down = self._decode(block)
            hidden = x @ up.T  # [tokens, bundles]
            if up_bias is not None:
                hidden += up_bias[block.first : block.first + len(up)]
            if tap is not None:
                seen.append(hidden.clone())
            hidden.relu_()
            out.addmm_(hidden, down)
            if keep_tokens:
                self._keep(layer, block, hidden[-keep_tokens:], len(x))
        if tap is not None:
            tap(layer, x, torch.cat(seen, dim=1))
        return out

    def _decode(self, block: Block) -> tuple[Tensor, Tensor]:
        width = self._spec.d_model
        encoded = torch.from_numpy(block.raw).view(TORCH_DTYPES[self._spec.dtype])
        rows = encoded[:, : 2 * width]
        if self._spec.dtype != "f32":
            decoded = self._decoded[: len(rows)]
            rows = decoded.copy_(rows)
        return rows[:, :width], rows[:, width:]

    def _keep(self, layer: int, block: Block, tail: Tensor, tokens: int) -> None:
        active = (tail > 0).numpy()  # [kept tokens, bundles]
        used = np.flatnonzero(active.any(axis=0))
        # 1 for the last token, counting backwards.
        ages = active[::-1, used].argmax(axis=0).astype(np.int64) + 1
        ids = (used + block.first).astype(np.int32)
        self._pool.seed(layer, ids, self._pool.token + tokens - ages, block.raw[used])
