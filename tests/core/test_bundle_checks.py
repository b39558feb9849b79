"""Bundles that are held against their checksums when they are read: both cores, each back-end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flashllm.core.numpy_twin import kernels

LAYERS, PER_LAYER, DATA_OFFSET = 2, 5, 4096
FILE_ID = bytes(range(16))
Open = Callable[..., Any]


@pytest.fixture(params=[512, 1536, 10240])
def stride(request: pytest.FixtureRequest) -> int:
    """With pieces of 4096 bytes: many bundles a piece, cut ones, and several pieces a bundle."""
    return int(request.param)


@pytest.fixture
def bundles(stride: int) -> np.ndarray:
    nbytes = DATA_OFFSET + LAYERS * PER_LAYER * stride
    return np.random.default_rng(2).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.fixture
def bundles_file(tmp_path: Path, bundles: np.ndarray) -> Path:
    path = tmp_path / "ffn.bundles"
    bundles.tofile(path)
    return path


@pytest.fixture(params=["optional", "disabled"])
def verified(
    request: pytest.FixtureRequest,
    core: ModuleType,
    backend: str,
    bundles_file: Path,
    bundles: np.ndarray,
    stride: int,
) -> Open:
    """Opens the file for reads that are verified, and reads bundles."""
    numbers = np.arange(PER_LAYER, dtype=np.uint32)
    sums = [
        kernels.bundle_checksums(
            bundles[DATA_OFFSET:].reshape(LAYERS, -1)[layer].copy(),
            numbers * np.int64(stride), stride - 12, FILE_ID, layer, numbers,
        )
        for layer in range(LAYERS)
    ]  # fmt: skip

    def open_one(always: bool = False) -> Any:
        reader = core.Reader(
            str(bundles_file), direct=request.param, backend=backend, max_read_bytes=4096
        )
        reader.verify_bundles(
            np.concatenate(sums), FILE_ID, DATA_OFFSET, stride, stride - 12, PER_LAYER, always
        )
        return reader

    return open_one


def read(core: ModuleType, reader: Any, stride: int, *numbers: int) -> np.ndarray:
    """The bundles [n, stride], read in one batch, each where the next but one would be."""
    buffer = core.Buffer(2 * len(numbers) * stride)
    offsets = DATA_OFFSET + np.array(numbers, np.int64) * stride
    places = np.arange(len(numbers), dtype=np.int64) * 2 * stride
    reader.read(offsets, stride, buffer, places)
    rows: np.ndarray = buffer.array().reshape(-1, stride)[::2]
    return rows


def counts(reader: Any) -> tuple[int, int, int]:
    stats = reader.stats()
    return tuple(stats[f"bundles_{what}"] for what in ("verified", "mismatched", "damaged"))  # type: ignore[return-value]


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


def test_first_is_once_and_always_is_always(
    core: ModuleType, verified: Open, bundles: np.ndarray, stride: int
) -> None:
    first, always = verified(), verified(always=True)
    for reader in (first, always):
        rows = read(core, reader, stride, 3, 9, 0)
        expected = bundles[DATA_OFFSET:].reshape(-1, stride)[[3, 9, 0]]
        assert np.array_equal(rows, expected)
        read(core, reader, stride, 9, 1)
    assert counts(first) == (4, 0, 0)
    assert counts(always) == (5, 0, 0)


def test_a_span_verifies_all_of_its_bundles(
    core: ModuleType, verified: Open, bundles: np.ndarray, stride: int
) -> None:
    reader, nbytes = verified(), LAYERS * PER_LAYER * stride
    buffer = core.Buffer(nbytes)
    reader.read(np.array([DATA_OFFSET]), nbytes, buffer, np.array([0]))
    assert np.array_equal(buffer.array(), bundles[DATA_OFFSET:])
    assert counts(reader) == (10, 0, 0)


def test_damage_names_the_place_and_the_reader_goes_on(
    core: ModuleType, verified: Open, bundles_file: Path, stride: int
) -> None:
    reader, at = verified(), DATA_OFFSET + 7 * stride
    flip(bundles_file, at + stride // 2)
    for _ in range(2):
        with pytest.raises(core.ChecksumError, match=rf"layer 1, bundle 2, at offset {at}:"):
            read(core, reader, stride, 2, 7)
    assert counts(reader)[1:] == (2, 2)
    read(core, reader, stride, 2, 8)
    flip(bundles_file, at + stride // 2)
    read(core, reader, stride, 7)
    assert counts(reader) == (3, 2, 2)


def test_what_lies_behind_a_bundle_is_not_compared(
    core: ModuleType, verified: Open, bundles_file: Path, stride: int
) -> None:
    flip(bundles_file, DATA_OFFSET + stride - 3)
    reader = verified()
    read(core, reader, stride, 0)
    assert counts(reader) == (1, 0, 0)


def test_reads_of_other_things_are_refused(core: ModuleType, verified: Open, stride: int) -> None:
    reader, buffer = verified(), core.Buffer(1 << 16)
    for offset, length in ((DATA_OFFSET, stride - 1), (DATA_OFFSET + 8, stride), (0, stride)):
        with pytest.raises(ValueError, match="whole bundles"):
            reader.submit(np.array([offset]), length, buffer, np.array([0]))
    read(core, reader, stride, 0)
    with pytest.raises(ValueError, match="first batch"):
        reader.verify_bundles(
            np.zeros(10, np.uint32), FILE_ID, DATA_OFFSET, stride, stride, PER_LAYER
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"file_id": b"short"}, "16 bytes"),
        ({"bundle_bytes": 513}, "within their strides"),
        ({"bundles_per_layer": 3}, "whole layers"),
    ],
)
def test_checksums_that_do_not_fit_are_refused(
    core: ModuleType, data_file: Path, changes: dict[str, Any], message: str
) -> None:
    arguments = {
        "checksums": np.zeros(10, np.uint32), "file_id": FILE_ID, "data_offset": 0,
        "stride": 512, "bundle_bytes": 512, "bundles_per_layer": 5,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        core.Reader(str(data_file)).verify_bundles(**arguments | changes)
