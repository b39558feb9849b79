"""What attention, contexts and kept files ask of keys and values, wherever these are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm.kv_cache.fetch_counts import FetchCounts
from flashllm.large_arrays import Floats
from flashllm.options import KvDType

ChooseByScores = Callable[[int, NDArray[np.float32]], NDArray[np.int32]]


class SeesEverything:
    """What `KeysValues` are asked of choices, where tokens of an answer see all before them."""

    sees_everything = True
    speculated_layers: Collection[int] = ()

    def may_stay(self, shared: int) -> int:
        """All of them."""
        return shared

    def speculate(self, layer: int, query: Floats, scale: float) -> None:
        """Nothing is chosen."""

    def expect(self, layer: int, window: int) -> None:
        """They are there already."""

    def take_counts(self) -> None:
        """Nothing is left out."""


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

    def append(self, layer: int, keys: Floats, values: Floats) -> int:
        """Store [kv_heads, tokens, head_dim] after `length`; the number of positions then.

        `ModelError` for NaN, infinity, or a value that the encoding cannot hold.
        """

    def attend(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """Attention of tokens that were just appended: [tokens, heads, head_dim] to the same.

        Each sees itself and all before it, or the last `window` of these unless that is 0, and has
        the bits that it has alone. `sinks` [heads] are scores that bring no value.
        """

    def attend_decoded(
        self, layer: int, query: Floats, window: int, scale: float, sinks: Floats | None = None
    ) -> Floats:
        """The same for one token of an answer, which may see less than all before it."""

    def expect(self, layer: int, window: int) -> None:
        """After the next `attend` of any context, the next one will be of this one in a layer.

        What it will read may be read ahead, while the one before it is computed.
        """

    @property
    def sees_everything(self) -> bool:
        """Whether it does not, so that rows are all that there is of tokens."""

    @property
    def speculated_layers(self) -> Collection[int]:
        """Layers in which what a token sees is chosen a layer ahead, by `speculate`."""

    def speculate(self, layer: int, query: Floats, scale: float) -> None:
        """A guess of a token's queries [heads, head_dim] in one of `speculated_layers`."""

    def may_stay(self, shared: int) -> int:
        """How many of the first `shared` tokens may stay where the context is cut."""

    def take_counts(self) -> FetchCounts | None:
        """What was seen since the last call; None where everything is."""

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


class SelectableRows(KeysValues, Protocol):
    """Rows of which some may be attended to, wherever they are."""

    row_bytes: int
    """Of a token's key in one head, and of its value."""
    scored_bytes: int
    """What `scores` had to read from flash so far."""

    def prefetch(self, layer: int, positions: NDArray[np.int32] | None) -> None:
        """`attend_to` will be asked for `positions` [kv_heads, count] of a layer; None: for all."""

    def attend_to(
        self,
        layer: int,
        query: Floats,
        positions: NDArray[np.int32],
        scale: float,
        sinks: Floats | None = None,
    ) -> Floats:
        """Attention of one token [1, heads, head_dim] to itself and to some that came before it.

        `positions` [kv_heads, count] are ascending. The bits are those of attention to a cache that
        holds nothing else.
        """

    def attend_by_scores(
        self,
        layer: int,
        query: Floats,
        choose: ChooseByScores,
        scale: float,
        sinks: Floats | None = None,
    ) -> Floats:
        """As `attend_to`, with the positions of each key head that `choose` says.

        It gets the key head, and the scores of its queries [heads, tokens]; the last token is the
        one itself. All keys are read, and the values of the positions.
        """

    def scores(
        self, layer: int, kv_head: int, queries: NDArray[np.float32], end: int
    ) -> NDArray[np.float32]:
        """Products [queries, end] of queries [queries, head_dim] with a head's first `end` keys."""
