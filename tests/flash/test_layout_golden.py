"""The document, the code and the committed files say the same."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert, verify

import flashllm
from flashllm.core.numpy_twin.kernels import crc32c
from flashllm.errors import ChecksumMismatch
from flashllm.flash import layout
from flashllm.flash.layout import BundleHeader, read_header
from flashllm.flash.manifest import Manifest, read_manifest
from flashllm.flash.safetensors_file import read_tensor_index
from flashllm.flash.store import Store
from flashllm.flash.tensor_table import check_resident, tensor_table
from flashllm.spec import ModelSpec
from tests.flash.golden import make
from tests.support.checkpoints import all_bytes
from tests.support.dequantised import dequantised

GOLDEN = Path(__file__).parent / "golden"
CONVERTED = GOLDEN / "converted"
DOCUMENT = (Path(__file__).parents[2] / "docs" / "layout-v1.md").read_text(encoding="utf-8")


def table(first_column: str) -> list[list[str]]:
    """The cells of the document's table whose head begins with this."""
    lines = DOCUMENT.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return [[cell.strip() for cell in row] for row in rows]


@pytest.mark.parametrize("name", make.CONVERTED)
def test_converting_the_golden_source_gives_the_golden_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make.write_source(tmp_path / "source")
    assert all_bytes(tmp_path / "source") == all_bytes(GOLDEN / "source")
    monkeypatch.setattr(flashllm, "__version__", make.VERSION)

    convert(tmp_path / "source", tmp_path / name, dtype=make.CONVERTED[name])

    assert all_bytes(tmp_path / name) == all_bytes(GOLDEN / name)
    assert verify(GOLDEN / name).ok


def test_header_table() -> None:
    raw = (CONVERTED / "ffn.bundles").read_bytes()[: layout.HEADER_BYTES]
    rows = table("byte")
    assert [row[2] for row in rows] == [*layout.HEADER_FIELDS, "checksum"]
    position = 0
    for start, size, name, _, golden in rows:
        code = layout.HEADER_FIELDS.get(name, "I")
        if name != "checksum":
            assert int(start) == position, name
        assert int(size) == struct.calcsize(f"<{code}"), name
        position = int(start) + int(size)
        (value,) = struct.unpack_from(f"<{code}", raw, int(start))
        golden = golden.strip("`")
        if name == "magic":
            assert value == golden.encode()
        elif name == "file_id":
            assert value == bytes.fromhex(golden)
        else:
            assert value == int(golden, 0), name
    assert position == layout.HEADER_BYTES


def test_dumps() -> None:
    dumps = re.findall(r"```hexdump (\S+)\n(.*?)```", DOCUMENT, re.DOTALL)
    assert [name for name, _ in dumps] == [
        "ffn.bundles",
        "converted-int8/ffn.bundles",
        "converted-int4/ffn.bundles",
        "ffn.crc32c",
        "resident.crc32c",
    ]
    for name, text in dumps:
        path = GOLDEN / name if "/" in name else CONVERTED / name
        raw = path.read_bytes()
        for line in text.splitlines():
            match = re.match(r"([0-9a-f]{8})  ((?:[0-9a-f]{2} {1,2}){8,16})", line)
            assert match, line
            expected = bytes.fromhex(match[2].replace(" ", ""))
            offset = int(match[1], 16)
            assert raw[offset : offset + len(expected)] == expected, line


def test_formulas_of_the_document() -> None:
    header = read_header(CONVERTED / "ffn.bundles")
    assert header.offset(0, 1) == 0x4200
    assert header.offset(1, 0) == 0x4600 == 16384 + (1 * 3 + 0) * 512
    assert header.bundle_bytes == 1 * 2 * 10 * 2
    assert header.file_bytes == (CONVERTED / "ffn.bundles").stat().st_size


BASE: dict[str, Any] = {
    "n_layers": 2, "d_model": 12, "n_heads": 3, "n_kv_heads": 3, "head_dim": 4, "d_ffn": 20,
    "vocab_size": 40, "max_positions": 16, "position_offset": 2, "dtype": "f16",
    "norm_placement": "pre", "norm_eps": 1e-5, "activation": "relu",
}  # fmt: skip
FLAGS = (
    "attention_bias", "attention_output_bias", "ffn_bias", "norm_affine", "norm_bias",
    "final_norm", "tied_head", "head_bias", "qk_norm",
)  # fmt: skip
CHOICES: tuple[dict[str, Any], ...] = (
    {"embed_dim": 12},
    {"embed_dim": 8},
    {"embed_dim": 12, "gate": "resident"},
    {"embed_dim": 12, "gate": "bundled", "rows_per_neuron": 3},
    {"embed_dim": 12, "positions": "rope", "rope": {"theta": 1e4, "dims": 4}},
    {"embed_dim": 12, "block": "parallel", "shared_norm": True},
)


def test_resident_table() -> None:
    """Names that the document lists for a spec are those that the code asks for."""
    for pattern in range(1 << len(FLAGS)):
        flags = {flag: bool(pattern >> i & 1) for i, flag in enumerate(FLAGS)}
        spec = ModelSpec.from_json(BASE | flags | CHOICES[pattern % len(CHOICES)])
        names = set()
        for cell, _, exists in table("tensor"):
            if all(documented_condition(part, spec) for part in exists.split(" and ")):
                names |= {
                    name
                    for i in range(2)
                    for name in expand(cell.strip("`").replace("{i}", str(i)))
                }
        assert names == set(tensor_table(spec)), flags


def documented_condition(text: str, spec: ModelSpec) -> bool:
    known = {
        "always": True,
        "embed_dim ≠ d_model": spec.embed_dim != spec.d_model,
        "positions learned": spec.positions == "learned",
        "gate resident": spec.gate == "resident",
        "gated": spec.gate != "none",
        "not tied_head": not spec.tied_head,
        "not shared_norm": not spec.shared_norm,
    }
    return (
        known[text] if text in known else bool({flag: getattr(spec, flag) for flag in FLAGS}[text])
    )


def expand(name: str) -> list[str]:
    """Names with {a,b} written out."""
    match = re.search(r"\{([^}]*)\}", name)
    if not match:
        return [name]
    return [
        full
        for choice in match[1].split(",")
        for full in expand(name[: match.start()] + choice + name[match.end() :])
    ]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rows_in_groups_by_the_document(dtype: str) -> None:
    """34 or 18 bytes for each 32 columns begun; the numbers of the source, rounded."""
    folder = GOLDEN / f"converted-{dtype}"
    header = read_header(folder / "ffn.bundles")
    assert header.bundle_bytes == 2 * {"int8": 34, "int4": 18}[dtype]
    up = dequantised(folder)["layers.0.ffn.up"]
    expected = np.arange(1, 31).reshape(3, 10)
    assert np.abs(up - expected).max() <= {"int8": 0.5 * 30 / 127, "int4": 0.5 * 30 / 7}[dtype]
    embeddings = dequantised(folder)["embed.weight"]
    assert embeddings.shape == (6, 4)
    record = read_tensor_index(folder / "resident.safetensors")["embed.weight"]
    assert (record.dtype, record.shape) == ("u8", (6, {"int8": 34, "int4": 18}[dtype]))


def test_resident_file() -> None:
    manifest = read_manifest(CONVERTED)
    path = CONVERTED / "resident.safetensors"
    index = read_tensor_index(path)
    check_resident(index, manifest.spec, path)
    records = list(index.values())
    assert records[0].offset % 4096 == 0
    order = [(record.dtype != "f32", name) for name, record in index.items()]
    assert order == sorted(order)
    bias = index["layers.1.ffn.up.bias"]
    values = np.frombuffer(path.read_bytes(), "<f4", 3, bias.offset)
    assert values.tolist() == [1, 2, 3]


def test_checksums_of_tensors_by_the_document() -> None:
    """CRC-32C of the name and the bytes, in the order of the file."""
    path = CONVERTED / "resident.safetensors"
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    sums = [
        crc32c(
            raw[at.offset : at.offset + at.nbytes], crc32c(np.frombuffer(name.encode(), np.uint8))
        )
        for name, at in read_tensor_index(path).items()
    ]
    assert np.fromfile(CONVERTED / "resident.crc32c", "<u4").tolist() == sums


def test_a_model_of_0_2_is_still_read_and_verified(tmp_path: Path) -> None:
    """Converted before there were checksums of tensors."""
    old = Path(shutil.copytree(GOLDEN / "converted-0.2", tmp_path / "old"))
    assert verify(old).ok
    with Store(old) as store, Store(CONVERTED) as new:
        store.check_small_files()
        tensors, same = (one.load_resident(direct=False) for one in (store, new))
        assert tensors.keys() == same.keys()
        assert all((tensors[name].raw == same[name].raw).all() for name in same)
    raw = bytearray((old / "resident.safetensors").read_bytes())
    raw[-1] ^= 1
    (old / "resident.safetensors").write_bytes(raw)
    with Store(old) as store, pytest.raises(ChecksumMismatch, match="resident"):
        store.load_resident(direct=False)


def test_manifest_table_and_round_trip() -> None:
    raw = (CONVERTED / "manifest.json").read_bytes()
    assert [row[0].strip("`") for row in table("key")] == [
        "layout_version", "spec", "name", "synthetic", "source", "files", "tool_version",
    ]  # fmt: skip
    assert {row[0].strip("`") for row in table("key")} == set(json.loads(raw))
    assert Manifest.from_bytes(raw, CONVERTED / "manifest.json").to_bytes() == raw


def test_header_code_round_trip() -> None:
    raw = (CONVERTED / "ffn.bundles").read_bytes()[:4096]
    header = BundleHeader.unpack(raw, CONVERTED / "ffn.bundles")
    assert header.pack() == raw
    spec = read_manifest(CONVERTED).spec
    assert BundleHeader.for_spec(spec, header.file_id) == header
