"""What a stage of a pipeline gets from the stage before it, and passes on.

The layers of a model are cut into stages, each a `Transformer` over some of them; hidden states go
from one to the next. Source: FlexGen (arXiv 2303.06865), section 4.4.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm.large_arrays import Floats


class StageLink(Protocol):
    """Connects a stage with its neighbours; errors of others are raised where they are met."""

    @property
    def is_first(self) -> bool:
        """Whether the stage has the embedding."""

    @property
    def is_last(self) -> bool:
        """Whether the stage has the head."""

    @property
    def micro_batches(self) -> int:
        """Pieces into which a block is cut, so that each stage has one to compute."""

    @property
    def in_flight(self) -> int:
        """Pieces that may be under way before their logits are asked for."""

    def receive(self, tokens: int) -> Floats:
        """Hidden states [tokens, d_model] from the stage before."""

    def send(self, hidden: Floats) -> None:
        """Passes hidden states on to the next stage; the last one has none."""

    def logits(self, tokens: int) -> NDArray[np.float32]:
        """Of a stage without the head: [tokens, vocab] from the last one, at the first stage.

        [tokens, 0] at others, which nobody looks at.
        """

    def reply(self, logits: NDArray[np.float32]) -> None:
        """Sends logits [tokens, vocab] from the last stage to the first."""
