"""Which tokens a context holds, and how much of it may stay when the next prompt comes.

The bits of a token do not depend on the chunk of a prompt that it was computed in, so a context may
be cut anywhere in a prompt. Where a prompt is computed with other neurons than an answer, the
tokens of an answer that goes on have to be those that were decoded one by one; elsewhere all tokens
are alike. Pure: no tensors are touched here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class ContextTokens:
    """The ids of a context's tokens, and which of them were decoded one by one."""

    def __init__(
        self, decoded_alike: bool = False, may_stay: Callable[[int], int] | None = None
    ) -> None:
        """`may_stay` says how many of the first tokens keys and values allow to stay: all."""
        self.ids: list[int] = []
        self.decoded_alike = decoded_alike
        self._decoded: list[bool] = []  # of each token: whether it is one of an answer
        self._may_stay = may_stay
        self.unchanged = 0
        """So many of the first tokens have been there since `mark` was called."""

    def append_prefilled(self, ids: Sequence[int]) -> None:
        """Records a chunk of a prompt that is in the context now."""
        self._add(ids, is_decoded=False)

    def append_decoded(self, token: int) -> None:
        """Records a token of an answer that is in the context now."""
        self._add([token], is_decoded=True)

    @property
    def prefilled_prefix(self) -> int:
        """How many of the first tokens are of prompts, with none of an answer before them."""
        return next((at for at, decoded in enumerate(self._decoded) if decoded), len(self.ids))

    def mark(self) -> None:
        """From now on `unchanged` tells how many of the present tokens have stayed."""
        self.unchanged = len(self.ids)

    def decoded(self, start: int, end: int) -> list[bool]:
        """Of the tokens from `start` up to `end`: whether each is one of an answer."""
        return self._decoded[start:end]

    def empty_copy(self) -> ContextTokens:
        """No tokens, which are to be computed as these."""
        return ContextTokens(self.decoded_alike, self._may_stay)

    def restore(self, ids: Sequence[int], decoded: Sequence[bool]) -> None:
        """Appends tokens that `ids` and `decoded` had told of."""
        assert len(ids) == len(decoded)
        self.ids += ids
        self._decoded += decoded

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        del self.ids[length:], self._decoded[length:]
        self.unchanged = min(self.unchanged, length)

    def cached_prefix(
        self, ids: Sequence[int], answer: int = 0, *, reuse_answers: bool = True
    ) -> int:
        """How many of the first `ids` may stay; at least one is left, to compute the logits from.

        The last `answer` ids belong to an answer; of these, only tokens that were decoded one by
        one may stay. A conversation goes on from its earlier answers; without `reuse_answers`, of
        the ids before the last answer only tokens of prompts may stay, as if nothing had been
        answered before.
        """
        shared = self._shared_prefix(ids, answer, reuse_answers)
        return shared if self._may_stay is None else self._may_stay(shared)

    def _shared_prefix(self, ids: Sequence[int], answer: int, reuse_answers: bool) -> int:
        """The same, as far as the tokens go."""
        end = min(_shared(ids, self.ids), len(ids) - 1)
        if self.decoded_alike:
            return end
        start = min(len(ids) - answer, end)
        if not reuse_answers and self.prefilled_prefix < start:
            return self.prefilled_prefix
        return start + _count_true(self._decoded[start:end])

    def _add(self, ids: Sequence[int], is_decoded: bool) -> None:
        self.ids += ids
        self._decoded += [is_decoded] * len(ids)


def _shared(some: Sequence[int], others: Sequence[int]) -> int:
    """Length of the common prefix."""
    count = 0
    for one, other in zip(some, others, strict=False):
        if one != other:
            break
        count += 1
    return count


def _count_true(flags: Sequence[bool]) -> int:
    """How many come before the first that is false."""
    return next((index for index, flag in enumerate(flags) if not flag), len(flags))
