"""How much is guessed is learnt: less where guesses are wrong, nothing where nothing is read."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashllm.model.active_set_selectors import LowRank, SelectPredicted
from flashllm.model.prefetchers import FEW, PrefetchShares
from flashllm.weight_cache.pool import ReadCounts


def fetch(missing: int, made: int, used: int) -> ReadCounts:
    return ReadCounts(missing + used, made, used)


def guesser() -> PrefetchShares:
    return PrefetchShares(2)


def likely(shares: PrefetchShares, layer: int = 0) -> list[int]:
    return shares.cut(layer, np.arange(100, dtype=np.int32)[::-1]).tolist()


def test_all_is_guessed_at_first_and_the_likeliest_stay_where_many_were_wrong() -> None:
    one = guesser()
    assert likely(one) == list(range(99, -1, -1))
    for _ in range(5):
        one.learn(0, fetch(30, made=20, used=5))
    fewer = likely(one)
    assert 20 < len(fewer) < 50
    assert fewer == list(range(99, 99 - len(fewer), -1))
    assert len(likely(one, layer=1)) == 100, "each layer for itself"


def test_right_guesses_bring_all_of_them_back() -> None:
    one = guesser()
    for _ in range(40):
        one.learn(0, fetch(30, made=20, used=0))
    assert 1 <= len(likely(one)) < 10
    for _ in range(40):
        one.learn(0, fetch(30, made=20, used=19))
    assert len(likely(one)) == 100


def test_few_guesses_say_nothing_until_they_are_more() -> None:
    one = guesser()
    one.learn(0, fetch(30, made=FEW - 1, used=0))
    assert len(likely(one)) == 100
    one.learn(0, fetch(30, made=1, used=1))
    assert len(likely(one)) == 80
    one.learn(0, fetch(30, made=1, used=1))
    assert len(likely(one)) == 80, "what was judged is not judged again"


def test_a_layer_that_loads_next_to_nothing_is_not_guessed_until_it_does() -> None:
    one = guesser()
    assert one.is_worthwhile(0), "at first nothing is known"
    one.learn(0, fetch(FEW - 1, made=0, used=0))
    assert not one.is_worthwhile(0)
    assert one.is_worthwhile(1)
    one.learn(0, fetch(FEW - 2, made=10, used=2))
    assert one.is_worthwhile(0)


class Scored(SelectPredicted):
    """A predictor whose scores are given."""

    def __init__(self, cut: list[float]) -> None:
        nothing = cast("Any", None)
        self._layers = [LowRank(nothing, nothing, np.array(cut, np.float32))]
        self._keys = np.empty(len(cut), np.int64)

    def _score(self, layer: int, x: Any) -> None:
        self._scores = x


floats = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 0.25, 1e-45, 3.0])


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=40))
def test_what_exceeds_its_threshold_the_most_comes_first(pairs: list[tuple[float, float]]) -> None:
    scores, cuts = [score for score, _ in pairs], [cut for _, cut in pairs]
    with np.errstate(all="ignore"):
        above = (np.array(scores, np.float32) - np.array(cuts, np.float32)).tolist()
        found = Scored(cuts).ranked(0, np.array(scores, np.float32))
    expected = [i for i in range(len(pairs)) if above[i] > 0]
    assert found.dtype == np.int32
    assert found.tolist() == sorted(expected, key=lambda i: (-above[i], i))
