"""The documents, the code and the committed files say the same."""

from __future__ import annotations

import json
import re
import shutil
import struct
from dataclasses import dataclass, fields, replace
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
from flashllm.spec import ModelSpec, MoeSpec
from tests.flash.golden import make
from tests.support.checkpoints import all_bytes
from tests.support.dequantised import dequantised
from tests.support.encodings import decode, encode, nbytes_of

GOLDEN = Path(__file__).parent / "golden"
CONVERTED = GOLDEN / "converted"
EXPERTS = GOLDEN / "experts-converted"
DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Documented:
    """A layout as its document has it."""

    document: str
    converted: Path
    """The golden files of its last column."""
    fields: dict[str, str]
    dumps: tuple[str, ...]


V1 = Documented(
    (DOCS / "layout-v1.md").read_text(encoding="utf-8"),
    CONVERTED,
    layout.HEADER_FIELDS,
    (
        "ffn.bundles",
        "converted-int8/ffn.bundles",
        "converted-int4/ffn.bundles",
        "ffn.crc32c",
        "resident.crc32c",
    ),
)
V2 = Documented(
    (DOCS / "layout-v2.md").read_text(encoding="utf-8"),
    EXPERTS,
    layout.EXPERT_FIELDS,
    (
        "experts-converted/ffn.bundles",
        "experts-converted-int4/ffn.bundles",
        "experts-converted-mxfp4/ffn.bundles",
        "experts-converted/ffn.crc32c",
        "experts-converted-int4/resident.safetensors",
    ),
)
of_each_layout = pytest.mark.parametrize("documented", [V1, V2], ids=["v1", "v2"])


def table(first_column: str, documented: Documented = V1) -> list[list[str]]:
    """The cells of the document's table whose head begins with this."""
    lines = documented.document.splitlines()
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
    source, dtype = make.CONVERTED[name]
    make.SOURCES[source](tmp_path / source)
    assert all_bytes(tmp_path / source) == all_bytes(GOLDEN / source)
    monkeypatch.setattr(flashllm, "__version__", make.VERSION)

    convert(tmp_path / source, tmp_path / name, dtype=dtype)

    assert all_bytes(tmp_path / name) == all_bytes(GOLDEN / name)
    assert verify(GOLDEN / name).ok


@of_each_layout
def test_header_table(documented: Documented) -> None:
    raw = (documented.converted / "ffn.bundles").read_bytes()[: layout.HEADER_BYTES]
    rows = table("byte", documented)
    assert [row[2] for row in rows] == [*documented.fields, "checksum"]
    position = 0
    for start, size, name, _, golden in rows:
        code = documented.fields.get(name, "I")
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


@of_each_layout
def test_dumps(documented: Documented) -> None:
    dumps = re.findall(r"```hexdump (\S+)\n(.*?)```", documented.document, re.DOTALL)
    assert tuple(name for name, _ in dumps) == documented.dumps
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


@pytest.mark.parametrize(
    ("name", "bundle_bytes", "parts"),
    [
        ("experts-converted", 2 * 4 * 20 + 10 * 8, (80, 80, 80)),
        ("experts-converted-int4", 2 * 4 * 18 + 10 * 18, (72, 72, 180)),
        ("experts-converted-mxfp4", 2 * 4 * 17 + 10 * 17, (68, 68, 170)),
    ],
)
def test_formulas_of_experts(name: str, bundle_bytes: int, parts: tuple[int, ...]) -> None:
    header = read_header(GOLDEN / name / "ffn.bundles")
    assert header.offset(0, 1) == 0x4200
    assert header.offset(1, 0) == 0x4600 == 16384 + (1 * 3 + 0) * 512
    assert header.bundle_bytes == bundle_bytes
    assert header.bundle_parts == parts
    assert header.file_bytes == (GOLDEN / name / "ffn.bundles").stat().st_size


def expert(folder: Path, layer: int, number: int) -> dict[str, np.ndarray]:
    """The matrices of an expert, found by the document's formulas and no code of ours."""
    raw = np.fromfile(folder / "ffn.bundles", np.uint8)
    code, _, neurons, _, experts, width = struct.unpack_from("<6I", raw, 16)
    stride, _, data_offset = struct.unpack_from("<3Q", raw, 40)
    (columns,) = struct.unpack_from("<I", raw, 88)
    known = {"neurons_per_bundle": neurons, "d_model": width}
    dtype = {2: "f16", 5: "int4", 6: "mxfp4"}[code]
    bundle = raw[data_offset + (layer * experts + number) * stride :][:stride]
    matrices = {}
    for name, shape, first in table("matrix", V2):
        rows, in_row = (known[size] for size in shape.strip("`[]").split(", "))
        assert in_row == (columns if name == "down" else width)
        start = 1
        for factor in first.split(" × "):
            sizes = {**known, "row_bytes(d_model)": nbytes_of(dtype, width)}
            start *= sizes[factor] if factor in sizes else int(factor)
        encoded = bundle[start : start + rows * nbytes_of(dtype, in_row)]
        matrices[name] = decode(np.ascontiguousarray(encoded), dtype, in_row)
    assert not bundle[start + len(encoded) :].any()
    return matrices


@pytest.mark.parametrize(
    "name", ["experts-converted", "experts-converted-int4", "experts-converted-mxfp4"]
)
def test_experts_by_the_document(name: str) -> None:
    """The numbers of the source: in int4 within half a step, in mxfp4 as the format rounds."""
    steps = 0.5 / 7 if name.endswith("int4") else 0.0
    for layer in range(2):
        for number in range(3):
            first = 1 + 40 * (3 * layer + number)
            counted = np.arange(first, first + 40, dtype=np.float64)
            expected = {
                "gate": counted.reshape(4, 10),
                "up": -counted.reshape(4, 10),
                "down": counted.reshape(10, 4) / 2,
            }
            found = expert(GOLDEN / name, layer, number)
            assert found.keys() == expected.keys()
            for matrix, values in expected.items():
                if name.endswith("mxfp4"):
                    rounded = encode(values, "mxfp4")
                    values = decode(rounded, "mxfp4", values.shape[1])
                errors = np.abs(found[matrix] - values).max(axis=1)
                assert (errors <= steps * np.abs(values).max(axis=1)).all(), matrix


@of_each_layout
def test_checksums_of_bundles_by_the_document(documented: Documented) -> None:
    """CRC-32C of the file's id, the place and the bytes."""
    path = documented.converted / "ffn.bundles"
    raw, header = path.read_bytes(), read_header(path)
    sums = []
    for layer in range(header.n_layers):
        for bundle in range(header.bundles_per_layer):
            start = header.offset(layer, bundle)
            place = header.file_id + struct.pack("<II", layer, bundle)
            content = place + raw[start : start + header.bundle_bytes]
            sums.append(crc32c(np.frombuffer(content, np.uint8)))
    assert np.fromfile(documented.converted / "ffn.crc32c", "<u4").tolist() == sums


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
EXPERT_CHOICES: tuple[dict[str, Any], ...] = tuple(
    choice
    | {"gate": "bundled", "rows_per_neuron": 3, "neurons_per_bundle": 5, "ffn_bias": False}
    | {"experts": {"n_experts": 4, "per_token": 2, "d_ffn": 5}}
    for choice in ({"embed_dim": 12}, {"embed_dim": 8}, CHOICES[4])
)


@of_each_layout
def test_resident_table(documented: Documented) -> None:
    """Names that the documents list for a spec are those that the code asks for."""
    rows = table("tensor") + (table("tensor", V2) if documented is V2 else [])
    choices = EXPERT_CHOICES if documented is V2 else CHOICES
    for pattern in range(1 << len(FLAGS)):
        flags = {flag: bool(pattern >> i & 1) for i, flag in enumerate(FLAGS)}
        spec = ModelSpec.from_json(BASE | flags | choices[pattern % len(choices)])
        names = set()
        for cell, _, exists in rows:
            if all(documented_condition(part, spec) for part in exists.split(" and ")):
                names |= {
                    name
                    for i in range(2)
                    for name in expand(cell.strip("`").replace("{i}", str(i)))
                }
        assert names == set(tensor_table(spec)), flags


@pytest.mark.parametrize("whole", [False, True])
def test_shapes_in_the_resident_table_of_experts(whole: bool) -> None:
    """With all features that add tensors, and with none."""
    spec = replace(read_manifest(EXPERTS).spec, qk_norm_whole=whole, attention_sinks=whole)
    assert spec.experts is not None
    flags = dict.fromkeys(("router_bias", "choice_bias", "shared_gate"), whole)
    spec = replace(spec, experts=replace(spec.experts, shared_d_ffn=7 * whole, **flags))
    sizes = {
        "n_experts": 3,
        "d_model": 10,
        "n_heads": 2,
        "n_kv_heads": 1,
        "shared_d_ffn": 7,
        "1": 1,
        "head_dim": 4,
    }
    shapes = tensor_table(spec)
    for cell, shape, exists in table("tensor", V2):
        if not all(documented_condition(part, spec) for part in exists.split(" and ")):
            continue
        expected = tuple(
            int(np.prod([sizes[size] for size in columns.split(" × ")]))
            for columns in shape.strip("`[]").split(", ")
        )
        for layer in range(2):
            assert shapes[cell.strip("`").replace("{i}", str(layer))] == expected
    assert (shapes["layers.0.attn.q_norm.weight"] == (8,)) == whole


def documented_condition(text: str, spec: ModelSpec) -> bool:
    known = {
        "always": True,
        "embed_dim ≠ d_model": spec.embed_dim != spec.d_model,
        "positions learned": spec.positions == "learned",
        "gate resident": spec.gate == "resident",
        **{
            f"experts.{field.name}": bool(getattr(spec.experts, field.name, False))
            for field in fields(MoeSpec)
        },
        "gated": spec.gate != "none",
        "not tied_head": not spec.tied_head,
        "not shared_norm": not spec.shared_norm,
    }
    flags = {flag: getattr(spec, flag) for flag in (*FLAGS, "qk_norm_whole", "attention_sinks")}
    return known[text] if text in known else bool(flags[text])


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


def test_resident_file_of_experts() -> None:
    """The router is the only matrix that is not in int4."""
    for name, others in (("experts-converted", "f16"), ("experts-converted-int4", "u8")):
        path = GOLDEN / name / "resident.safetensors"
        index = read_tensor_index(path)
        check_resident(index, read_manifest(GOLDEN / name).spec, path)
        matrices = {key: record for key, record in index.items() if len(record.shape) == 2}
        for layer in range(2):
            router = matrices.pop(f"layers.{layer}.router.weight")
            assert (router.dtype, router.shape) == ("f16", (3, 10))
            values = np.frombuffer(path.read_bytes(), "<f2", 30, router.offset)
            assert values.tolist() == [*range(1, 31)]
        assert {record.dtype for record in matrices.values()} == {others}


@of_each_layout
def test_checksums_of_tensors_by_the_document(documented: Documented) -> None:
    """CRC-32C of the name and the bytes, in the order of the file."""
    path = documented.converted / "resident.safetensors"
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    sums = [
        crc32c(
            raw[at.offset : at.offset + at.nbytes], crc32c(np.frombuffer(name.encode(), np.uint8))
        )
        for name, at in read_tensor_index(path).items()
    ]
    assert np.fromfile(documented.converted / "resident.crc32c", "<u4").tolist() == sums


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


def test_manifest_tables_of_experts() -> None:
    raw = (EXPERTS / "manifest.json").read_bytes()
    values = json.loads(raw)
    (version, holds), (spec, _) = table("key", V2)
    assert values[version.strip("`")] == int(holds)
    names = [row[0].strip("`") for row in table("field", V2)]
    assert names == [field.name for field in fields(MoeSpec)]
    # The others are written only where they say something, and here they say nothing.
    always = {"n_experts", "per_token", "d_ffn", "score", "renormalise"}
    assert always == set(values[spec.strip("`")]["experts"])
    assert Manifest.from_bytes(raw, EXPERTS / "manifest.json").to_bytes() == raw


@of_each_layout
def test_header_code_round_trip(documented: Documented) -> None:
    path = documented.converted / "ffn.bundles"
    raw = path.read_bytes()[:4096]
    header = BundleHeader.unpack(raw, path)
    assert header.pack() == raw
    spec = read_manifest(documented.converted).spec
    assert BundleHeader.for_spec(spec, header.file_id) == header
