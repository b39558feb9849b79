"""The feed-forward layer for many tokens at once: the layer is read whole, block by block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.arrays import Ids
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.model.activations import activate
from flashllm.model.active_set_selectors import ActiveMask, ActiveSet, Selector
from flashllm.model.ffn_experts import Experts, ExpertTiles
from flashllm.model.ffn_neurons import NeuronTiles, Used
from flashllm.model.layer_inputs import LayerInputs
from flashllm.model.neuron_slices import NeuronSlices, Wanted, WantedStrips
from flashllm.model.neurons import FeedForwardWeights, Neurons
from flashllm.model.products import Products
from flashllm.model.token_sets import BlockSlice, TokenSets, of_each
from flashllm.spec import ModelSpec
from flashllm.system.clock import PartClock
from flashllm.weight_cache.block_stream import Block
from flashllm.weight_cache.pool import BundlePool

Tap = Callable[[int, Floats, Floats], None]
"""Called with (layer, the selector's input [tokens, d_model], margin [tokens, d_ffn]) where all
neurons are computed; a neuron is active where its margin is above zero."""
Chosen = Callable[[int, list[Ids]], None]
"""Called with (layer, the selected ids of each token) where only selected neurons are computed."""


class TileSums(Protocol):
    """What tiles of a layer add to the outputs of several tokens."""

    @property
    def tile(self) -> int:
        """Bundles of a block that are given at a time, at most."""
        ...

    def add(self, tile: Block, out: Floats) -> Used:
        """Adds a tile to `out`."""
        ...


class FeedForwardPrefill:
    """Feed-forward layers of a model over a pool of bundles, for the tokens of a prompt.

    Layers are counted from the first that has bundles.
    """

    def __init__(
        self,
        spec: ModelSpec,
        pool: BundlePool,
        bundles: Neurons | Experts,
        weights: Sequence[FeedForwardWeights],
        products: Products,
        kernels: core.Kernels,
        clock: PartClock,
    ) -> None:
        self._spec = spec
        self._pool = pool
        self._neurons = bundles if isinstance(bundles, Neurons) else None
        self._experts = bundles if isinstance(bundles, Experts) else None
        self._stride = bundles.stride
        self._weights = weights
        self._products = products
        self._kernels = kernels
        self._clock = clock
        self.selector: Selector | None = None

    def dense(
        self,
        layer: int,
        inputs: LayerInputs,
        keep_tokens: int = 0,
        tap: Tap | None = None,
        selected_from: int | None = None,
        of_tokens: int | None = None,
    ) -> Floats:
        """[tokens, d_model] to [tokens, d_model]: all neurons, or those that are selected.

        Where there is a selector, tokens from number `selected_from` on go through what it selects
        for them; of experts, all through those that the router chooses. The layer is read whole.
        Bundles that the last `keep_tokens` tokens used stay in the pool, and others where slots are
        free: those that most tokens used, an even share of each block. `of_tokens` says how many
        tokens pass, where these are only the ones that the layer is computed for.
        """
        self._clock.switch("ffn")
        out = LARGE_ARRAYS.zeros(*inputs.ffn.shape)
        margins: list[Floats] | None = None if tap is None else []
        tiles = self._tiles(layer, inputs, selected_from, margins)
        for block in self._pool.blocks(layer):
            self._clock.switch("ffn")
            tails, uses = [], []
            fills = self._pool.free_slots(layer) > 0
            for tile in block.pieces(tiles.tile):
                used = tiles.add(tile, out)
                if keep_tokens or fills:
                    outputs = used(0 if fills else len(out) - keep_tokens)
                    tails.append(outputs[len(outputs) - keep_tokens :] != 0)
                    if fills:
                        uses.append(np.count_nonzero(outputs, axis=0))
                    del outputs
                del used  # and with it the outputs, before the next tile has its own
            if keep_tokens:
                passing = len(out) if of_tokens is None else of_tokens
                self._keep(layer, block, np.concatenate(tails, axis=1), passing)
            if fills:
                self._fill(layer, block, np.concatenate(uses))
        if tap is not None and margins is not None:
            tap(layer, self._read_by_selector(inputs), np.concatenate(margins, axis=1))
        return self._with_beside(layer, inputs, out)

    def needed(self, layer: int, inputs: LayerInputs) -> Floats:
        """[tokens, d_model] to [tokens, d_model]: the bundles that the selector selects.

        Reads those that any of the tokens needs, of which there should be few. They stay in the
        pool, as after a token of an answer.
        """
        clock, weights = self._clock, self._weights[layer]
        clock.switch("predict")
        x = inputs.ffn
        out = LARGE_ARRAYS.zeros(*x.shape)
        tiles: TileSums
        if self._experts is not None:
            tiles = self._expert_tiles(self._experts, layer, inputs)
            wanted = tiles.weights != 0
        else:
            gate = None if weights.gate is None else weights.gate(x)
            active = self._select_each(layer, inputs, gate)
            wanted = active.among(0, self._spec.bundles_per_layer)
            tiles = self._tiles_of(layer, x, gate, functools.partial(_columns_of, wanted))
        union = np.flatnonzero(wanted.any(axis=0)).astype(np.int32)
        for found in self._pool.rounds(layer, union):
            for _ in found.arrivals:
                pass  # tiles of rows gain more than a beginning before all are there
            clock.switch("ffn")
            if not len(found.ids):
                continue
            first = int(found.ids[0])
            block = Block(first, found.rows, found.positions, self._stride, found.ids)
            for tile in block.pieces(tiles.tile):
                tiles.add(tile, out)
        return self._with_beside(layer, inputs, out)

    def _with_beside(self, layer: int, inputs: LayerInputs, out: Floats) -> Floats:
        """`out` [tokens, d_model], with what is added to the outputs of bundles."""
        self._clock.switch("ffn")
        beside = self._weights[layer].beside(inputs.ffn)
        if beside is not None:
            out += beside
        return out

    def _tiles(
        self,
        layer: int,
        inputs: LayerInputs,
        selected_from: int | None,
        margins: list[Floats] | None,
    ) -> TileSums:
        """What adds a layer, read whole, to the outputs of these tokens."""
        if self._experts is not None:
            assert margins is None, "experts have no margins to look at"
            return self._expert_tiles(self._experts, layer, inputs)
        weights, x = self._weights[layer], inputs.ffn
        gate = None if weights.gate is None else weights.gate(x)
        if self.selector is None or selected_from is None:
            return NeuronTiles(self._spec, weights, self._products, x, gate, None, margins)
        wanted: Wanted = WantedStrips(
            self._select_each(
                layer, inputs.after(selected_from), None if gate is None else gate[selected_from:]
            ),
            len(x) - selected_from,
            self._spec.bundles_per_layer,
        )
        if selected_from:
            wanted = functools.partial(_wanted_after, selected_from, wanted)
        return self._tiles_of(layer, x, gate, wanted, margins)

    def _tiles_of(
        self,
        layer: int,
        x: Floats,
        gate: Floats | None,
        wanted: Wanted,
        margins: list[Floats] | None = None,
    ) -> TileSums:
        """What adds those bundles that each token wants; with `margins`, of all bundles."""
        silent = functools.partial(_not_wanted, wanted)
        weights, products = self._weights[layer], self._products
        tiles = NeuronTiles(self._spec, weights, products, x, gate, silent, margins)
        if self._neurons is None or margins is not None:
            return tiles
        gates: Floats | None = None if gate is None else activate(self._spec, gate)
        vectors: Floats = np.ascontiguousarray(x)
        most = self._spec.bundles_per_layer
        return NeuronSlices(self._neurons, tiles, layer, vectors, gates, wanted, most)

    def _expert_tiles(self, experts: Experts, layer: int, inputs: LayerInputs) -> ExpertTiles:
        router = experts.router
        weights = router.weights(layer, np.ascontiguousarray(inputs.of(router.reads)))
        return ExpertTiles(experts, np.ascontiguousarray(inputs.ffn), weights)

    def _select_each(self, layer: int, inputs: LayerInputs, gate: Floats | None) -> ActiveMask:
        assert self.selector is not None, "the oracle selects nothing that is not computed"
        read: Floats = np.ascontiguousarray(self._read_by_selector(inputs))
        opened: Floats | None = None if gate is None else activate(self._spec, gate)
        return self.selector.select_each(layer, read, opened)

    def selected(
        self,
        layer: int,
        inputs: LayerInputs,
        oracle: bool,
        chosen: Chosen | None,
    ) -> Floats:
        """[tokens, d_model] to [tokens, d_model]: each token's selected neurons only.

        Each token gets the same bits as alone; the layer is read once for all tokens. The oracle
        selects the neurons whose output is not zero.
        """
        if self._experts is not None:
            return self._routed(layer, inputs, chosen)
        assert self._neurons is not None
        self._clock.switch("ffn")
        x = inputs.ffn
        vectors: Floats = np.ascontiguousarray(x)
        gates = self._gates(layer, x)
        named: list[ActiveSet] | None = None
        if self.selector is not None and not oracle:
            read: Floats = np.ascontiguousarray(self._read_by_selector(inputs))
            opened = [None] * len(x) if gates is None else gates
            pairs = zip(read, opened, strict=True)
            named = [self.selector.select(layer, vector, gate) for vector, gate in pairs]
        ordered = None if named is None else TokenSets(named)
        out = LARGE_ARRAYS.zeros(*vectors.shape)
        found: list[BlockSlice] = []
        for block in self._pool.blocks(layer):
            self._clock.switch("ffn")
            everything, _, _ = block.parts()
            if ordered is None:
                slice_ = BlockSlice.everything(everything, len(x))
            else:
                slice_ = ordered.within(block.first, block.first + len(block))
            outputs = self._neurons.add_block_slice(layer, block, slice_, vectors, gates, out)
            if ordered is None:
                found.append(slice_.where(outputs != 0))
        if chosen is not None:
            each = of_each(found) if named is None else [active.ids for active in named]
            chosen(layer, each)
        return self._with_beside(layer, inputs, out)

    def _routed(self, layer: int, inputs: LayerInputs, chosen: Chosen | None) -> Floats:
        """The same with experts, of which no token computes others than in `dense`."""
        if chosen is not None and self._experts is not None:
            weights = self._expert_tiles(self._experts, layer, inputs).weights
            chosen(layer, [np.flatnonzero(row).astype(np.int32) for row in weights])
        return self.dense(layer, inputs)

    def warm_up(self) -> Iterator[float]:
        """Reads all layers into slots, which have room for them; yields the share after each block.

        Whatever else is computed ends it: it may not go on afterwards.
        """
        layers, bundles = self._spec.bundled_layers, self._spec.bundles_per_layer
        self._pool.expect(range(layers))
        for layer in range(layers):
            for block in self._pool.blocks(layer):
                if self._pool.free_slots(layer):
                    self._fill(layer, block, np.ones(len(block), dtype=np.int64))
                yield (layer + (block.first + len(block)) / bundles) / layers
        self._pool.end_expecting()

    def gate_opens(self, layer: int, x: Floats) -> NDArray[np.bool_]:
        """[tokens, d_ffn]: neurons that the resident gate lets through for [tokens, d_model]."""
        gate = self._weights[layer].gate
        assert gate is not None, "asked only where the gate is resident"
        opens: NDArray[np.bool_] = activate(self._spec, gate(x)) != 0
        return opens

    def _gates(self, layer: int, x: Floats) -> Floats | None:
        """A resident gate's outputs for several tokens, [tokens, d_ffn], bit for bit as for one."""
        weights = self._weights[layer]
        gates = [weights.gate_outputs(self._spec, x[t : t + 1]) for t in range(len(x))]
        return None if gates[0] is None else np.stack([gate for gate in gates if gate is not None])

    def _read_by_selector(self, inputs: LayerInputs) -> Floats:
        return inputs.ffn if self.selector is None else inputs.of(self.selector.reads)

    def _keep(self, layer: int, block: Block, active: NDArray[np.bool_], tokens: int) -> None:
        """Copy a block's bundles that the last tokens used into the pool.

        `active` [kept tokens, bundles] says which of them used which.
        """
        used = np.flatnonzero(active.any(axis=0))
        if not len(used):
            return
        ids = (used + block.first).astype(np.int32)
        last_token = self._pool.token + tokens - 1
        kept, positions, pool_rows = self._pool.seed(layer, ids, active[:, used], last_token)
        self._copy(block, used[kept].astype(np.int32), pool_rows, positions)

    def _fill(self, layer: int, block: Block, uses: NDArray[np.int64]) -> None:
        """Copy bundles of a block into free slots, as many as is its share of what is to come."""
        ids, _, _ = block.parts()
        left = self._spec.bundles_per_layer - block.first
        most = -(-self._pool.free_slots(layer) * len(block) // left)
        kept, positions, pool_rows = self._pool.fill(layer, ids, uses, most)
        self._copy(block, kept, pool_rows, positions)

    def _copy(self, block: Block, which: Ids, pool_rows: NDArray[np.uint8], positions: Ids) -> None:
        """Copy bundles of a block, by their number in it, to their positions in the pool."""
        if len(which):
            sources = block.positions[which]
            self._kernels.copy_rows(block.rows, sources, block.stride, pool_rows, positions)


def _columns_of(wanted: NDArray[np.bool_], tile: Block) -> NDArray[np.bool_]:
    """Which bundles of a tile a token wants, of all of its layer: [tokens, bundles]."""
    found: NDArray[np.bool_] = wanted[:, tile.columns]
    return found


def _wanted_after(tokens: int, wanted: Wanted, tile: Block) -> NDArray[np.bool_]:
    """What tokens want that come behind `tokens` others, each of which wants all."""
    return np.concatenate((np.ones((tokens, len(tile)), dtype=np.bool_), wanted(tile)))


def _not_wanted(wanted: Wanted, tile: Block) -> NDArray[np.bool_]:
    """Which bundles of a tile a token does not want: [tokens, bundles]."""
    return ~wanted(tile)
