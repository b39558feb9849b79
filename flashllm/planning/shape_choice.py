"""Which chunk and which blocks prompts get under a ceiling, by how many contexts there are.

Pure arithmetic: `prefill_shape` says what a shape takes, and here one is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashllm.options import ModelOptions, Select
from flashllm.planning.asked_options import context_of, contexts_of, within
from flashllm.planning.prefill_shape import LARGEST_CHUNK, MAX_CHUNK, PrefillShape, RowsRead
from flashllm.planning.slot_allocation import LENDING, RingLimits
from flashllm.spec import ModelSpec

_ENOUGH_BLOCKS = 6
"""Of a ring, for larger ones: what is read ahead is the ring without the block that is computed."""


def reads_layers_whole(contexts: int, union_tokens: int, select: Select) -> bool:
    """Whether a token of each context together needs so many neurons that layers are read."""
    return contexts > max(union_tokens, 1) and select in ("gate", "predicted", "oracle")


@dataclass(frozen=True, slots=True)
class ShapeChoice:
    """Shapes that a model can have with these options."""

    spec: ModelSpec
    stride: int
    """Bytes from a bundle to the next."""
    options: ModelOptions

    def least(self) -> PrefillShape:
        """The shape with the smallest chunk, or with the one that was asked for.

        All contexts of a block take a step together. A chunk may have as many tokens: prompts take
        that step with them.
        """
        shape = PrefillShape.of(self.spec, self.stride)
        while 2 * shape.tokens <= min(contexts_of(self.options), LARGEST_CHUNK):
            shape = shape.with_tokens(2 * shape.tokens)
        asked = self.options.chunk_tokens
        return shape.with_tokens(within("chunk_tokens", asked, shape.tokens, MAX_CHUNK))

    def grown(self, union_tokens: int, spare_bytes: int) -> PrefillShape:
        """The shape with the chunk that is worth its part of `spare_bytes`, or was asked for."""
        spec, options, least = self.spec, self.options, self.least()
        if options.chunk_tokens is not None:
            return least
        share = self.step_share(union_tokens)
        if share is None or options.device is not None:  # which has room for a usual chunk
            return least.grown(spec, spare_bytes)
        if options.slot_memory is not None:
            spare_bytes = max(spare_bytes - options.slot_memory, 0)
        weight_bytes = spec.bundled_layers * spec.bundles_per_layer * self.stride
        rows, context = contexts_of(options), context_of(spec, options)
        block = RowsRead(rows, context, weight_bytes, share, self.lends_chunk)
        return least.grown_for_rows(spec, spare_bytes, block)

    def in_larger_blocks(
        self, shape: PrefillShape, spare_bytes: int, ring: RingLimits
    ) -> PrefillShape:
        """The shape with blocks of which the ring has enough and each layer could lend one.

        Experts are multiplied one by one, and gain nothing; what is pinned or on a device is moved
        in blocks of the least size. `spare_bytes` are beyond what the least shape takes.
        """
        spec, options = self.spec, self.options
        if options.select not in LENDING or options.device is not None or spec.experts is not None:
            return shape
        spare_bytes += self.bytes(self.least())
        larger = shape
        for candidate in shape.larger_blocks():
            left_bytes = spare_bytes - self.bytes(candidate)
            times, block_bytes = candidate.bundles // shape.bundles, candidate.bundles * self.stride
            of_layer = left_bytes // self.stride // spec.bundled_layers
            if candidate.bundles > min(of_layer, spec.bundles_per_layer):
                break
            if ring.in_larger_blocks(times).blocks(left_bytes, block_bytes) < _ENOUGH_BLOCKS:
                break
            larger = candidate
        return larger

    def bytes(self, shape: PrefillShape) -> int:
        """The smallest ring, and activations of a chunk with a token of each context beside it."""
        return shape.bytes(self.spec, self.stride, contexts=contexts_of(self.options))

    @property
    def lends_chunk(self) -> bool:
        """Whether slots have the memory of a chunk's activations while there is no prompt.

        For a block of rows, whose chunk is large, and whose steps read what slots do not hold.
        """
        options = self.options
        is_free = options.device is None and options.slot_memory is None
        return is_free and contexts_of(options) > 1 and options.select in LENDING

    def lendable_bytes(self, shape: PrefillShape) -> int:
        """How many bytes of a chunk's activations slots may have while there is no prompt."""
        rows = contexts_of(self.options)
        if not self.lends_chunk:
            return 0
        return shape.activation_bytes(self.spec, rows) - shape.step_bytes(self.spec, rows)

    def step_share(self, union_tokens: int) -> float | None:
        """How much of the layers a step of a block reads; None where slots decide that."""
        rows, select, experts = contexts_of(self.options), self.options.select, self.spec.experts
        assert select is not None
        if rows == 1:
            return None
        if experts is not None:
            # As if rows chose independently of each other.
            return 1 - (1 - experts.per_token / experts.n_experts) ** rows
        is_whole = select == "all" or reads_layers_whole(rows, union_tokens, select)
        return 1.0 if is_whole else None
