"""Memory that is allocated once and never moves."""

from __future__ import annotations

import gc
from types import ModuleType

import numpy as np
import pytest

from flashllm.system.memory import rss_bytes


def test_is_zero_page_aligned_and_of_the_size_asked(core: ModuleType) -> None:
    buffer = core.Buffer(10_001)
    array = buffer.array()
    assert buffer.nbytes == 10_001
    assert buffer.address % 4096 == 0
    assert array.dtype == np.uint8
    assert array.shape == (10_001,)
    assert not array.any()


def test_array_is_the_memory_itself(core: ModuleType) -> None:
    buffer = core.Buffer(4096)
    first, second = buffer.array(), buffer.array()
    first[17] = 200
    assert second[17] == 200
    assert first.ctypes.data == buffer.address


def test_address_stays_while_other_memory_comes_and_goes(core: ModuleType) -> None:
    buffer = core.Buffer(1 << 20)
    address = buffer.address
    others = [core.Buffer(1 << 20) for _ in range(20)]
    buffer.array()[:] = 1
    del others
    gc.collect()
    assert buffer.address == address
    assert buffer.array().ctypes.data == address


def test_array_keeps_the_memory_alive(core: ModuleType) -> None:
    array = core.Buffer(1 << 20).array()
    array[:] = 7
    gc.collect()
    core.Buffer(1 << 20).array()[:] = 9
    assert (array == 7).all()


@pytest.mark.parametrize("nbytes", [0, -1, -(1 << 62)])
def test_refuses_sizes_that_are_none(core: ModuleType, nbytes: int) -> None:
    with pytest.raises(ValueError, match="buffer of"):
        core.Buffer(nbytes)


def test_more_than_there_is_raises(core: ModuleType) -> None:
    with pytest.raises(MemoryError):
        core.Buffer(1 << 61)


def test_what_is_discarded_is_whole_pages_of_zeros(core: ModuleType) -> None:
    buffer = core.Buffer(5 * 4096)
    array = buffer.array()
    array[:] = 1
    buffer.discard(4095, 3 * 4096)
    assert not array[4096 : 3 * 4096].any()
    assert array[:4096].all()
    assert array[3 * 4096 :].all(), "the last page is discarded in part only"
    buffer.discard(100, 200)
    buffer.discard(5 * 4096, 0)
    assert array[:4096].all()
    array[4096:8192] = 2
    assert (array[4096:8192] == 2).all(), "it can be used again"


@pytest.mark.parametrize(
    ("begin", "nbytes"), [(-1, 10), (0, -1), (0, 4097), (4097, 0), (1, 1 << 62), (1 << 62, 1)]
)
def test_nothing_outside_is_discarded(core: ModuleType, begin: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match="of a buffer of 4096"):
        core.Buffer(4096).discard(begin, nbytes)


@pytest.mark.parametrize("place", [0, 123])
def test_without_huge_pages_little_memory_is_touched(core: ModuleType, place: int) -> None:
    buffer = core.Buffer(64 << 20, huge_pages=False)
    before = rss_bytes()
    buffer.array()[place :: 1 << 20] = 1
    assert rss_bytes() - before < 4 << 20
