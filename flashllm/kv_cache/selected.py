"""Keys and values of a context, of which tokens of an answer see those that a policy chooses."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from flashllm.kv_cache.fetch_counts import FetchCounts
from flashllm.kv_cache.page_reads import MEASURED_LONG_TOKENS, MEASURED_ONE_IN
from flashllm.kv_cache.protocol import KeysValues, SelectableRows
from flashllm.kv_cache.recall_control import RecallControl, recall_of
from flashllm.kv_cache.speculative_fetch import FLOOR_TOKENS, Positions
from flashllm.kv_cache.token_policies import TokenPolicy
from flashllm.large_arrays import Floats

_SCATTER, _SCATTER_BITS = 0x9E3779B1, 13
"""Multiplied with a token's number, the bits from the latter on look like chance."""


class SelectedCache:
    """As `KeysValues` says; the rows may lie anywhere."""

    sees_everything = False

    def __init__(
        self,
        rows: SelectableRows,
        policy: TokenPolicy,
        heads: tuple[int, int],
        control: RecallControl | None = None,
        *,
        measures_all: bool = False,
    ) -> None:
        """`heads` are those of queries and of keys.

        The recall is measured of one key head of one layer a token, or of all; `control` learns
        that of the one.
        """
        self.policy = policy
        self.counts = FetchCounts()
        self.dtype = rows.dtype
        self.context = rows.context
        self._rows = rows
        self._group, self._kv_heads = heads[0] // heads[1], heads[1]
        self._control = control
        self._measures_all = measures_all
        self._keys: NDArray[np.float32] | None = None
        """Those that were appended last."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._rows.length

    @length.setter
    def length(self, length: int) -> None:
        self._rows.length = length

    @property
    def is_damaged(self) -> bool:
        """Whether some of the rows cannot be read back."""
        return self._rows.is_damaged

    @is_damaged.setter
    def is_damaged(self, is_damaged: bool) -> None:
        self._rows.is_damaged = is_damaged

    @property
    def speculated_layers(self) -> Sequence[int]:
        """Layers whose choice is made a layer ahead."""
        return self.policy.layers if self.policy.speculates else ()

    def close(self) -> None:
        """Drop the memory."""
        self._rows.close()
        self.policy.close()

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`, a result of the policy's `may_stay`."""
        self._rows.truncate(length)
        self.policy.truncate(length)

    def take_counts(self) -> FetchCounts:
        """What was counted since the last call; counting begins anew."""
        taken, self.counts = self.counts, FetchCounts()
        return taken

    def may_stay(self, shared: int) -> int:
        """How many of the first `shared` tokens may stay where the context is cut."""
        return self.policy.may_stay(shared, self.length)

    def encoded(self, layer: int, first: int, end: int) -> NDArray[np.uint8]:
        """Rows of positions, whether they are seen or not."""
        return self._rows.encoded(layer, first, end)

    def append_encoded(self, layer: int, tokens: int, rows: NDArray[np.uint8]) -> None:  # noqa: ARG002
        """A policy has to see what it is to choose of: such contexts are not kept."""
        raise AssertionError

    def copy(self, other: KeysValues, length: int) -> None:  # noqa: ARG002
        """For the same reason they share no prefix."""
        raise AssertionError

    def append(self, layer: int, keys: Floats, values: Floats) -> int:
        """Store [kv_heads, tokens, head_dim] after `length`; the number of positions then."""
        end = self._rows.append(layer, keys, values)
        self._keys = keys
        return end

    def speculate(self, layer: int, query: Floats, scale: float) -> None:
        """What a token's queries [heads, head_dim] of a layer will probably be."""
        positions = self.policy.speculate(layer, query, self.length, scale)
        self._rows.prefetch(layer, positions)

    def expect(self, layer: int, window: int) -> None:
        """As that of the rows, in layers where everything is seen."""
        if layer not in self.policy.layers:
            self._rows.expect(layer, window)

    def attend(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """As that of the rows: tokens of a prompt see everything."""
        if layer in self.policy.layers:
            assert self._keys is not None
            self.policy.append(layer, self.length, query, self._keys)
            self.policy.attended(layer, self.length, query, scale)
        return self._rows.attend(layer, query, window, scale, sinks)

    def attend_decoded(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """One token's attention, to itself and to what the policy chooses."""
        if layer not in self.policy.layers:
            return self._rows.attend(layer, query, window, scale, sinks)
        assert self._keys is not None
        tokens, queries = self.length, query[0]
        self.policy.append(layer, tokens, query, self._keys)
        if self.policy.by_scores and tokens > FLOOR_TOKENS:
            return self._attend_by_scores(layer, query, tokens, scale, sinks)
        positions = self.policy.choose(layer, queries, tokens, scale)
        self._count(tokens, positions)
        if positions is None:
            return self._rows.attend(layer, query, window, scale, sinks)
        self._measure(layer, tokens, queries, positions, scale)
        return self._rows.attend_to(layer, query, positions, scale, sinks)

    def _attend_by_scores(
        self, layer: int, query: Floats, tokens: int, scale: float, sinks: Floats | None
    ) -> Floats:
        counts, sampled = self.counts, self._sampled_head(layer, tokens)

        def choose(head: int, scores: NDArray[np.float32]) -> NDArray[np.int32]:
            positions = self.policy.best(scores[:, :tokens])
            if head == sampled or self._measures_all:
                counts.add_recall(layer, recall_of(scores, positions))
            counts.tokens += tokens
            counts.fetched += len(positions)
            counts.fetched_bytes += len(positions) * self._rows.row_bytes
            counts.index_bytes += tokens * self._rows.row_bytes
            return positions

        return self._rows.attend_by_scores(layer, query, choose, scale, sinks)

    def _sampled_head(self, layer: int, tokens: int) -> int | None:
        """The key head whose recall is measured of a token in a layer; None in other layers."""
        layers = self.policy.layers
        # The same one of the same token, always, and in no step with what repeats in a text.
        scattered = tokens * _SCATTER >> _SCATTER_BITS
        steps = MEASURED_ONE_IN if tokens > MEASURED_LONG_TOKENS else 1
        drawn, step = divmod(scattered % (len(layers) * self._kv_heads * steps), steps)
        sampled, head = divmod(drawn, self._kv_heads)
        if layer != layers[sampled]:
            return None
        owes = self._control is not None and self._control.owes(layer)
        return head if step == 0 or owes else None

    def _count(self, tokens: int, positions: Positions | None) -> None:
        counts, fetched = self.counts, tokens if positions is None else positions.shape[1]
        counts.tokens += tokens * self._kv_heads
        counts.fetched += fetched * self._kv_heads
        counts.late += 0 if positions is None else self.policy.late * self._kv_heads
        counts.fetched_bytes += 2 * fetched * self._kv_heads * self._rows.row_bytes
        counts.index_bytes += self.policy.index_bytes(tokens)

    def _measure(
        self,
        layer: int,
        tokens: int,
        queries: NDArray[np.float32],
        positions: Positions,
        scale: float,
    ) -> None:
        """Holds the choice against the true scores of some heads."""
        sampled = self._sampled_head(layer, tokens)
        start_ns, scored_bytes = perf_counter_ns(), self._rows.scored_bytes
        for head in range(self._kv_heads):
            learns = head == sampled
            if not (learns or self._measures_all):
                continue
            own = queries[head * self._group : (head + 1) * self._group]
            scores = np.float32(scale) * self._rows.scores(layer, head, own, tokens + 1)
            recall = recall_of(scores, positions[head])
            self.counts.add_recall(layer, recall)
            if learns and self._control is not None:
                self._control.learn(layer, tokens, recall)
        self.counts.measured_bytes += self._rows.scored_bytes - scored_bytes
        if self._measures_all:
            self.counts.measuring_ns += perf_counter_ns() - start_ns
