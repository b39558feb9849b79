"""Which tokens a context holds, and how much of it may stay when the next prompt comes.

A prompt is computed in chunks, an answer token by token, and the last bits of the result depend on
where a chunk began and ended. So a context is cut only where a context that never went further
would end: after a whole chunk, after a token of an answer, or after a prompt that was answered, if
the answer goes on with the token that was sampled there. If a token's bits do not depend on the
others of its chunk, the context may be cut anywhere in a prompt; if they are those of a token of an
answer, all tokens are alike. Pure: no tensors are touched here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


class ContextTokens:
    """The ids of a context's tokens, in the pieces in which they were computed."""

    def __init__(
        self, chunk_tokens: int, cut_anywhere: bool = False, decoded_alike: bool = False
    ) -> None:
        self.ids: list[int] = []
        self.chunk_tokens = chunk_tokens
        self.cut_anywhere = cut_anywhere
        self.decoded_alike = decoded_alike
        self._starts: list[int] = []  # of the pieces, ascending
        self._decoded: list[bool] = []  # of each piece: whether it is one token of an answer
        self._sampled: list[int] = []  # the token that was drawn behind the last, if one was
        self.unchanged = 0
        """So many of the first tokens have been there since `mark` was called."""

    def append_prefilled(self, ids: Sequence[int]) -> None:
        """Records a chunk of a prompt that is in the context now."""
        self._add(ids, is_decoded=False)

    def append_decoded(self, token: int) -> None:
        """Records a token of an answer that is in the context now."""
        self._add([token], is_decoded=True)

    def append_sampled(self, token: int) -> None:
        """Records the token that was sampled after the last one; it is not in the context yet."""
        self._sampled = [token]

    @property
    def prefilled_prefix(self) -> int:
        """How many of the first tokens are of prompts, with none of an answer before them."""
        at = next((at for at, decoded in enumerate(self._decoded) if decoded), len(self._starts))
        return self._starts[at] if at < len(self._starts) else len(self.ids)

    @property
    def sampled(self) -> list[int]:
        """The token that was sampled after the last one, if one was."""
        return list(self._sampled)

    def mark(self) -> None:
        """From now on `unchanged` tells how many of the present tokens have stayed."""
        self.unchanged = len(self.ids)

    def pieces(self, start: int, end: int) -> list[tuple[int, bool]]:
        """Where pieces begin from `start` up to `end`, and whether each is a token of an answer."""
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        return list(zip(self._starts[first:last], self._decoded[first:last], strict=True))

    def empty_copy(self) -> ContextTokens:
        """No tokens, which are to be computed as these."""
        return ContextTokens(self.chunk_tokens, self.cut_anywhere, self.decoded_alike)

    def restore(
        self, ids: Sequence[int], pieces: Sequence[tuple[int, bool]], sampled: Sequence[int]
    ) -> None:
        """Appends tokens with what `pieces` and `sampled` had told of them.

        `ValueError` where no context can have had such pieces.
        """
        before, end = len(self.ids), len(self.ids) + len(ids)
        starts = [start for start, _ in pieces]
        if starts != sorted(set(starts)) or any(not before <= start < end for start in starts):
            raise ValueError(f"pieces begin at {starts[:8]}, of tokens {before} to {end - 1}")
        if not before and starts[:1] != [0]:
            raise ValueError("no piece begins at the first token")
        self._starts += starts
        self._decoded += [is_decoded for _, is_decoded in pieces]
        self.ids += ids
        self._sampled = list(sampled)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`, a result of `cached_prefix`."""
        pieces = bisect_right(self._starts, length - 1)
        assert self.cut_anywhere or length in (self._end(pieces - 1), len(self.ids))
        # Where an answer began it may begin again, even if the next prompt is cancelled.
        self._sampled = [*self.ids, *self._sampled][length : length + 1]
        del self.ids[length:], self._starts[pieces:], self._decoded[pieces:]
        self.unchanged = min(self.unchanged, length)

    def cached_prefix(self, ids: Sequence[int], answer: int = 0) -> int:
        """How many of the first `ids` may stay; at least one is left, to compute the logits from.

        The last `answer` ids belong to an answer; of these, only tokens that were decoded one by
        one may stay.
        """
        known = [*self.ids, *self._sampled]
        shared = _shared(ids, known)
        end = min(shared, len(self.ids), len(ids) - 1)
        prompt = len(ids) - answer
        if not answer or end < prompt or self.decoded_alike:
            return self._boundary(end, goes_on=shared > end)
        if self._boundary(prompt, goes_on=True) < prompt:
            return self._boundary(prompt, goes_on=True)
        return prompt + self._decoded_from(prompt, end)

    def _add(self, ids: Sequence[int], is_decoded: bool) -> None:
        self._starts.append(len(self.ids))
        self._decoded.append(is_decoded)
        self.ids += ids
        self._sampled = []

    def _boundary(self, length: int, goes_on: bool) -> int:
        """The last place up to `length` where the context may be cut.

        `goes_on`: the token that follows there is the one that was sampled there.
        """
        if self.cut_anywhere:
            return length
        piece = bisect_right(self._starts, length - 1) - 1
        if piece < 0:
            return 0
        start, end = self._starts[piece], self._end(piece)
        is_whole = self._decoded[piece] or end - start == self.chunk_tokens
        return length if length == end and (is_whole or goes_on) else start

    def _decoded_from(self, start: int, end: int) -> int:
        """How many tokens were decoded one by one, from `start` up to `end`."""
        first = bisect_right(self._starts, start) - 1
        count = 0
        while count < end - start and self._decoded[first + count]:
            count += 1
        return count

    def _end(self, piece: int) -> int:
        return self._starts[piece + 1] if piece + 1 < len(self._starts) else len(self.ids)


def _shared(some: Sequence[int], others: Sequence[int]) -> int:
    """Length of the common prefix."""
    count = 0
    for one, other in zip(some, others, strict=False):
        if one != other:
            break
        count += 1
    return count
