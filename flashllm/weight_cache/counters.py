"""What is counted of the slot pool; alone here, so that numbers can be shown without numpy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StreamCounters:
    """What the slot pool did, counted since it was made."""

    hits: int = 0
    misses: int = 0
    passes: int = 0
    """Extra passes, over layers whose active set did not fit into their slots."""
    spilled: int = 0
    """Bundles evicted only because others needed their slots."""
    guessed: int = 0
    """Bundles begun to be read before it was known that they are needed."""
    guesses_used: int = 0
    """Those of them that were needed; they count as misses too."""
