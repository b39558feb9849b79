"""Prefetchers: reads of a layer's bundles that begin before the layer's turn.

A prefetcher never decides what is computed, so no answer depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from flashllm.arrays import Ids
from flashllm.large_arrays import Floats
from flashllm.model.active_set_selectors import Selector, Vector
from flashllm.model.layer_inputs import LayerInputs
from flashllm.model.linear import Norm
from flashllm.options import Overlap
from flashllm.spec import ModelSpec
from flashllm.system.clock import PartClock
from flashllm.weight_cache.pool import BundlePool, ReadCounts

PRECISION_MIN = 0.5
"""Share of prefetched bundles that must turn out to be needed for as many to be prefetched again:
a wrong one costs a read, a right one hides one."""
GROW, SHRINK = 1.15, 0.8
LEAST_SHARE = 0.02
FEW = 8
"""Fewer prefetched bundles say nothing yet, and fewer loaded ones are not worth prefetching."""
LOADED_MIN = 0.1
"""Experts a token: a layer that loads fewer is not asked early, which takes about 0.1 ms, as long
as reading a tenth of an expert of 2.6 MB."""
LOADED_FADE = 0.1
"""Weight of a token in the mean of what tokens load."""


class Prefetcher(Protocol):
    """Is called at the points of a token at which reads may begin."""

    def before_attention(self, layer: int, stream: Floats, known: LayerInputs | None) -> None:
        """A layer's attention comes next.

        `known` is what its selector reads, where that is already known: in a parallel block, and
        where it reads the block's input. Otherwise it is None, and there is only the residual
        `stream` [1, d_model].
        """

    def after_reads_began(self, layer: int, reads: ReadCounts, stream: Floats) -> None:
        """A layer's own reads are under way; `stream` [1, d_model] is its residual."""


@runtime_checkable
class RankingSelector(Selector, Protocol):
    """A selector that can order bundles by how likely they are needed."""

    def ranked(self, layer: int, x: Vector) -> Ids:
        """The ids of `select`, most likely first."""


class PrefetchShares:
    """The share of a predictor's ranked ids to prefetch in each layer.

    Learnt from how many prefetched bundles turned out to be needed.
    """

    def __init__(self, n_layers: int) -> None:
        self._shares = [1.0] * n_layers
        self._loaded = [FEW] * n_layers
        # Bundles prefetched since the last judgement, and how many of them were needed.
        self._made = [0] * n_layers
        self._used = [0] * n_layers

    def is_worthwhile(self, layer: int) -> bool:
        """Whether the layer loads enough a token to be worth a prediction."""
        return self._loaded[layer] >= FEW

    def cut(self, layer: int, ranked: Ids) -> Ids:
        """The most likely of the ranked ids, as many as should be prefetched."""
        return ranked[: round(self._shares[layer] * len(ranked))]

    def learn(self, layer: int, reads: ReadCounts) -> None:
        """Adapts a layer's share to what a token read of it."""
        self._loaded[layer] = reads.loaded
        self._made[layer] += reads.prefetched
        self._used[layer] += reads.prefetched_used
        if self._made[layer] >= FEW:
            right = self._used[layer] >= PRECISION_MIN * self._made[layer]
            share = self._shares[layer] * (GROW if right else SHRINK)
            self._shares[layer] = min(max(share, LEAST_SHARE), 1.0)
            self._made[layer] = self._used[layer] = 0


class PrefetchAll:
    """Prefetches all that is ranked, in layers that read something now and then.

    For bundles that are dropped as soon as they turn out not to be needed, so that a wrong one
    costs little but the asking.
    """

    def __init__(self, n_layers: int) -> None:
        self._loaded = [1.0] * n_layers

    def is_worthwhile(self, layer: int) -> bool:
        """Whether the layer loads enough a token to be worth asking its selector early."""
        return self._loaded[layer] >= LOADED_MIN

    def cut(self, layer: int, ranked: Ids) -> Ids:  # noqa: ARG002
        """All of them."""
        return ranked

    def learn(self, layer: int, reads: ReadCounts) -> None:
        """Follows what tokens load in a layer, in the mean of the last ones."""
        self._loaded[layer] += LOADED_FADE * (reads.loaded - self._loaded[layer])


class PredictorPrefetcher:
    """Runs a layer's predictor, or its router, on an earlier residual stream.

    The stream is taken before the layer's attention, or before the feed-forward layer of the
    previous layer. Deja Vu (arXiv 2310.17157) predicts from the previous layer and computes what
    it predicted; LLM in a flash (arXiv 2312.11514) leaves its reads exposed. A router, asked a
    layer early: Fate (arXiv 2502.12224).
    """

    def __init__(
        self,
        selector: RankingSelector,
        pool: BundlePool,
        norms: Sequence[Norm | None],
        overlap: Overlap,
        clock: PartClock,
        shares: PrefetchShares | PrefetchAll,
    ) -> None:
        """`norms` are the norms before each feed-forward layer."""
        self._selector = selector
        self._pool = pool
        self._norms = norms
        self._overlap = overlap
        self._clock = clock
        self.shares = shares

    def before_attention(self, layer: int, stream: Floats, known: LayerInputs | None) -> None:  # noqa: ARG002
        """Prefetches for this layer, by `overlap`; always for layer 0, which has no predecessor."""
        if self._overlap == "attention" or layer == 0:
            self._prefetch(layer, stream)

    def after_reads_began(self, layer: int, reads: ReadCounts, stream: Floats) -> None:
        """Learns how good this layer's prefetch was, and prefetches for the next layer."""
        self.shares.learn(layer, reads)
        if self._overlap == "layer" and layer + 1 < len(self._norms):
            self._prefetch(layer + 1, stream)

    def _prefetch(self, layer: int, stream: Floats) -> None:
        if self.shares.is_worthwhile(layer):
            self._clock.switch("predict")
            norm = self._norms[layer]
            is_stream = self._selector.reads == "stream"
            read = stream if norm is None or is_stream else norm(stream)
            ranked = self._selector.ranked(layer, np.ascontiguousarray(read)[0])
            self._pool.prefetch(layer, self.shares.cut(layer, ranked))


class ExactPrefetcher:
    """Starts reads where all that chooses the active set is known before attention."""

    def __init__(self, choose_early: Callable[[int, LayerInputs], Ids], pool: BundlePool) -> None:
        """`choose_early(layer, inputs)` keeps the active set until the layer's turn."""
        self._choose_early = choose_early
        self._pool = pool

    def before_attention(self, layer: int, stream: Floats, known: LayerInputs | None) -> None:  # noqa: ARG002
        """Selects the active set now, and begins to read all of it."""
        assert known is not None
        self._pool.prefetch(layer, self._choose_early(layer, known), is_certain=True)

    def after_reads_began(self, layer: int, reads: ReadCounts, stream: Floats) -> None:
        """Does nothing: everything has been read already."""


def prefetchers_for(
    spec: ModelSpec,
    selector: Selector | None,
    pool: BundlePool,
    norms: Sequence[Norm | None],
    overlap: Overlap,
    clock: PartClock,
    choose_early: Callable[[int, LayerInputs], Ids],
) -> list[Prefetcher]:
    """The prefetchers that the model's blocks, its selector and `overlap` allow."""
    if overlap not in ("attention", "layer") or not pool.prefetches:
        return []
    if spec.block == "parallel" or (selector is not None and selector.reads == "block"):
        return [ExactPrefetcher(choose_early, pool)]
    if isinstance(selector, RankingSelector):
        shares = PrefetchShares if spec.experts is None else PrefetchAll
        return [
            PredictorPrefetcher(selector, pool, norms, overlap, clock, shares(len(norms))),
        ]
    return []
