"""What the feed-forward part of a layer can read of the tokens that go through it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from flashllm.large_arrays import Floats

Reads = Literal["ffn", "stream", "block"]
"""Which of these inputs something reads."""


class LayerInputs(NamedTuple):
    """The same tokens at three points of a block, each [tokens, d_model]."""

    ffn: Floats
    """What the feed-forward layer multiplies: in most models what a norm gives."""
    stream: Floats
    """The residual stream there: the input of that norm."""
    block: Floats
    """The residual stream as it came into the block, before attention and its norm."""

    @classmethod
    def before_attention(cls, block: Floats) -> LayerInputs:
        """What is known before attention, for those who read nothing else."""
        return cls(block, block, block)

    def after(self, first: int) -> LayerInputs:
        """Of the tokens from number `first` on."""
        return LayerInputs(self.ffn[first:], self.stream[first:], self.block[first:])

    def of(self, reads: Reads) -> Floats:
        """The one that somebody reads."""
        found: Floats = getattr(self, reads)
        return found
