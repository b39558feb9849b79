"""Which of several prompts are read first, since others begin alike and can take over from them."""

from __future__ import annotations

from collections.abc import Sequence

SHARED_TOKENS_MIN = 32
"""Prompts that begin alike for fewer tokens are not worth an order."""
SAVED_TOKENS_MIN = 256
"""For fewer tokens in all, weights are not read another time."""


def waves(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The prompts by number, in one wave or in two: the second one takes over from the first."""
    leaders: list[int] = []
    followers: list[int] = []
    saved = 0
    for number, prompt in enumerate(prompts):
        most = max((_shared(prompt, prompts[leader]) for leader in leaders), default=0)
        if most < SHARED_TOKENS_MIN:
            leaders.append(number)
        else:
            followers.append(number)
            saved += most
    if saved < SAVED_TOKENS_MIN:
        return [list(range(len(prompts)))]
    return [leaders, followers]


def _shared(some: Sequence[int], others: Sequence[int]) -> int:
    """Length of the common beginning."""
    least = min(len(some), len(others))
    return next((at for at in range(least) if some[at] != others[at]), least)
