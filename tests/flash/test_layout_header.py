"""The header of the bundles: whatever is written is read back, whatever lies is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flashllm.core.numpy_twin.kernels import crc32c
from flashllm.dtypes import DTYPES
from flashllm.errors import LayoutError, ModelTruncated
from flashllm.flash import layout
from flashllm.flash.layout import BundleHeader, default_stride, read_header

PATH = Path("some/ffn.bundles")
HEADER = BundleHeader("f16", 2, 1, 4, 64, 256, 1024, 16384, bytes(range(16)))
# Of experts: 20 neurons of 256 weights, so 30720 bytes; in f16 as many as rows of neurons have.
EXPERTS = replace(HEADER, rows_per_neuron=3, neurons_per_bundle=20, stride=32768, down_columns=20)
both = pytest.mark.parametrize("good", [HEADER, EXPERTS], ids=["v1", "v2"])


@st.composite
def headers(draw: st.DrawFn) -> BundleHeader:
    is_expert, neurons = draw(st.booleans()), draw(st.integers(1, 1 << 20))
    header = BundleHeader(
        dtype=draw(st.sampled_from(DTYPES)),
        rows_per_neuron=3 if is_expert else draw(st.integers(1, 3)),
        neurons_per_bundle=neurons,
        n_layers=draw(st.integers(1, 1024)),
        bundles_per_layer=draw(st.integers(1, 1 << 20)),
        d_model=draw(st.integers(1, 1 << 20)),
        stride=512,
        data_offset=4096 * draw(st.integers(1, 256)),
        file_id=draw(st.binary(min_size=16, max_size=16)),
        down_columns=neurons if is_expert else 0,
    )
    header = replace(header, stride=default_stride(header.bundle_bytes))
    assume(header.file_bytes <= 1 << 62)
    return header


@settings(deadline=None)
@given(headers())
def test_round_trip(header: BundleHeader) -> None:
    raw = header.pack()
    assert len(raw) == 4096
    assert BundleHeader.unpack(raw, PATH) == header
    if header.down_columns:
        assert sum(header.bundle_parts) == header.bundle_bytes


def test_a_file_of_an_impossible_size() -> None:
    header = replace(HEADER, n_layers=1024, bundles_per_layer=1 << 20, neurons_per_bundle=1 << 20)
    header = replace(header, d_model=1 << 11, stride=1 << 33)
    with pytest.raises(LayoutError, match="impossible"):
        BundleHeader.unpack(header.pack(), PATH)
    header = replace(header, rows_per_neuron=3, down_columns=1 << 20, stride=3 << 32)
    with pytest.raises(LayoutError, match="impossible"):
        BundleHeader.unpack(header.pack(), PATH)


@settings(deadline=None)
@given(st.sampled_from([HEADER, EXPERTS]), st.integers(0, 4095), st.integers(1, 255))
def test_any_changed_byte_is_detected(good: BundleHeader, position: int, mask: int) -> None:
    raw = bytearray(good.pack())
    raw[position] ^= mask
    with pytest.raises(LayoutError, match=r"some/ffn\.bundles"):
        BundleHeader.unpack(bytes(raw), PATH)


def forged(good: BundleHeader, **changes: Any) -> bytes:
    """A good header with other fields and a checksum that fits them."""
    raw = bytearray(good.pack())
    position = 0
    for name, code in (layout.EXPERT_FIELDS if good.down_columns else layout.HEADER_FIELDS).items():
        if name in changes:
            struct.pack_into(f"<{code}", raw, position, changes[name])
        position += struct.calcsize(f"<{code}")
    raw[position] = changes.get("unused", 0)
    raw[4092:] = crc32c(np.frombuffer(bytes(raw[:4092]), np.uint8)).to_bytes(4, "little")
    return bytes(raw)


@both
def test_forging_is_what_the_tests_below_rely_on(good: BundleHeader) -> None:
    assert forged(good) == good.pack()


@both
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", b"FLASHLLM"), ("major", 3), ("major", 0), ("minor", 1), ("header_bytes", 8192),
        ("dtype", 0), ("dtype", 4), ("rows_per_neuron", 0), ("rows_per_neuron", 1),
        ("rows_per_neuron", 4), ("neurons_per_bundle", 0), ("neurons_per_bundle", 1 << 31),
        ("neurons_per_bundle", 2), ("n_layers", 0), ("n_layers", 1025), ("n_layers", (1 << 32) - 1),
        ("n_layers", 5), ("bundles_per_layer", 0), ("bundles_per_layer", (1 << 32) - 1),
        ("bundles_per_layer", 32), ("d_model", 0), ("d_model", (1 << 32) - 1), ("d_model", 255),
        ("stride", 0), ("stride", 512), ("stride", 1023), ("stride", 1025), ("stride", 5120),
        ("stride", 32769), ("stride", 34816), ("stride", (1 << 64) - 512),
        ("bundle_bytes", 1023), ("bundle_bytes", 1 << 63),
        ("data_offset", 0), ("data_offset", 16385), ("data_offset", 4095),
        ("data_offset", 1 << 40), ("data_offset", (1 << 64) - 4096), ("file_bytes", 0),
        ("file_bytes", (1 << 64) - 1), ("unused", 1),
    ],
)  # fmt: skip
def test_a_header_that_lies_with_a_checksum_that_fits(
    good: BundleHeader, field: str, value: Any
) -> None:
    with pytest.raises(LayoutError, match=r"some/ffn\.bundles"):
        BundleHeader.unpack(forged(good, **{field: value}), PATH)


def test_rows_that_a_neuron_has_no_room_for() -> None:
    with pytest.raises(LayoutError, match="a stride of 1024 for bundles of 1536 bytes"):
        BundleHeader.unpack(forged(HEADER, rows_per_neuron=3), PATH)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rows_per_neuron": 2}, "2 rows a neuron and 20 columns"),
        ({"down_columns": 0}, "down_columns is 0 in a file of experts"),
        ({"down_columns": 19}, "19 columns of down, for experts of 20 neurons"),
        ({"down_columns": 21}, "21 columns of down, for experts of 20 neurons"),
        ({"down_columns": (1 << 32) - 1}, "4294967295 columns of down"),
        ({"neurons_per_bundle": 19}, "20 columns of down, for experts of 19 neurons"),
        ({"neurons_per_bundle": (1 << 20) + 1, "down_columns": (1 << 20) + 1}, "expected 1 to"),
        ({"neurons_per_bundle": 24, "down_columns": 24}, "stride of 32768 for bundles of 36864"),
        ({"neurons_per_bundle": 21, "down_columns": 21}, "bundle_bytes is 30720, but .* 32256"),
        ({"biases": 1}, "1 biases of an expert; expected 0 or 3"),
        ({"biases": 3}, "bundle_bytes is 30720, but|for bundles of 31904 bytes"),
        ({"major": 1}, "unused bytes of the header are not zero"),
    ],
)
def test_a_header_of_experts_that_lies(changes: dict[str, int], match: str) -> None:
    with pytest.raises(LayoutError, match=rf"some/ffn\.bundles: .*{match}"):
        BundleHeader.unpack(forged(EXPERTS, **changes), PATH)


def test_neurons_that_call_themselves_experts() -> None:
    """Rows of neurons that have as many bytes as experts of them would."""
    neurons = replace(EXPERTS, down_columns=0)
    assert neurons.bundle_bytes == EXPERTS.bundle_bytes
    assert BundleHeader.unpack(neurons.pack(), PATH).major == 1
    with pytest.raises(LayoutError, match="down_columns is 0"):
        BundleHeader.unpack(forged(neurons, major=2), PATH)


@both
def test_another_version_is_named(good: BundleHeader) -> None:
    with pytest.raises(LayoutError, match=r"layout 7\.0; this version reads 1\.0 and 2\.0"):
        BundleHeader.unpack(forged(good, major=7), PATH)


@both
@pytest.mark.parametrize("size", [0, 1, 90, 2048, 4095])
def test_too_short(good: BundleHeader, size: int) -> None:
    with pytest.raises(ModelTruncated, match=f"at byte {size}"):
        BundleHeader.unpack(good.pack()[:size], PATH)


@both
def test_the_size_of_the_file_is_checked(tmp_path: Path, good: BundleHeader) -> None:
    path = tmp_path / "ffn.bundles"
    path.write_bytes(good.pack())
    with open(path, "r+b") as file:
        file.truncate(good.file_bytes)
    assert read_header(path) == good
    with open(path, "r+b") as file:
        file.truncate(good.file_bytes - 1)
    with pytest.raises(ModelTruncated, match=str(good.file_bytes)):
        read_header(path)
    with open(path, "r+b") as file:
        file.truncate(good.file_bytes + 1)
    with pytest.raises(LayoutError, match=str(good.file_bytes)):
        read_header(path)


@settings(deadline=None)
@given(headers(), st.data())
def test_offsets_are_disjoint_and_inside(header: BundleHeader, data: st.DataObject) -> None:
    layer = data.draw(st.integers(0, header.n_layers - 1))
    bundle = data.draw(st.integers(0, header.bundles_per_layer - 1))
    offset = header.offset(layer, bundle)
    assert header.data_offset <= offset
    assert offset + header.stride <= header.file_bytes
    assert offset % 512 == 0
    assert header.file_bytes % 16384 == 0
    if bundle + 1 < header.bundles_per_layer:
        assert header.offset(layer, bundle + 1) == offset + header.stride
    elif layer + 1 < header.n_layers:
        assert header.offset(layer + 1, 0) == offset + header.stride


def test_neighbouring_layers_are_counted_from_0_again() -> None:
    some = HEADER.of_layers(range(1, 3))
    assert [some.offset(layer, 5) for layer in range(2)] == [HEADER.offset(n, 5) for n in (1, 2)]
    with pytest.raises(IndexError, match="2 layers of 64 bundles"):
        some.offset(2, 0)


@pytest.mark.parametrize(("layer", "bundle"), [(-1, 0), (4, 0), (0, -1), (0, 64)])
def test_no_offset_outside(layer: int, bundle: int) -> None:
    with pytest.raises(IndexError, match="4 layers of 64 bundles"):
        HEADER.offset(layer, bundle)


@settings(deadline=None)
@given(st.integers(1, 1 << 22))
def test_stride_wastes_little(bundle_bytes: int) -> None:
    stride = default_stride(bundle_bytes)
    assert stride % 512 == 0
    assert 0 <= stride - bundle_bytes < 4096
    assert stride % 4096 == 0 or stride - bundle_bytes < 512
    assert stride - bundle_bytes <= max(bundle_bytes / 8, 511)
