"""A cache whose answers see everything, and which holds every way to choose against what they see.

Source of the questions: InfiniGen (Lee et al., OSDI 2024, arXiv 2406.19707), sections 3 and 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.kv_cache.dram import KvCache
from flashllm.kv_cache.layout import choosing_layers, tokens_max
from flashllm.kv_cache.partial_index import PartialIndex, Skewing
from flashllm.kv_cache.recall_control import recall_of
from flashllm.kv_cache.speculative_fetch import (
    FLOOR_TOKENS,
    Positions,
    below_best,
    best_positions,
)
from flashllm.kv_cache.token_policies import HeavyHitters, SlidingWindow, TokenPolicy
from flashllm.large_arrays import Floats
from flashllm.options import KvDType, KvIndexDType, KvSelection
from flashllm.spec import ModelSpec

SHARES = (0.05, 0.1, 0.2)
"""Of tokens that are chosen."""
ESTIMATES = (
    "own queries, whole keys",
    "own queries, part of the columns",
    "own queries, part, index",
    "guess, whole keys",
    "guess, part, index",
    "half guess, half own, index",
)
"""How the best tokens are found: which queries, and what of the keys. The first is the best that
there is, the last but one the paper's, the last what `--kv-policy infinigen` does."""
WEIGHT_SHARE = 0.9


@dataclass(slots=True)
class AttentionSums:
    """Of one layer, over decoded tokens and key heads."""

    recalls: dict[str, NDArray[np.float64]] = field(
        default_factory=lambda: {name: np.zeros(len(SHARES)) for name in ESTIMATES}
    )
    """Share of attention's mass on the best of `SHARES`, summed over `count`."""
    cosines: dict[str, float] = field(default_factory=dict)
    """By policy, of attention's weights with what it leaves of them at the largest share."""
    count: int = 0
    needed: list[int] = field(default_factory=list)
    """Of each token and query head, how many tokens have `WEIGHT_SHARE` of the mass."""


def tokens_needed(weights: Floats) -> NDArray[np.intp]:
    """How many tokens have `WEIGHT_SHARE` of the mass of each row [rows, tokens]; their sum is 1.

    With figure 4 of the paper in mind.
    """
    largest = -np.sort(-weights.astype(np.float64), axis=1)
    counts: NDArray[np.intp] = (np.cumsum(largest, axis=1) < WEIGHT_SHARE).sum(axis=1) + 1
    return counts


class ObservingCache(KvCache):
    """As `KvCache`; asks for guesses of queries, and sums up what choices by them would miss."""

    sees_everything = False

    def __init__(
        self,
        spec: ModelSpec,
        context: int,
        dtype: KvDType,
        kernels: core.Kernels,
        selection: KvSelection,
        skewing: Skewing | None,
    ) -> None:
        """`selection` is that of infinigen whose index is tried."""
        super().__init__(spec, context, dtype, kernels)
        self.layers = choosing_layers(spec, selection)
        self.speculated_layers = self.layers
        self.sums = {layer: AttentionSums() for layer in self.layers}
        self._group, self._kv_heads = spec.n_heads // spec.n_kv_heads, spec.n_kv_heads
        dtypes: tuple[KvIndexDType, ...] = ("f16", selection.index_dtype)
        self._part, self._index = (
            PartialIndex(spec, context, kernels, selection.ratio, one, skewing) for one in dtypes
        )
        heads = spec.n_heads, spec.n_kv_heads
        self._policies: dict[str, TokenPolicy] = {
            "h2o": HeavyHitters(self.layers, heads, context, SHARES[-1], self),
            "window": SlidingWindow(self.layers, heads[1], SHARES[-1]),
        }
        self._guesses: dict[int, Floats] = {}
        self._keys: Floats = np.empty(0, np.float32)

    def append(self, layer: int, keys: Floats, values: Floats) -> int:
        """Stores them."""
        self._keys = keys
        return super().append(layer, keys, values)

    def speculate(self, layer: int, query: Floats, scale: float) -> None:  # noqa: ARG002
        """Keeps the guess for the token's attention."""
        self._guesses[layer] = query.copy()

    def attend(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """A prompt's attention; its tokens are indexed."""
        if layer in self.layers:
            self._append_to_indexes(layer, query)
            for policy in self._policies.values():
                policy.attended(layer, self.length, query, scale)
        return super().attend(layer, query, window, scale, sinks)

    def attend_decoded(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """Attention to everything; choices are held against it."""
        if layer in self.layers:
            self._append_to_indexes(layer, query)
            if self.length > FLOOR_TOKENS:
                self._observe(layer, query[0], self._guesses.pop(layer), scale)
        return super().attend(layer, query, window, scale, sinks)

    def truncate(self, length: int) -> None:
        """Forgets everything; sums stay."""
        super().truncate(length)
        for policy in self._policies.values():
            policy.truncate(length)

    def _append_to_indexes(self, layer: int, queries: Floats) -> None:
        for index in (self._part, self._index):
            index.append(layer, self.length, queries, self._keys)

    def _observe(self, layer: int, own: Floats, guess: Floats, scale: float) -> None:
        tokens, sums = self.length, self.sums[layer]
        truth = self._whole_scores(layer, own, tokens + 1, scale)
        sums.count += self._kv_heads
        weights = np.exp(truth - truth.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        sums.needed += tokens_needed(weights).tolist()
        indexed = [
            below_best(self._index.scores(layer, queries, tokens, scale), self._kv_heads)
            for queries in (own, guess)
        ]
        estimates = {
            ESTIMATES[0]: below_best(truth[:, :tokens], self._kv_heads),
            ESTIMATES[1]: below_best(self._part.scores(layer, own, tokens, scale), self._kv_heads),
            ESTIMATES[2]: indexed[0],
            ESTIMATES[3]: below_best(
                self._whole_scores(layer, guess, tokens, scale), self._kv_heads
            ),
            ESTIMATES[4]: indexed[1],
        }
        for place, share in enumerate(SHARES):
            most = tokens_max(tokens, share)
            for name, distances in estimates.items():
                self._add(sums, name, place, truth, best_positions(distances, most))
            half = best_positions(indexed[1], max(1, most // 2))
            rest = indexed[0].copy()
            np.put_along_axis(rest, half.astype(np.intp), -np.inf, axis=1)
            late = best_positions(rest, most - half.shape[1]) if most > half.shape[1] else half
            self._add(sums, ESTIMATES[5], place, truth, np.hstack((half, late)))
        infinigen = best_positions(indexed[1], tokens_max(tokens, SHARES[-1]))
        choices = {"infinigen": infinigen} | {
            name: policy.choose(layer, own, tokens, scale)
            for name, policy in self._policies.items()
        }
        for name, positions in choices.items():
            assert positions is not None
            found = sums.cosines.get(name, 0.0)
            sums.cosines[name] = found + self._cosine(weights, positions)

    def _add(
        self, sums: AttentionSums, name: str, place: int, truth: Floats, positions: Positions
    ) -> None:
        for head, own in enumerate(positions):
            group = truth[head * self._group : (head + 1) * self._group]
            sums.recalls[name][place] += recall_of(group, np.unique(own))

    def _cosine(self, weights: Floats, positions: Positions) -> float:
        """Of all weights with those of the choice, summed over key heads.

        What is left is a part of the vector, made larger: the cosine is the share of its length.
        """
        found = 0.0
        for head, own in enumerate(positions):
            group = weights[head * self._group : (head + 1) * self._group].astype(np.float64)
            seen = np.append(own, self.length)
            lengths = np.linalg.norm(group[:, seen], axis=1) / np.linalg.norm(group, axis=1)
            found += float(lengths.mean())
        return found

    def _whole_scores(self, layer: int, queries: Floats, end: int, scale: float) -> Floats:
        """Scores [heads, end] with the keys as they are kept."""
        found = [
            self.scores(layer, head, queries[head * self._group : (head + 1) * self._group], end)
            for head in range(self._kv_heads)
        ]
        return np.float32(scale) * np.concatenate(found)
