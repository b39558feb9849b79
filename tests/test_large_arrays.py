"""Large arrays: memory is used again once nothing refers to it, within a limit."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from flashllm.large_arrays import LEAST_BYTES, LargeArrays

ROWS = LEAST_BYTES // 4 // 1024
"""As many rows of 1,024 floats are the least that is kept."""


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


@pytest.fixture
def arrays() -> LargeArrays:
    return LargeArrays()


def test_memory_is_used_again_after_the_last_view(arrays: LargeArrays) -> None:
    with arrays.kept(8 * LEAST_BYTES):
        first = arrays.empty(ROWS, 1024)
        assert first.shape == (ROWS, 1024)
        assert first.dtype == np.float32
        where = address(first)
        rows = first[1:]
        view = rows[2:].reshape(-1)
        del first, rows
        assert address(other := arrays.empty(ROWS, 1024)) != where  # the view is still there
        view[0] = 3.0
        del view
        assert address(arrays.empty(ROWS, 1024)) == where
        assert address(other) != where


def test_zeros_are_zeros_in_memory_that_was_used(arrays: LargeArrays) -> None:
    with arrays.kept(8 * LEAST_BYTES):
        used = arrays.empty(ROWS, 1024)
        used.fill(7.0)
        where = address(used)
        del used
        again = arrays.zeros(ROWS, 1024)
        assert address(again) == where
        assert not again.any()
    assert not arrays.zeros(3, 2).any()


def test_small_arrays_are_left_to_the_heap(arrays: LargeArrays) -> None:
    with arrays.kept(8 * LEAST_BYTES):
        assert arrays.empty(3, 2).base is None
        assert arrays.empty(0, 1024).shape == (0, 1024)
        assert arrays.kept_bytes == 0


def test_no_more_is_kept_than_the_limit(arrays: LargeArrays) -> None:
    with arrays.kept(3 * LEAST_BYTES):
        some = [arrays.empty(ROWS, 1024) for _ in range(5)]
        assert arrays.kept_bytes == 0
        del some
        assert arrays.kept_bytes == 3 * LEAST_BYTES
        larger = arrays.empty(3 * ROWS, 1024)  # fits into none: others go first
        assert arrays.kept_bytes == 0
        del larger
        assert arrays.kept_bytes == 3 * LEAST_BYTES
        small = arrays.empty(ROWS, 1024)  # less than half of what there is
        assert arrays.kept_bytes == 0
        del small
    assert arrays.kept_bytes == 0


def test_without_a_limit_nothing_is_kept(arrays: LargeArrays) -> None:
    arrays.empty(ROWS, 1024)
    assert arrays.kept_bytes == 0


def test_the_largest_limit_of_open_models_holds(arrays: LargeArrays) -> None:
    with arrays.kept(LEAST_BYTES):
        with arrays.kept(2 * LEAST_BYTES):
            some = [arrays.empty(ROWS, 1024) for _ in range(2)]
            del some
            assert arrays.kept_bytes == 2 * LEAST_BYTES
        assert arrays.kept_bytes == LEAST_BYTES
    assert arrays.kept_bytes == 0


def test_what_is_kept_can_be_given_back(arrays: LargeArrays) -> None:
    with arrays.kept(2 * LEAST_BYTES):
        arrays.empty(ROWS, 1024)
        assert arrays.kept_bytes == LEAST_BYTES
        arrays.give_back()
        assert arrays.kept_bytes == 0


def test_threads_never_share_a_block(arrays: LargeArrays) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            mine = arrays.empty(ROWS, 1024)
            mine[:, 0] = number
            other = arrays.empty(ROWS, 1024)
            other[:, 0] = -number
            if not ((mine[:, 0] == number).all() and (other[:, 0] == -number).all()):
                wrong.append(number)
            del mine, other

    with arrays.kept(4 * LEAST_BYTES):
        threads = [threading.Thread(target=work, args=(1 + i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        assert not wrong
        assert 0 < arrays.kept_bytes <= 4 * LEAST_BYTES
