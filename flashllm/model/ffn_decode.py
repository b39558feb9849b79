"""The feed-forward layer: select, fetch, compute for one token; streamed whole for a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.arrays import Ids
from flashllm.flash.store import Store
from flashllm.model.activations import activate, combine, margin
from flashllm.model.active_set_selectors import Selector, SelectPredicted
from flashllm.model.block_stream import Block, LayerStream
from flashllm.model.neurons import FeedForwardWeights, Neurons
from flashllm.model.prefetchers import Guesser
from flashllm.model.tile_decoder import TileDecoder
from flashllm.model.token_sets import Named, Share, of_each
from flashllm.options import Overlap
from flashllm.planning.plan import Plan
from flashllm.system.clock import PartClock
from flashllm.weight_cache.pinned import PinnedBundles
from flashllm.weight_cache.slot_pool import SlotPool

Tap = Callable[[int, Tensor, Tensor], None]
"""Called with (layer, what the selector reads [tokens, d_model], margin [tokens, d_ffn]) where all
is computed; a neuron is active where its margin is above zero."""
Chosen = Callable[[int, list[Ids]], None]
"""Called with (layer, the selected ids of each token) where only those are computed."""

_Floats = NDArray[np.float32]


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
        plan: Plan,
        clock: PartClock,
        weights: Sequence[FeedForwardWeights],
    ) -> None:
        self._spec = spec = store.spec
        self._pool = pool
        self._overlap: Overlap = plan.overlap
        self._guesser: Guesser | None = None
        self._known: dict[int, tuple[Ids, _Floats | None]] = {}
        self.use(selector)
        shape = plan.prefill
        self._lent_blocks, self._lent = plan.lent_blocks, False
        self._stream = LayerStream(store, shape.bundles, plan.own_blocks, clock)
        self._block_bundles, self._tile_bundles = shape.bundles, shape.tile
        self._kernels = kernels
        self._clock = clock
        self._weights = weights
        self._stride = store.header.stride
        self._neurons = Neurons(spec, self._stride, kernels, weights)
        self._decode = TileDecoder(store, kernels, shape.tile)

    def use(self, selector: Selector | None) -> None:
        """Select by a selector from now on."""
        self.selector, self._guesser = selector, None
        # In a parallel block the input is known before attention: nothing need be guessed.
        guesses = self._overlap in ("attention", "layer") and self._spec.block == "sequential"
        if guesses and isinstance(selector, SelectPredicted) and isinstance(self._pool, SlotPool):
            self._guesser = Guesser(selector, self._spec.n_layers)

    def expect(self, layers: Iterable[int]) -> None:
        """These layers will be computed whole, in this order: begin to read them.

        Reads of an earlier call that nobody waited for are let end first. Slots that were planned
        for it hold what is read, until `end_expecting`.
        """
        self._known.clear()
        if isinstance(self._pool, SlotPool) and any(self._lent_blocks) and not self._lent:
            places = self._pool.lend(self._lent_blocks, self._block_bundles)
            self._stream.borrow(self._pool.buffer, places)
            self._lent = True
        self._stream.expect((layer, self._pinned(layer)) for layer in layers)

    def end_expecting(self) -> None:
        """Let reads that nobody waits for end; tokens that follow have all slots."""
        self._known.clear()
        self._stream.give_back()
        if self._lent:
            assert isinstance(self._pool, SlotPool)
            self._pool.take_back()
            self._lent = False

    # One token ------------------------------------------------------------------------------

    def token(self, layer: int, x: Tensor, before_norm: Tensor) -> Tensor:
        """[1, d_model] to the same: the active neurons only.

        `before_norm` [1, d_model] is what the norm made `x` of, which some selectors read.
        """
        self._clock.switch("predict")
        vector: _Floats = x.contiguous().numpy()[0]
        out = np.zeros(self._spec.d_model, dtype=np.float32)
        if isinstance(self._pool, PinnedBundles):
            self._add_all(layer, vector, self._gate(layer, x), out)
        else:
            known = self._known.pop(layer, None)
            ids, gate = known or self._chosen(layer, x, before_norm)
            self._add_active(self._pool, layer, ids, vector, gate, before_norm, out)
        return self._with_bias(layer, torch.from_numpy(out)[None])

    def guess(self, layer: int, stream: Tensor) -> None:
        """Begin to read what a layer is likely to need, from an earlier residual [1, d_model]."""
        if layer >= self._spec.n_layers or self._guesser is None:
            return
        if self._guesser.pays(layer):
            self._clock.switch("predict")
            norm = self._weights[layer].norm
            read = stream if norm is None or self._guesser.selector.before_norm else norm(stream)
            self._read_early(layer, self._guesser.likely(layer, read.contiguous().numpy()[0]))

    def foreknow(self, layer: int, x: Tensor, before_norm: Tensor) -> None:
        """Begin to read what `token` will need for the same input, known before its turn."""
        if isinstance(self._pool, SlotPool) and self._overlap in ("attention", "layer"):
            self._clock.switch("predict")
            self._known[layer] = self._chosen(layer, x, before_norm)
            self._read_early(layer, self._known[layer][0])

    def _chosen(self, layer: int, x: Tensor, before_norm: Tensor) -> tuple[Ids, _Floats | None]:
        """What the selector names for a token, and the outputs of a resident gate."""
        gate = self._gate(layer, x)
        read = self._read_by_selector(x, before_norm).contiguous().numpy()[0]
        return self._select(layer, read, gate), gate

    def _read_early(self, layer: int, ids: Ids) -> None:
        assert isinstance(self._pool, SlotPool)
        self._clock.switch("manage")
        self._pool.guess(layer, ids)
        self._clock.switch("io_exposed")
        self._pool.begin_guess(layer)

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
        before_norm: Tensor,
        out: _Floats,
    ) -> None:
        clock = self._clock
        clock.switch("plan")
        for number, piece in enumerate(pool.passes(layer, ids)):
            clock.switch("io_exposed")
            pool.make_room(layer, piece)
            clock.switch("manage")
            fetch = pool.claim(layer, piece)
            clock.switch("io_exposed")
            pool.begin(layer, fetch)
            if self._guesser is not None and number == 0:
                self._guesser.learn(layer, fetch)
                if self._overlap == "layer":
                    self.guess(layer + 1, before_norm)
            outputs = np.empty(len(piece), dtype=np.float32)
            clock.switch("io_exposed")
            for part in pool.arrivals(layer, fetch, self._overlap != "none"):
                clock.switch("ffn")
                here = piece[part]
                outputs[part] = self._neurons.outputs(
                    layer, pool.rows, here, fetch.positions[part], x, _of(gate, here)
                )
                clock.switch("io_exposed")
            clock.switch("ffn")
            self._neurons.add(pool.rows, piece, fetch.positions, outputs, out)

    def _add_all(self, layer: int, x: _Floats, gate: _Floats | None, out: _Floats) -> None:
        self._clock.switch("ffn")
        for block in self._blocks(layer):
            ids, positions, rows = block.parts()
            outputs = self._neurons.outputs(layer, rows, ids, positions, x, _of(gate, ids))
            self._neurons.add(rows, ids, positions, outputs, out)
        counters, pinned = self._pool.counters, self._pinned(layer)
        counters.hits += pinned
        counters.misses += self._spec.bundles_per_layer - pinned

    def _select(self, layer: int, x: _Floats, gate: _Floats | None) -> Ids:
        if self.selector is not None:
            return self.selector.select(layer, x, gate)
        # The oracle: from the whole layer, by the kernel that computes them.
        found = []
        for block in self._blocks(layer):
            ids, positions, rows = block.parts()
            outputs = self._neurons.outputs(layer, rows, ids, positions, x, _of(gate, ids))
            found.append(ids[outputs != 0])
        return np.concatenate(found)

    # Many tokens ----------------------------------------------------------------------------

    def chunk(
        self,
        layer: int,
        x: Tensor,
        before_norm: Tensor,
        keep_tokens: int = 0,
        tap: Tap | None = None,
    ) -> Tensor:
        """[tokens, d_model] to the same: all neurons, exactly.

        Bundles that the last `keep_tokens` tokens used stay in the window.
        """
        self._clock.switch("ffn")
        out = torch.zeros_like(x)
        weights = self._weights[layer]
        gate = None if weights.gate is None else weights.gate(x)
        margins: list[Tensor] = []
        for block in self._blocks(layer):
            tails = []
            for tile in block.pieces(self._tile_bundles):
                hidden = self._add_tile(layer, tile, x, gate, out, None if tap is None else margins)
                tails.append(hidden[len(x) - keep_tokens :])
            if keep_tokens and isinstance(self._pool, SlotPool):
                self._keep(self._pool, layer, block, torch.cat(tails, dim=1), len(x))
        if tap is not None:
            tap(layer, self._read_by_selector(x, before_norm), torch.cat(margins, dim=1))
        return self._with_bias(layer, out)

    def _add_tile(
        self,
        layer: int,
        tile: Block,
        x: Tensor,
        gate: Tensor | None,
        out: Tensor,
        margins: list[Tensor] | None,
    ) -> Tensor:
        """Add to `out` what a tile's neurons make of `x`; their outputs [tokens, bundles]."""
        spec, weights = self._spec, self._weights[layer]
        rows = self._decode(tile)  # [bundles, rows of a neuron, d_model]
        where = slice(tile.first, tile.first + len(rows))
        up = _project(x, rows[:, -2], weights.up_bias, where)
        deciding = up
        if gate is not None:
            deciding = gate[:, where]
        elif spec.gate == "bundled":
            deciding = _project(x, rows[:, 0], weights.gate_bias, where)
        if margins is not None:
            margins.append(margin(spec, deciding, up))
        hidden = activate(spec, deciding)
        if spec.gated:
            hidden = combine(spec, hidden, up)
        out.addmm_(hidden, rows[:, -1])
        return hidden

    def chunk_selected(
        self,
        layer: int,
        x: Tensor,
        before_norm: Tensor,
        oracle: bool,
        chosen: Chosen | None,
    ) -> Tensor:
        """[tokens, d_model] to the same: of each token the selected neurons only.

        The sums are those of `token`, bit for bit; the layer is read once for all tokens. The
        oracle names the neurons that turn out not to be zero.
        """
        vectors: _Floats = x.contiguous().numpy()
        gates = self._gates(layer, x)
        named: list[Ids] | None = None
        if self.selector is not None and not oracle:
            read: _Floats = self._read_by_selector(x, before_norm).contiguous().numpy()
            opened = [None] * len(x) if gates is None else gates
            pairs = zip(read, opened, strict=True)
            named = [self.selector.select(layer, vector, gate) for vector, gate in pairs]
        ordered = None if named is None else Named(named)
        out = np.zeros_like(vectors)
        found: list[Share] = []
        for block in self._blocks(layer):
            everything, _, rows = block.parts()
            if ordered is None:
                share = Share.everything(everything, len(x))
            else:
                share = ordered.within(block.first, block.first + len(block.raw))
            outputs = self._neurons.add_share(layer, rows, block.first, share, vectors, gates, out)
            if ordered is None:
                found.append(share.where(outputs != 0))
        if chosen is not None:
            chosen(layer, of_each(found) if named is None else named)
        return self._with_bias(layer, torch.from_numpy(out))

    def _gates(self, layer: int, x: Tensor) -> _Floats | None:
        """As `_gate` for each of several tokens, [tokens, d_ffn]; the bits are the same."""
        gates = [self._gate(layer, x[t : t + 1]) for t in range(len(x))]
        return None if gates[0] is None else np.stack([gate for gate in gates if gate is not None])

    def _read_by_selector(self, x: Tensor, before_norm: Tensor) -> Tensor:
        reads_before = self.selector is not None and self.selector.before_norm
        return before_norm if reads_before else x

    def _blocks(self, layer: int) -> Iterator[Block]:
        """All bundles of a layer, those that are pinned first, always in the same blocks."""
        pinned, spec = self._pinned(layer), self._spec
        if pinned < spec.bundles_per_layer and not self._stream.expects(layer, pinned):
            self.expect(range(layer, spec.n_layers))
        if pinned and isinstance(self._pool, PinnedBundles):
            raw = self._pool.rows(layer)
            for first in range(0, pinned, self._block_bundles):
                yield Block(first, raw[first : first + self._block_bundles])
        yield from self._stream.blocks(layer, pinned)

    def _pinned(self, layer: int) -> int:
        return self._pool.count(layer) if isinstance(self._pool, PinnedBundles) else 0

    def _with_bias(self, layer: int, out: Tensor) -> Tensor:
        bias = self._weights[layer].down_bias
        return out if bias is None else out.add_(bias)

    def _keep(self, pool: SlotPool, layer: int, block: Block, tail: Tensor, tokens: int) -> None:
        active = (tail != 0).numpy()  # [kept tokens, bundles]
        used = np.flatnonzero(active.any(axis=0))
        ids = (used + block.first).astype(np.int32)
        last_token = pool.token + tokens - 1
        kept, positions = pool.seed(layer, ids, active[:, used], last_token)
        rows, sources = block.raw.reshape(-1), used[kept].astype(np.int32)
        self._kernels.copy_rows(rows, sources, self._stride, pool.rows, positions)


def _project(x: Tensor, rows: Tensor, bias: Tensor | None, where: slice) -> Tensor:
    """[tokens, d_model] to [tokens, bundles] by rows [bundles, d_model] and a part of the bias."""
    out = x @ rows.T
    return out if bias is None else out.add_(bias[where])


def _of(gate: _Floats | None, ids: Ids) -> _Floats | None:
    """Of a resident gate's outputs, if there is one, those of these neurons."""
    return None if gate is None else gate[ids]
