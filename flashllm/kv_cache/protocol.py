"""What attention, contexts and kept files ask of keys and values, wherever these are."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flashllm.options import KvDType


class KeysValues(Protocol):
    """Keys and values of `length` tokens of one context, which has room for `context` of them.

    A token's rows are written layer by layer and count once `length` includes them, so the next
    token overwrites those of a cancelled one.
    """

    dtype: KvDType
    context: int
    length: int
    is_damaged: bool
    """Whether some of it cannot be read back: it is of no use, and `truncate(0)` mends it."""

    def append(self, layer: int, keys: Tensor, values: Tensor) -> int:
        """Store [kv_heads, tokens, head_dim] after `length`; the number of positions then.

        `ModelError` for NaN, infinity, or a value that the encoding cannot hold.
        """

    def attend(
        self, layer: int, query: Tensor, window: int, scale: float, sinks: Tensor | None = None
    ) -> Tensor:
        """Attention of tokens that were just appended: [tokens, heads, head_dim] to the same.

        Each sees itself and all before it, or the last `window` of these unless that is 0, and has
        the bits that it has alone. `sinks` [heads] are scores that bring no value.
        """

    def encoded(self, layer: int, first: int, end: int) -> NDArray[np.uint8]:
        """Rows of positions `first` to `end` - 1, to be looked at before anything else happens.

        [keys or values, kv_heads, positions, bytes of a row].
        """

    def append_encoded(self, layer: int, tokens: int, rows: NDArray[np.uint8]) -> None:
        """Store the bytes of rows of so many tokens, as `encoded` gave them, after `length`."""

    def copy(self, other: KeysValues, length: int) -> None:
        """Forget all tokens, and take over the first `length` of another one of the same kind."""

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""

    def close(self) -> None:
        """Drop the memory; only `length` and `context` can be asked for afterwards."""
