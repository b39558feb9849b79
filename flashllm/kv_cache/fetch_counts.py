"""What was fetched of keys and values where a policy chooses among them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FetchCounts:
    """What was fetched of the layers in which a policy chooses; sums over tokens and layers."""

    tokens: int = 0
    """Tokens before each one, of each key head."""
    fetched: int = 0
    """Those of them that were fetched."""
    late: int = 0
    """Those of them that were not known a layer ahead, so that attention waits for them."""
    fetched_bytes: int = 0
    index_bytes: int = 0
    """What choosing read."""
    measured_bytes: int = 0
    """What measuring recalls read from flash, besides."""
    recall_sums: dict[int, float] = field(default_factory=dict)
    """By layer, of `recall_counts` measured heads."""
    recall_counts: dict[int, int] = field(default_factory=dict)
    measuring_ns: int = 0
    """Time that measuring recalls took, of all heads; of one a token it is no extra."""

    def add_recall(self, layer: int, recall: float) -> None:
        """One head of a layer was measured."""
        self.recall_sums[layer] = self.recall_sums.get(layer, 0.0) + recall
        self.recall_counts[layer] = self.recall_counts.get(layer, 0) + 1

    @property
    def share(self) -> float:
        """Of the tokens, those that were fetched."""
        return self.fetched / self.tokens if self.tokens else 1.0

    @property
    def recall(self) -> float | None:
        """Mean share of attention's mass on what was fetched; None where nothing was measured."""
        count = sum(self.recall_counts.values())
        return sum(self.recall_sums.values()) / count if count else None
