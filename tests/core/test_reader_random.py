"""Random batches against the file's own contents, canaries around every destination."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CANARY = 0xA5
BUFFER_BYTES = 200_000


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], int, list[int]]:
    """Offsets, a length and destinations that fit; often aligned, often not."""
    unit = draw(st.sampled_from([1, 1, 512, 512, 1024, 4096]))
    length = unit * draw(st.integers(1, max(1, 20_000 // unit)))
    slots = BUFFER_BYTES // length
    count = draw(st.integers(0, min(slots, 24)))
    order = draw(st.permutations(range(slots)))[:count] if slots < 200 else list(range(count))
    shift = draw(st.integers(0, BUFFER_BYTES - slots * length)) if unit == 1 else 0
    last = (300_001 - length) // unit
    offsets = [unit * draw(st.integers(0, last)) for _ in range(count)]
    if count and draw(st.booleans()):
        offsets[0] = 300_001 - length  # the tail of the file
    return offsets, length, [slot * length + shift for slot in order]


@pytest.mark.parametrize("direct", ["optional", "disabled"])
@settings(max_examples=150, deadline=None)
@given(
    batch=batches(),
    gap_bytes=st.sampled_from([0, 1, 512, 5000, 100_000]),
    max_read_bytes=st.sampled_from([1, 512, 5000, 16_384, 524_288]),
)
def test_every_batch_is_read_into_its_place_and_nowhere_else(
    core: ModuleType,
    backend: str,
    data_file: Path,
    contents: np.ndarray,
    direct: str,
    batch: tuple[list[int], int, list[int]],
    gap_bytes: int,
    max_read_bytes: int,
) -> None:
    offsets, length, destinations = batch
    if max_read_bytes == 1:
        length = min(length, 600)  # a read for each byte when buffered: keep it short
    buffer = core.Buffer(BUFFER_BYTES)
    array = buffer.array()
    array[:] = CANARY
    expected = array.copy()
    for offset, destination in zip(offsets, destinations, strict=True):
        expected[destination : destination + length] = contents[offset : offset + length]
    reader = core.Reader(
        str(data_file),
        direct=direct,
        threads=3,
        gap_bytes=gap_bytes,
        max_read_bytes=max_read_bytes,
        backend=backend,
    )
    reader.read(np.array(offsets, np.int64), length, buffer, np.array(destinations, np.int64))
    assert np.array_equal(array, expected)
    stats = reader.stats()
    assert stats["bytes_useful"] == length * len(offsets)
    assert stats["reads"] == sum(stats["size_histogram"])
    reader.close()
