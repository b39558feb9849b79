"""Headers of safetensors files and manifests: bounded, checked, and read as others write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

from flashllm.errors import LayoutError, ModelError, ModelNotFound, ModelTruncated
from flashllm.flash import safetensors_file
from flashllm.flash.manifest import Manifest, manifest_hash_line, read_manifest
from flashllm.flash.safetensors_file import pack_tensor_header, read_tensor_index
from tests.support.checkpoints import write_checkpoint, write_raw

CONVERTED = Path(__file__).parent / "golden" / "converted"
EXPERTS = CONVERTED.with_name("experts-converted")

arrays = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.float16]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    elements=st.integers(-5, 5),
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(
    lambda name: name != "__metadata__"
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names, arrays, max_size=5))
def test_reads_what_the_reference_library_writes(
    tmp_path: Path, tensors: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, metadata={"format": "np"})
    raw = path.read_bytes()
    index = read_tensor_index(path)
    assert set(index) == set(tensors)
    for name, record in index.items():
        assert record.shape == tensors[name].shape
        assert record.dtype == {4: "f32", 2: "f16"}[tensors[name].itemsize]
        content = raw[record.offset : record.offset + record.nbytes]
        assert content == tensors[name].tobytes()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names.filter(bool), arrays.filter(lambda a: a.size > 0), max_size=5))
def test_the_reference_library_reads_what_we_write(
    tmp_path: Path, tensors: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "x.safetensors"
    dtypes = {4: "f32", 2: "f16"}
    entries = [(name, dtypes[array.itemsize], array.shape) for name, array in tensors.items()]
    header = pack_tensor_header(entries)
    assert len(header) % 4096 == 0
    path.write_bytes(header + b"".join(array.tobytes() for array in tensors.values()))
    found = load_file(path)
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)
    assert list(read_tensor_index(path)) == list(tensors)


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


LIES: dict[str, Any] = {
    "offsets beyond the file": {"a": entry(shape=[200], data_offsets=[0, 800])},
    "a huge count": {"a": entry(shape=[1 << 40, 1 << 40], data_offsets=[0, 8])},
    "a product that wraps in 64 bits": {"a": entry(shape=[1 << 33, 1 << 33], data_offsets=[0, 0])},
    "a dimension beyond reason": {"a": entry(shape=[1 << 63], data_offsets=[0, 8])},
    "a negative dimension": {"a": entry(shape=[-2], data_offsets=[0, 8])},
    "a dimension that is true": {"a": entry(shape=[True], data_offsets=[0, 4])},
    "a dimension that is 2.0": {"a": entry(shape=[2.0])},
    "negative offsets": {"a": entry(data_offsets=[-8, 0])},
    "offsets the wrong way": {"a": entry(data_offsets=[8, 0])},
    "three offsets": {"a": entry(data_offsets=[0, 8, 8])},
    "no offsets": {"a": {"dtype": "F32", "shape": [2]}},
    "something more": {"a": entry(more=1)},
    "an unknown type": {"a": entry(dtype="F128")},
    "a type that is a list": {"a": entry(dtype=["F32"])},
    "an entry that is none": {"a": 3},
    "too many dimensions": {"a": entry(shape=[1] * 8 + [2])},
    "a name too long": {"n" * 600: entry()},
    "a name that is half a character": {"\ud800": entry()},
    "a size that does not fit": {"a": entry(shape=[3])},
    "overlap": {"a": entry(), "b": entry()},
    "a hole": {"a": entry(shape=[1], data_offsets=[4, 8])},
    "bytes behind the last": {"a": entry(shape=[1], data_offsets=[0, 4])},
    "nothing at all": {},
}


@pytest.mark.parametrize("lie", LIES)
def test_headers_that_lie(tmp_path: Path, lie: str) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, json.dumps(LIES[lie]), bytes(8))
    with pytest.raises(ModelError, match=r"x\.safetensors"):
        read_tensor_index(path)


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x08", bytes(8), b"\xff" * 8, b"\xff" * 8 + b"{}",
     (1 << 40).to_bytes(8, "little") + b"{}",
     (2).to_bytes(8, "little") + b"[]", (3).to_bytes(8, "little") + b" {}",
     (2).to_bytes(8, "little") + b"\xff\xff", (9).to_bytes(8, "little") + b"{}",
     (100_000).to_bytes(8, "little") + b'{"a":' * 20_000],
)  # fmt: skip
def test_files_that_are_something_else(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=r"x\.safetensors"):
        read_tensor_index(path)


def test_too_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "TENSORS_MAX", 3)
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    write_raw(tmp_path / "x", json.dumps({str(i): empty for i in range(4)}), b"")
    with pytest.raises(LayoutError, match="4 tensors; at most 3"):
        read_tensor_index(tmp_path / "x")


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200
)
@given(st.data())
def test_a_mutated_header_raises_ours_or_describes_the_file(
    tmp_path: Path, data: st.DataObject
) -> None:
    raw = bytearray((CONVERTED / "resident.safetensors").read_bytes())
    length = int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, 8 + length - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    try:
        index = read_tensor_index(path)
    except ModelError:
        return
    assert all(0 < r.offset <= r.offset + r.nbytes <= len(raw) for r in index.values())


# The manifest


def rewritten(directory: Path, **changes: Any) -> Path:
    """A copy of the golden model with a changed manifest whose hash fits."""
    directory.mkdir()
    for path in CONVERTED.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    values = json.loads((CONVERTED / "manifest.json").read_bytes())
    values = {key: value for key, value in (values | changes).items() if value is not ...}
    raw = json.dumps(values).encode()
    (directory / "manifest.json").write_bytes(raw)
    (directory / "manifest.sha256").write_bytes(manifest_hash_line(raw))
    return directory


RECORD = {"bytes": 1, "sha256": "0" * 64}
FILES = json.loads((CONVERTED / "manifest.json").read_bytes())["files"]
EXPERTS_SPEC = json.loads((EXPERTS / "manifest.json").read_bytes())["spec"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layout_version": 3}, "layout version 3, written by flashllm 'golden'"),
        ({"layout_version": 2}, "layout version 2, but its spec has no experts"),
        ({"layout_version": 2.0}, r"layout version 2\.0, written by"),
        ({"spec": EXPERTS_SPEC}, "layout version 1, but its spec has experts"),
        ({"layout_version": True}, "layout version True"),
        ({"name": ...}, "missing or unknown: .'name'"),
        ({"more": 1}, "missing or unknown: .'more'"),
        ({"synthetic": 0}, "synthetic is 0"),
        ({"source": []}, "source is"),
        ({"spec": []}, "spec: expected an object"),
        ({"spec": {"n_layers": 1}}, "spec: keys"),
        ({"files": []}, "files is not an object"),
        ({"files": {}}, "does not name resident.safetensors"),
        ({"files": {**FILES, "../../etc/passwd": RECORD}}, "no.* plain file name"),
        ({"files": {**FILES, "/etc/passwd": RECORD}}, "no.* plain file name"),
        ({"files": {**FILES, "manifest.json": RECORD}}, "no.* plain file name"),
        ({"files": {**FILES, "x": 3}}, "x: expected bytes and sha256"),
        ({"files": {**FILES, "x": {**RECORD, "bytes": -1}}}, "x: bytes is -1"),
        ({"files": {**FILES, "x": {**RECORD, "bytes": True}}}, "x: bytes is True"),
        ({"files": {**FILES, "x": {**RECORD, "sha256": "0" * 63}}}, "x: sha256"),
        ({"files": {**FILES, "absent.json": RECORD}}, "absent.json: missing"),
    ],
)
def test_manifests_that_do_not_hold(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(LayoutError, match=match):
        read_manifest(rewritten(tmp_path / "model", **changes))


def test_a_good_manifest_opens_and_an_edited_one_does_not(tmp_path: Path) -> None:
    directory = rewritten(tmp_path / "model", name="renamed")
    assert read_manifest(directory).name == "renamed"
    path = directory / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"renamed", b"Renamed"))
    with pytest.raises(LayoutError, match=r"does not match manifest\.sha256"):
        read_manifest(directory)


@pytest.mark.parametrize("name", ["ffn.bundles", "ffn.crc32c", "resident.safetensors"])
def test_sizes_of_the_files(tmp_path: Path, name: str) -> None:
    directory = rewritten(tmp_path / "model")
    good = (directory / name).read_bytes()
    (directory / name).write_bytes(good[:-1])
    with pytest.raises(ModelTruncated, match=name):
        read_manifest(directory)
    (directory / name).write_bytes(good + b"\0")
    with pytest.raises(LayoutError, match=name):
        read_manifest(directory)


def test_a_manifest_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashllm.flash.manifest.MANIFEST_BYTES_MAX", 100)
    with pytest.raises(LayoutError, match=r"manifest\.json: larger than 100 bytes"):
        read_manifest(rewritten(tmp_path / "model"))


def test_directories_that_are_no_converted_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        read_manifest(tmp_path / "absent")
    with pytest.raises(LayoutError, match="not a converted model"):
        read_manifest(tmp_path)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(LayoutError, match=r"model\.gguf: not a converted model"):
        read_manifest(file)
    source = write_checkpoint(tmp_path / "source")
    with pytest.raises(LayoutError, match=f"first: flashllm convert {source}"):
        read_manifest(source)
    directory = rewritten(tmp_path / "model")
    (directory / "manifest.sha256").unlink()
    with pytest.raises(LayoutError, match=r"half of one: it has no manifest\.sha256"):
        read_manifest(directory)


@pytest.mark.parametrize("directory", [CONVERTED, EXPERTS], ids=["v1", "v2"])
def test_round_trip(directory: Path) -> None:
    path = directory / "manifest.json"
    manifest = Manifest.from_bytes(path.read_bytes(), path)
    assert Manifest.from_bytes(manifest.to_bytes(), path) == manifest


def test_a_header_of_many_small_values_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flashllm.untrusted.strict_json.loads_strict", lambda raw: pytest.fail("parsed")
    )
    header = b'{"a":[' + b"1," * safetensors_file.VALUES_MAX + b"1]}"
    path = tmp_path / "many.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(LayoutError, match="keys and values"):
        safetensors_file.read_tensor_index(path)
    size = safetensors_file.HEADER_BYTES_MAX + 1
    path.write_bytes(size.to_bytes(8, "little") + b"{")
    with pytest.raises(LayoutError, match="no safetensors file"):
        safetensors_file.read_tensor_index(path)


def test_as_many_tensors_as_are_accepted_have_room_for_their_values() -> None:
    shape = (1,) * safetensors_file.RANK_MAX
    header = safetensors_file.pack_tensor_header([(f"t{n}", "F32", shape) for n in range(100)])
    values = header[8:].count(b",") + header[8:].count(b":")
    assert values / 100 * safetensors_file.TENSORS_MAX <= safetensors_file.VALUES_MAX
