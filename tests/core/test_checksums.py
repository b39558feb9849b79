"""CRC-32C against published vectors, and bundle checksums that know their place."""

from __future__ import annotations

import struct
from types import ModuleType

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


@pytest.mark.parametrize("bundle_bytes", [1, 7, 60, 64])
def test_bundle_checksums_are_of_place_and_contents(core: ModuleType, bundle_bytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 5 * 64, dtype=np.uint8)
    got = core.bundle_checksums(data, 64, bundle_bytes, FILE_ID, 3, 1000)
    assert got.dtype == np.uint32
    for i, value in enumerate(got):
        seed = FILE_ID + struct.pack("<II", 3, 1000 + i)
        bundle = data[i * 64 : i * 64 + bundle_bytes].tobytes()
        assert value == core.crc32c(as_array(seed + bundle))


def test_a_right_bundle_in_a_wrong_place_is_found(core: ModuleType) -> None:
    data = np.tile(np.arange(64, dtype=np.uint8), 4)
    here = core.bundle_checksums(data, 64, 64, FILE_ID, 0, 0)
    assert len(set(here.tolist())) == 4
    for file_id, layer, first in ((bytes(16), 0, 0), (FILE_ID, 1, 0), (FILE_ID, 0, 1)):
        there = core.bundle_checksums(data, 64, 64, file_id, layer, first)
        assert not np.any(here == there)


def test_padding_is_not_looked_at(core: ModuleType) -> None:
    data = np.zeros(3 * 64, np.uint8)
    before = core.bundle_checksums(data, 64, 60, FILE_ID, 0, 0)
    data.reshape(3, 64)[:, 60:] = 9
    assert np.array_equal(core.bundle_checksums(data, 64, 60, FILE_ID, 0, 0), before)


def test_no_bundles(core: ModuleType) -> None:
    assert len(core.bundle_checksums(as_array(b""), 64, 64, FILE_ID, 0, 0)) == 0


@pytest.mark.parametrize(
    ("size", "stride", "bundle_bytes", "file_id", "first_bundle"),
    [
        (128, 0, 0, FILE_ID, 0),
        (128, -64, 64, FILE_ID, 0),
        (128, 64, 65, FILE_ID, 0),
        (128, 64, 0, FILE_ID, 0),
        (127, 64, 64, FILE_ID, 0),
        (128, 64, 64, FILE_ID[:15], 0),
        (128, 64, 64, FILE_ID, (1 << 32) - 1),
    ],
)
def test_sizes_that_do_not_fit_raise(
    core: ModuleType, size: int, stride: int, bundle_bytes: int, file_id: bytes, first_bundle: int
) -> None:
    with pytest.raises(ValueError):
        core.bundle_checksums(
            np.zeros(size, np.uint8), stride, bundle_bytes, file_id, 0, first_bundle
        )
