"""The feed-forward layer: select, fetch, compute for one token; streamed whole for a prompt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm.accounting import PartClock
from flashllm.errors import FlashllmError
from flashllm.flash import core
from flashllm.flash.pinned import PinnedBundles
from flashllm.flash.plan import PrefillShape
from flashllm.flash.store import Store
from flashllm.flash.stream import SlotPool, block_ends
from flashllm.flash.window import Ids
from flashllm.model.activations import activate, combine, margin
from flashllm.model.layer_stream import Block, LayerStream
from flashllm.model.select import Selector
from flashllm.model.weights import TORCH_DTYPES, Linear

Tap = Callable[[int, Tensor, Tensor], None]
"""Called with (layer, what the selector reads [tokens, d_model], margin [tokens, d_ffn]) where all
is computed; a neuron is active where its margin is above zero."""
Chosen = Callable[[int, list[Ids]], None]
"""Called with (layer, the selected ids of each token) where only those are computed."""

_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FeedForwardWeights:
    """What of one feed-forward layer is resident."""

    gate: Linear | None
    """The gate with its bias, where its rows are not on flash."""
    gate_bias: Tensor | None  # [d_ffn], where they are
    up_bias: Tensor | None  # [d_ffn]
    down_bias: Tensor | None  # [d_model]


class FeedForward:
    """Feed-forward layers of a model over the store's bundles.

    With `PinnedBundles` for a pool every token goes through all neurons; with a `SlotPool` through
    those that the selector names (None: those that turn out not to be zero).
    """

    def __init__(
        self,
        store: Store,
        pool: SlotPool | PinnedBundles,
        selector: Selector | None,
        kernels: core.Kernels,
        shape: PrefillShape,
        clock: PartClock,
        weights: Sequence[FeedForwardWeights],
    ) -> None:
        self.selector = selector
        self._spec = spec = store.spec
        self._pool = pool
        self._stream = LayerStream(store, shape.bundles, clock)
        self._block_bundles = shape.bundles
        self._kernels = kernels
        self._clock = clock
        self._weights = weights
        self._stride = store.header.stride
        # Rows of a neuron lie in the order gate, up, down.
        self._up_offset = spec.row_bytes * (spec.rows_per_neuron - 2)
        self._down_offset = spec.row_bytes * (spec.rows_per_neuron - 1)
        # Preallocated: the decoded rows of a block.
        rows = 0 if spec.dtype == "f32" else shape.bundles
        self._decoded = torch.empty(rows, spec.rows_per_neuron * spec.d_model)

    def begin(self, layer: int) -> None:
        """A prompt's layer is about to be computed: begin to read it."""
        self._stream.begin(layer, self._pinned(layer))

    def reset(self) -> None:
        """Let reads that nobody will wait for end."""
        with contextlib.suppress(FlashllmError):
            self._stream.drain()

    # One token ------------------------------------------------------------------------------

    def token(self, layer: int, x: Tensor, before_norm: Tensor) -> Tensor:
        """[1, d_model] to the same: the active neurons only.

        `before_norm` [1, d_model] is what the norm made `x` of, which some selectors read.
        """
        self._clock.switch("predict")
        vector: _Floats = x.contiguous().numpy()[0]
        gate = self._gate(layer, x)
        out = np.zeros(self._spec.d_model, dtype=np.float32)
        if isinstance(self._pool, PinnedBundles):
            self._add_all(layer, vector, gate, out)
        else:
            read = self._read_by_selector(x, before_norm).contiguous().numpy()[0]
            ids = self._select(layer, read, gate)
            self._add_active(self._pool, layer, ids, vector, gate, out)
        return self._with_bias(layer, torch.from_numpy(out)[None])

    def choose(self, layer: int, x: Tensor) -> Ids:
        """Ids that the selector names for what it reads, [1, d_model]."""
        vector: _Floats = x.contiguous().numpy()[0]
        return self._select(layer, vector, self._gate(layer, x))

    def gate_opens(self, layer: int, x: Tensor) -> Tensor:
        """Which neurons a resident gate lets through, [tokens, d_ffn], for [tokens, d_model]."""
        gate = self._weights[layer].gate
        assert gate is not None, "asked only where the gate is resident"
        return activate(self._spec, gate(x)) != 0

    def _gate(self, layer: int, x: Tensor) -> _Floats | None:
        """The resident gate's outputs [d_ffn] for [1, d_model], or None where it is on flash."""
        gate = self._weights[layer].gate
        if gate is None:
            return None
        outputs: _Floats = activate(self._spec, gate(x)[0]).numpy()
        return outputs

    def _add_active(
        self,
        pool: SlotPool,
        layer: int,
        ids: Ids,
        x: _Floats,
        gate: _Floats | None,
        out: _Floats,
    ) -> None:
        clock = self._clock
        clock.switch("plan")
        for piece in pool.passes(layer, ids):
            clock.switch("manage")
            claim = pool.claim(layer, piece)
            clock.switch("io_exposed")
            positions = pool.fetch(layer, claim)
            clock.switch("ffn")
            outputs = self._outputs(layer, pool.rows, piece, positions, x, gate)
            self._add_rows(pool.rows, piece, positions, outputs, out)

    def _add_all(self, layer: int, x: _Floats, gate: _Floats | None, out: _Floats) -> None:
        following = layer + 1 if layer + 1 < self._spec.n_layers else None
        self._clock.switch("ffn")
        for block in self._blocks(layer, following):
            ids, positions, rows = _of_block(block)
            outputs = self._outputs(layer, rows, ids, positions, x, gate)
            self._add_rows(rows, ids, positions, outputs, out)
        counters, pinned = self._pool.counters, self._pinned(layer)
        counters.hits += pinned
        counters.misses += self._spec.bundles_per_layer - pinned

    def _select(self, layer: int, x: _Floats, gate: _Floats | None) -> Ids:
        if self.selector is not None:
            return self.selector.select(layer, x, gate)
        # The oracle: from the whole layer, by the kernel that computes them.
        found = []
        for block in self._blocks(layer):
            ids, positions, rows = _of_block(block)
            found.append(ids[self._outputs(layer, rows, ids, positions, x, gate) != 0])
        return np.concatenate(found)

    def _outputs(
        self,
        layer: int,
        rows: NDArray[np.uint8],
        ids: Ids,
        positions: Ids,
        x: _Floats,
        gate: _Floats | None,
    ) -> _Floats:
        """What the neurons `ids`, at `positions` of `rows`, make of `x`: [n]."""
        spec, weights = self._spec, self._weights[layer]
        up = self._dots(rows, self._up_offset, positions, ids, x, weights.up_bias)
        if gate is not None:
            return combine(spec, torch.from_numpy(gate[ids]), up).numpy()
        if spec.gate == "none":
            return activate(spec, up).numpy()
        deciding = self._dots(rows, 0, positions, ids, x, weights.gate_bias)
        return combine(spec, activate(spec, deciding), up).numpy()

    def _dots(
        self,
        rows: NDArray[np.uint8],
        offset: int,
        positions: Ids,
        ids: Ids,
        x: _Floats,
        bias: Tensor | None,
    ) -> Tensor:
        dots = np.empty(len(ids), dtype=np.float32)
        self._kernels.dot_rows(rows, self._stride, offset, self._spec.dtype, positions, x, dots)
        if bias is not None:
            dots += bias.numpy()[ids]
        return torch.from_numpy(dots)

    def _add_rows(
        self, rows: NDArray[np.uint8], ids: Ids, positions: Ids, outputs: _Floats, out: _Floats
    ) -> None:
        if len(ids):
            dtype, ends = self._spec.dtype, block_ends(ids)
            self._kernels.weighted_sum_rows(
                rows, self._stride, self._down_offset, dtype, positions, outputs, ends, out
            )

    # Many tokens ----------------------------------------------------------------------------

    def chunk(
        self,
        layer: int,
        x: Tensor,
        before_norm: Tensor,
        following: int | None = None,
        keep_tokens: int = 0,
        tap: Tap | None = None,
    ) -> Tensor:
        """[tokens, d_model] to the same: all neurons, exactly.

        Bundles that the last `keep_tokens` tokens used stay in the window.
        """
        self._clock.switch("ffn")
        spec, weights = self._spec, self._weights[layer]
        out = torch.zeros_like(x)
        gate = None if weights.gate is None else weights.gate(x)
        margins = []
        for block in self._blocks(layer, following):
            rows = self._decode(block)  # [bundles, rows of a neuron, d_model]
            where = slice(block.first, block.first + len(rows))
            up = _project(x, rows[:, -2], weights.up_bias, where)
            deciding = up
            if gate is not None:
                deciding = gate[:, where]
            elif spec.gate == "bundled":
                deciding = _project(x, rows[:, 0], weights.gate_bias, where)
            if tap is not None:
                margins.append(margin(spec, deciding, up))
            hidden = activate(spec, deciding)
            if spec.gated:
                hidden = combine(spec, hidden, up)
            out.addmm_(hidden, rows[:, -1])
            if keep_tokens and isinstance(self._pool, SlotPool):
                self._keep(self._pool, layer, block, hidden[-keep_tokens:], len(x))
        if tap is not None:
            tap(layer, self._read_by_selector(x, before_norm), torch.cat(margins, dim=1))
        return self._with_bias(layer, out)

    def chunk_selected(
        self,
        layer: int,
        x: Tensor,
        before_norm: Tensor,
        following: int | None,
        oracle: bool,
        chosen: Chosen | None,
    ) -> Tensor:
        """[tokens, d_model] to the same: of each token the selected neurons only.

        The sums are those of `token`, bit for bit; the layer is read once for all tokens. The
        oracle names the neurons that turn out not to be zero.
        """
        vectors: _Floats = x.contiguous().numpy()
        gates = [self._gate(layer, x[t : t + 1]) for t in range(len(x))]
        selector = None if oracle else self.selector
        named: list[Ids] | None = None
        if selector is not None:
            read: _Floats = self._read_by_selector(x, before_norm).contiguous().numpy()
            named = [selector.select(layer, v, g) for v, g in zip(read, gates, strict=True)]
        found: list[list[Ids]] = [[] for _ in gates]
        out = np.zeros_like(vectors)
        for block in self._blocks(layer, following):
            everything, _, rows = _of_block(block)
            for t, (vector, gate) in enumerate(zip(vectors, gates, strict=True)):
                ids = everything if named is None else _within(named[t], block)
                positions = ids - np.int32(block.first)
                outputs = self._outputs(layer, rows, ids, positions, vector, gate)
                self._add_rows(rows, ids, positions, outputs, out[t])
                found[t].append(ids[outputs != 0] if named is None else ids)
        if chosen is not None:
            chosen(layer, [np.concatenate(pieces) for pieces in found])
        return self._with_bias(layer, torch.from_numpy(out))

    def _read_by_selector(self, x: Tensor, before_norm: Tensor) -> Tensor:
        reads_before = self.selector is not None and self.selector.before_norm
        return before_norm if reads_before else x

    def _blocks(self, layer: int, following: int | None = None) -> Iterator[Block]:
        """All bundles of a layer, those that are pinned first, always in the same blocks."""
        pinned = self._pinned(layer)
        if pinned and isinstance(self._pool, PinnedBundles):
            self._stream.begin(layer, pinned)
            raw = self._pool.rows(layer)
            for first in range(0, pinned, self._block_bundles):
                yield Block(first, raw[first : first + self._block_bundles])
        after = None if following is None else (following, self._pinned(following))
        yield from self._stream.blocks(layer, pinned, after)

    def _pinned(self, layer: int) -> int:
        return self._pool.count(layer) if isinstance(self._pool, PinnedBundles) else 0

    def _decode(self, block: Block) -> Tensor:
        spec = self._spec
        shape = (len(block.raw), spec.rows_per_neuron, spec.d_model)
        encoded = torch.from_numpy(block.raw).view(TORCH_DTYPES[spec.dtype])
        rows = encoded[:, : spec.rows_per_neuron * spec.d_model]
        if spec.dtype == "f32":
            return rows.view(shape)
        return self._decoded[: len(rows)].copy_(rows).view(shape)

    def _with_bias(self, layer: int, out: Tensor) -> Tensor:
        bias = self._weights[layer].down_bias
        return out if bias is None else out.add_(bias)

    def _keep(self, pool: SlotPool, layer: int, block: Block, tail: Tensor, tokens: int) -> None:
        active = (tail != 0).numpy()  # [kept tokens, bundles]
        used = np.flatnonzero(active.any(axis=0))
        ids = (used + block.first).astype(np.int32)
        last_token = pool.token + tokens - 1
        pool.seed(layer, ids, active[:, used], last_token, block.raw[used])


def _project(x: Tensor, rows: Tensor, bias: Tensor | None, where: slice) -> Tensor:
    """[tokens, d_model] to [tokens, bundles] by rows [bundles, d_model] and a part of the bias."""
    out = x @ rows.T
    return out if bias is None else out.add_(bias[where])


def _of_block(block: Block) -> tuple[Ids, Ids, NDArray[np.uint8]]:
    """Ids of a block's bundles, their positions in it, and its bytes in one run."""
    positions = np.arange(len(block.raw), dtype=np.int32)
    return positions + np.int32(block.first), positions, block.raw.reshape(-1)


def _within(ids: Ids, block: Block) -> Ids:
    """Those of the ascending ids that lie in a block."""
    first, last = np.searchsorted(ids, (block.first, block.first + len(block.raw)))
    return ids[first:last]
