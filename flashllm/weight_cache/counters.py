"""Counters of the slot pool and of decoding with it, without numpy: the chat shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StreamCounters:
    """What the slot pool did, and decoding with its bundles, counted since it was made."""

    hits: int = 0
    misses: int = 0
    extra_rounds: int = 0
    """Rounds beyond the first, in layers whose active set did not fit into their slots."""
    evicted_early: int = 0
    """Bundles evicted only because others needed their slots."""
    prefetched: int = 0
    """Bundles whose reads began before it was known that they are needed."""
    prefetched_used: int = 0
    """Prefetched bundles that were needed; they count as misses too."""
    prefetched_bytes_wasted: int = 0
    """Of prefetched bundles that were not needed, as far as they were read."""
    neurons: int = 0
    """Neurons of chosen experts whose gate may be zero: those of ReLU and its like."""
    neurons_silent: int = 0
    """Of them, those whose gate was: neither their up nor their down changed anything."""
