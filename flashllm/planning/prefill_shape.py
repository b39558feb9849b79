"""Sizes of the pieces in which prompts are computed. Pure arithmetic.

The least follow from the model's shape alone. Products round alike in any chunk and in blocks of
any size (`model.products`), so a larger ceiling has larger ones: each chunk reads the layers once,
and each block costs a fixed time beside its products.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from flashllm.planning.slot_allocation import LEAST_BLOCKS
from flashllm.spec import ModelSpec
from flashllm.units import MIB
from flashllm.weight_cache.blocks import summation_ids

MAX_CHUNK = 1 << 16
"""The most tokens of a chunk that may be asked for."""
_ACTIVATION_BYTES = 2 * MIB
_BLOCK_BYTES = 4 * MIB
_SCORE_BYTES = 2 * MIB
"""Scores of a chunk's attention, in all threads together; `kScoreBytes` of the core."""
LOGIT_ROWS_MAX = 64
"""The most tokens whose logits are computed at once."""
LARGEST_CHUNK = 512
"""The most tokens that a prompt's chunk grows to by itself."""
LARGEST_CHUNK_OF_ROWS = 4096
"""The same of a block of rows."""
_CHUNK_SHARE = 16
"""A larger chunk takes at most 1/16 of what the ceiling has beyond the least: the slots decide how
fast an answer is, and their last few per cent hardly do."""
_CHUNK_SHARE_OF_ROWS = 2
"""The same of a block of rows, whose chunk is as large as reads the least: what is left is for the
ring, which keeps the disk busy."""


@dataclass(frozen=True, slots=True)
class RowsRead:
    """What says how much a block of rows reads."""

    rows: int
    context: int
    """Tokens of each."""
    weight_bytes: int
    """All bundles."""
    step_share: float
    """How much of them a token of each row needs."""
    lends_chunk: bool = False
    """Whether slots have the memory of a chunk while there is no prompt."""


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """Sizes of the pieces in which a prompt is computed."""

    tokens: int
    """Tokens that go through the model together."""
    bundles: int
    """Bundles of a block, which is read as one: whole blocks of summation, about 4 MiB, or two or
    four times as many."""

    @classmethod
    def of(cls, spec: ModelSpec, stride: int) -> PrefillShape:
        """The least that a model's shape asks for, whose bundles lie `stride` bytes apart."""
        tokens = 64
        while tokens < LARGEST_CHUNK and 2 * tokens * spec.d_model * 4 <= _ACTIVATION_BYTES:
            tokens *= 2
        block_ids = summation_ids(spec)
        bundles = max(_BLOCK_BYTES // stride // block_ids, 1) * block_ids
        return cls(tokens=tokens, bundles=min(bundles, spec.bundles_per_layer))

    def bytes(
        self, spec: ModelSpec, stride: int, blocks: int = LEAST_BLOCKS, contexts: int = 1
    ) -> int:
        """Peak memory of a prefill: a ring of `blocks` blocks, activations, scores of attention."""
        ring = blocks * self.bundles * stride
        return ring + self.activation_bytes(spec, contexts) + _SCORE_BYTES

    def activation_bytes(self, spec: ModelSpec, contexts: int = 1) -> int:
        """Of a chunk, and of the tokens of a block's contexts that go beside it."""
        return (self.tokens + (contexts if contexts > 1 else 0)) * self.token_bytes(spec)

    def step_bytes(self, spec: ModelSpec, contexts: int) -> int:
        """Of these, what a token of each of a block's contexts needs, or the logits after it."""
        logits = 2 * min(contexts, LOGIT_ROWS_MAX) * spec.vocab_size * 4
        return min(
            max(contexts * self.token_bytes(spec), logits), self.activation_bytes(spec, contexts)
        )

    def unused_bytes(self, spec: ModelSpec, tokens: int) -> int:
        """Of a chunk's activations, those that a prompt of fewer tokens does not take."""
        return max(self.tokens - tokens, 0) * self.token_bytes(spec)

    def with_tokens(self, tokens: int) -> PrefillShape:
        """The same, for chunks of `tokens`."""
        return dataclasses.replace(self, tokens=tokens)

    def larger_blocks(self) -> Iterator[PrefillShape]:
        """The same with blocks of twice the size, and of four times."""
        for times in (2, 4):
            yield dataclasses.replace(self, bundles=times * self.bundles)

    def grown(self, spec: ModelSpec, spare_bytes: int) -> PrefillShape:
        """With as large a chunk as a part of `spare_bytes` beyond this one has room for."""
        tokens = self.tokens
        while 2 * tokens <= LARGEST_CHUNK:
            if self._grown_bytes(spec, 2 * tokens) > spare_bytes // _CHUNK_SHARE:
                break
            tokens *= 2
        return self.with_tokens(tokens)

    def grown_for_rows(self, spec: ModelSpec, spare_bytes: int, block: RowsRead) -> PrefillShape:
        """The same, or with the larger chunk with which a block of rows reads the least bytes."""
        shape = best = self.grown(spec, spare_bytes)
        least_bytes = self._bytes_read(spec, spare_bytes, block, best.tokens)
        while 2 * shape.tokens <= LARGEST_CHUNK_OF_ROWS:
            shape = shape.with_tokens(2 * shape.tokens)
            if self._grown_bytes(spec, shape.tokens) > spare_bytes // _CHUNK_SHARE_OF_ROWS:
                break
            bytes_read = self._bytes_read(spec, spare_bytes, block, shape.tokens)
            if bytes_read < least_bytes:
                best, least_bytes = shape, bytes_read
        return best

    def _grown_bytes(self, spec: ModelSpec, tokens: int) -> int:
        return (tokens - self.tokens) * self.token_bytes(spec)

    def _bytes_read(self, spec: ModelSpec, spare_bytes: int, block: RowsRead, tokens: int) -> float:
        """Of contexts of which a half are prompts, with chunks of `tokens`; slots take the rest."""
        slot_bytes = spare_bytes - self._grown_bytes(spec, tokens)
        missing_bytes = max(block.weight_bytes - slot_bytes, 0)
        if block.lends_chunk:
            slot_bytes += tokens * self.token_bytes(spec)
        step_bytes = block.step_share * max(block.weight_bytes - slot_bytes, 0)
        # Prompts of half a chunk read the layers as often as those of a whole one.
        chunks, steps = math.ceil(block.rows * block.context / 2 / tokens), block.context / 2
        return chunks * missing_bytes + steps * step_bytes

    def token_bytes(self, spec: ModelSpec) -> int:
        """Activations of one token of a chunk, or of one context of a block's step."""
        if spec.experts is not None:
            # At the worst all tokens choose the same expert: gate and up, then what comes of them,
            # its input and its output; and the router's logits, scores, order and weights.
            hidden = 5 * spec.experts.d_ffn + 2 * spec.d_model + 6 * spec.experts.n_experts
        else:
            hidden = (4 if spec.gated else 3) * self.bundles
        if spec.gate == "resident":
            hidden += spec.d_ffn  # the whole gate at once
        return (10 * _widest(spec) + hidden) * 4


def _widest(spec: ModelSpec) -> int:
    return max(spec.d_model, spec.embed_dim, spec.n_heads * spec.head_dim)
