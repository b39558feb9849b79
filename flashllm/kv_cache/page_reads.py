"""What a token reads of the keys and values that are on flash: arithmetic, for plans.

Attention to everything reads all pages that have no slot, and drops them after use, so slots have
the pages that were written last. Pages that a policy chooses come into slots, where each of them
takes the place of another one; where those of a layer are too many for that, they are dropped too.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashllm.kv_cache.layout import (
    SAMPLE_TOKENS,
    PagePlan,
    PageShape,
    choosing_layers,
    least_slots,
    tokens_max,
)
from flashllm.options import DEFAULT_KV_SELECTION, KvDType, KvSelection
from flashllm.spec import ModelSpec

MEASURED_LONG_TOKENS, MEASURED_ONE_IN = 4096, 4
"""Behind so many tokens the recall of one in so many is measured where none was lacking, since a
head's keys are much to read from flash; before that, of each."""


@dataclass(frozen=True, slots=True)
class FlashReads:
    """Bytes that a token reads from flash: pages in their order, and pages here and there."""

    in_order: int
    scattered: int

    @property
    def total(self) -> int:
        """Bytes of both."""
        return self.in_order + self.scattered


def flash_reads_a_token(
    spec: ModelSpec,
    dtype: KvDType,
    plan: PagePlan,
    tokens: int,
    selection: KvSelection = DEFAULT_KV_SELECTION,
) -> FlashReads:
    """What one token after so many, of one context, reads from flash.

    Of infinigen the most that its budget allows: as if each head chose that many tokens anywhere,
    others each time. Policies that forget read as much as they would if they did not.
    """
    shape = PageShape.of(spec, dtype)
    chooses = selection.policy == "infinigen" and tokens > SAMPLE_TOKENS
    choosing = choosing_layers(spec, selection) if chooses else ()
    blocks, heads = shape.blocks(tokens), shape.kv_heads
    if not choosing:
        here = plan.slots / shape.block_pages
        return FlashReads(_whole_pages(spec, shape, tokens, here, ()) * shape.page_bytes, 0)
    share = tokens_max(tokens, selection.share) / tokens
    chosen = blocks * (1 - (1 - share) ** shape.tokens)
    if heads * chosen + least_slots(shape) > plan.slots:  # none of them stays
        stay = shape.tokens * plan.slots / shape.block_pages
        held = min(stay / shape.tokens / blocks, 1.0)
    else:
        stay = _tokens_that_pages_stay(shape, plan.slots, blocks, chosen, len(choosing))
        # What leaves before the next token comes is never there when it is wanted.
        held = stay / (stay + blocks / chosen) if stay >= 1 else 0.0
    chosen_pages = chosen * (1 - held)
    measured = blocks * (1 - held) / 2  # all keys of a head, in one of the layers
    measured /= MEASURED_ONE_IN if tokens > MEASURED_LONG_TOKENS else 1
    whole = _whole_pages(spec, shape, tokens, stay / shape.tokens, choosing) + measured
    scattered = len(choosing) * heads * chosen_pages
    return FlashReads(round(whole * shape.page_bytes), round(scattered * shape.page_bytes))


def _whole_pages(
    spec: ModelSpec, shape: PageShape, tokens: int, here: float, choosing: tuple[int, ...]
) -> int:
    """Pages without a slot of layers that see everything, where the last `here` blocks have one."""
    pages = 0
    for layer in range(spec.n_layers):
        if layer not in choosing:
            window = spec.attention_window(layer)
            seen = shape.blocks(min(tokens, window) if window else tokens)
            pages += max(seen - int(here), 0) * shape.kv_heads
    return pages


def _tokens_that_pages_stay(
    shape: PageShape, slots: int, blocks: int, chosen: float, layers: int
) -> float:
    """For how many tokens a page stays in its slot, if the oldest one gives way.

    `chosen` of `blocks` pages of a head are needed by each token in so many `layers`, each as
    likely as any other: one that left is needed again after blocks / chosen tokens. As many pages
    leave as come: those that are read, and one of each layer and head every 16 tokens.
    """
    low, high = 0.0, float(slots * shape.tokens)
    for _ in range(60):
        stay = (low + high) / 2
        read = layers * shape.kv_heads * blocks / (stay + blocks / chosen)
        if stay * (read + shape.block_pages / shape.tokens) > slots:
            high = stay
        else:
            low = stay
    return low
