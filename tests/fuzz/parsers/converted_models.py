"""Targets: the files of a converted model."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from hypothesis import strategies as st

from flashllm.core import crc32c
from flashllm.errors import LayoutError, ModelError, ModelTruncated
from flashllm.flash.layout import EXPERT_FIELDS, HEADER_BYTES, BundleHeader
from flashllm.flash.manifest import Manifest
from flashllm.flash.safetensors_file import ELEMENT_BYTES, PREFIX_BYTES, parse_tensor_index
from flashllm.planning.activation_stats import Activity, recorded
from flashllm.spec import ModelSpec
from flashllm.untrusted.strict_json import parse_object

from .changes import changed_bytes, changed_json
from .target import Target, corpus

PATH = Path("folder/file")
FIELD_PLACES: list[tuple[int, str]] = []
for _code in EXPERT_FIELDS.values():
    FIELD_PLACES.append((sum(struct.calcsize(code) for _, code in FIELD_PLACES), _code))
NUMBERS = st.one_of(
    st.integers(0, 4),
    st.sampled_from([n for bit in range(1, 65) for n in ((1 << bit) - 1, (1 << bit), 3 << bit)]),
)
REFERENCE_BYTES_MAX = 1 << 20


# The header of the bundles


@st.composite
def _headers(draw: st.DrawFn) -> bytes:
    """A header with other numbers in some fields, and as a rule with the checksum of them."""
    raw = bytearray(draw(st.sampled_from(corpus("bundle_header"))))
    for _ in range(draw(st.integers(0, 3))):
        place, code = draw(st.sampled_from(FIELD_PLACES))
        size = struct.calcsize(f"<{code}")
        new = draw(NUMBERS) % (1 << 8 * min(size, 8))
        raw[place : place + size] = new.to_bytes(size, "little")
    if draw(st.integers(0, 3)) == 3:
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 7)) != 7:
        body = np.frombuffer(bytes(raw[: HEADER_BYTES - 4]), np.uint8)
        raw[HEADER_BYTES - 4 :] = crc32c(body).to_bytes(4, "little")
    return bytes(raw[: draw(st.sampled_from((HEADER_BYTES, HEADER_BYTES, 4095, 100, 0)))])


def _check_header(raw: bytes) -> None:
    try:
        header = BundleHeader.unpack(raw, PATH)
    except (LayoutError, ModelTruncated):
        return
    assert header.pack() == raw
    last = header.offset(header.n_layers - 1, header.bundles_per_layer - 1)
    assert HEADER_BYTES <= header.offset(0, 0) <= last
    assert last + header.stride <= header.file_bytes <= 1 << 62
    assert 0 < header.bundle_bytes <= header.stride
    if header.major == 2:
        assert header.down_columns == header.neurons_per_bundle
        assert sum(header.bundle_parts) == header.bundle_bytes


# Safetensors


@st.composite
def _tensor_headers(draw: st.DrawFn) -> tuple[bytes, int]:
    """A header, and how many bytes follow it in its file: those of its tensors as a rule."""
    raw = draw(changed_json(corpus("safetensors_header")))
    if draw(st.integers(0, 7)) == 7:
        return raw, draw(st.integers(0, 1 << 40))
    return raw, _end_of_tensors(raw)


def _end_of_tensors(raw: bytes) -> int:
    """The largest end that the header names, 0 where it is none."""
    ends = [0]
    with contextlib.suppress(ValueError, AttributeError, TypeError, RecursionError):
        for entry in json.loads(raw).values():
            with contextlib.suppress(KeyError, IndexError, TypeError):
                end = entry["data_offsets"][1]
                ends += [end] if type(end) is int and end < 1 << 50 else []
    return max(ends)


def _check_tensor_header(value: tuple[bytes, int]) -> None:
    raw, data_bytes = value
    start = PREFIX_BYTES + len(raw)
    try:
        index = parse_tensor_index(raw, start + data_bytes, PATH)
    except ModelError:
        return
    position = start
    for record in index.values():
        elements = int(np.prod(record.shape, dtype=object))
        assert record.offset == position
        assert record.nbytes == elements * ELEMENT_BYTES[record.dtype.upper()]
        position += record.nbytes
    assert position == start + data_bytes
    if data_bytes <= REFERENCE_BYTES_MAX and b"__metadata__" not in raw:
        file = len(raw).to_bytes(8, "little") + raw + bytes(data_bytes)
        found = {name: tuple(entry["shape"]) for name, entry in safetensors.deserialize(file)}
        assert found == {name: record.shape for name, record in index.items()}


# Manifest and activity


def _check_manifest(raw: bytes) -> None:
    try:
        manifest = Manifest.from_bytes(raw, PATH)
    except LayoutError:
        return
    assert Manifest.from_bytes(manifest.to_bytes(), PATH) == manifest
    spec = manifest.spec
    assert manifest.layout_version == (1 if spec.experts is None else 2)
    assert spec.bundles_per_layer >= 1
    assert spec.bundle_bytes > 0


SPEC = ModelSpec.from_json(json.loads(corpus("manifest")[0])["spec"])


def _check_activity(raw: bytes) -> None:
    try:
        values: dict[str, Any] = parse_object(raw, PATH, LayoutError)
        found: Activity = recorded(values, "predicted", SPEC, "model")
    except LayoutError:
        return
    for layer in range(SPEC.n_layers):
        for window in (0, 1, 3, 1000):
            assert 0 <= found.aggregate(layer, window) <= SPEC.bundles_per_layer
            assert found.increment(layer, window) >= 0
        for slots in (1, SPEC.bundles_per_layer):
            assert found.loads(layer, slots, found.windows[-1]) >= 0


CONVERTED_MODEL_TARGETS = (
    Target("bundle_header", _headers(), _check_header),
    Target("safetensors_header", _tensor_headers(), _check_tensor_header),
    Target("manifest", changed_json(corpus("manifest")), _check_manifest),
    Target("activity", changed_json(corpus("activity")), _check_activity),
    Target("manifest_bytes", changed_bytes(corpus("manifest")), _check_manifest),
)
