"""CRC-32C against published vectors, and bundle checksums that know their place."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashllm import _core
from flashllm.core.numpy_twin import kernels

FILE_ID = bytes(range(16))

# RFC 3720, appendix B.4, and the check value of the catalogue of CRC algorithms.
VECTORS = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize(("data", "expected"), VECTORS, ids=lambda value: str(value)[:12])
def test_published_vectors(core: ModuleType, data: bytes, expected: int) -> None:
    assert core.crc32c(as_array(data)) == expected


@given(data=st.binary(max_size=300), cut=st.integers(0, 300), value=st.integers(0, 2**32 - 1))
def test_both_cores_agree_and_continue(data: bytes, cut: int, value: int) -> None:
    whole = _core.crc32c(as_array(data), value)
    assert whole == kernels.crc32c(as_array(data), value)
    first = _core.crc32c(as_array(data[:cut]), value)
    assert _core.crc32c(as_array(data[cut:]), first) == whole


def bundles(begins: Any, numbers: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Where they begin, and their numbers: from 0 on unless told otherwise."""
    own = range(len(begins)) if numbers is None else numbers
    return np.array(begins, np.int64), np.array(own, np.uint32)


@pytest.mark.parametrize("bundle_bytes", [1, 7, 60, 64])
def test_bundle_checksums_are_of_place_and_contents(core: ModuleType, bundle_bytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 5 * 64, dtype=np.uint8)
    begins, numbers = bundles([256, 3, 64, 256], [1000, 7, (1 << 32) - 1, 1001])
    got = core.bundle_checksums(data, begins, bundle_bytes, FILE_ID, 3, numbers)
    assert got.dtype == np.uint32
    for begin, number, value in zip(begins, numbers, got, strict=True):
        seed = FILE_ID + struct.pack("<II", 3, number)
        bundle = data[begin : begin + bundle_bytes].tobytes()
        assert value == core.crc32c(as_array(seed + bundle))


def test_a_right_bundle_in_a_wrong_place_is_found(core: ModuleType) -> None:
    data = np.tile(np.arange(64, dtype=np.uint8), 4)

    def sums(file_id: bytes, layer: int, first: int) -> np.ndarray:
        begins, numbers = bundles(range(0, 256, 64), range(first, first + 4))
        return core.bundle_checksums(data, begins, 64, file_id, layer, numbers)

    here = sums(FILE_ID, 0, 0)
    assert len(set(here.tolist())) == 4
    for elsewhere in ((bytes(16), 0, 0), (FILE_ID, 1, 0), (FILE_ID, 0, 1)):
        assert not np.any(here == sums(*elsewhere))


def test_no_bundles(core: ModuleType) -> None:
    begins, numbers = bundles([])
    assert len(core.bundle_checksums(as_array(b""), begins, 64, FILE_ID, 0, numbers)) == 0


@pytest.mark.parametrize(
    ("begins", "bundle_bytes", "file_id", "count"),
    [
        ([0], 0, FILE_ID, 1),
        ([0], -1, FILE_ID, 1),
        ([0], 129, FILE_ID, 1),
        ([0], 1 << 62, FILE_ID, 1),
        ([0, 65], 64, FILE_ID, 2),
        ([0, -1], 64, FILE_ID, 2),
        ([(1 << 63) - 1], 64, FILE_ID, 1),
        ([-(1 << 63)], 64, FILE_ID, 1),
        ([0], 64, FILE_ID[:15], 1),
        ([0, 64], 64, FILE_ID, 1),
    ],
)
def test_bundles_that_are_not_within_the_data_raise(
    core: ModuleType, begins: list[int], bundle_bytes: int, file_id: bytes, count: int
) -> None:
    where, numbers = bundles(begins, range(count))
    with pytest.raises(ValueError):
        core.bundle_checksums(np.zeros(128, np.uint8), where, bundle_bytes, file_id, 0, numbers)
