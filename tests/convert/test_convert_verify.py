"""`verify` finds every kind of damage, says where, and says all of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from flashllm.convert import VerifyReport, convert, verify
from flashllm.convert.verify import verification
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashllm.errors import LayoutError, ModelNotFound
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import manifest_hash_line
from tests.support.checkpoints import write_checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A converted model."""
    convert(write_checkpoint(tmp_path / "source"), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def shared_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that its tests restore."""
    root = tmp_path_factory.mktemp("shared")
    convert(write_checkpoint(root / "source"), root / "model")
    return root / "model"


def flip(path: Path, offset: int, mask: int = 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= mask
    path.write_bytes(raw)


def named(report: VerifyReport) -> list[str]:
    return [problem.file for problem in report.problems]


def test_a_good_model(model: Path) -> None:
    report = verify(model)
    assert report.ok
    assert report.bundles_checked == 40
    listed = [path for path in model.iterdir() if not path.name.startswith("manifest")]
    assert report.bytes_checked == sum(path.stat().st_size for path in listed)
    values = json.loads(json.dumps(report.to_json()))
    assert values["ok"] is True
    assert values["problems"] == []
    assert set(values) == {"ok", "bundles_checked", "bytes_checked", "seconds", "problems"}


def test_damaged_bundles_are_all_listed_with_their_place(model: Path) -> None:
    path = model / "ffn.bundles"
    header = read_header(path)
    places = [(0, 0), (0, 19), (1, 7)]
    for layer, bundle in places:
        flip(path, header.offset(layer, bundle) + header.bundle_bytes - 1)

    report = verify(model)

    listed = [p for p in report.problems if p.bundle is not None]
    assert [(p.layer, p.bundle) for p in listed] == places
    assert [p.offset for p in listed] == [header.offset(*place) for place in places]
    assert report.problems[-1].what.startswith("its SHA-256")
    assert report.bundles_checked == 40


def test_swapped_bundles_are_found(model: Path) -> None:
    path = model / "ffn.bundles"
    header = read_header(path)
    raw = bytearray(path.read_bytes())
    first, second = header.offset(0, 3), header.offset(1, 3)
    size = header.bundle_bytes
    raw[first : first + size], raw[second : second + size] = (
        raw[second : second + size],
        raw[first : first + size],
    )
    path.write_bytes(raw)
    assert [(p.layer, p.bundle) for p in verify(model).problems[:2]] == [(0, 3), (1, 3)]


def test_padding_is_covered_by_the_hash(model: Path) -> None:
    path = model / "ffn.bundles"
    flip(path, read_header(path).offset(0, 0) + read_header(path).bundle_bytes)
    (problem,) = verify(model).problems
    assert (problem.file, problem.bundle) == ("ffn.bundles", None)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_flipped_bit_is_found(shared_model: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(shared_model.iterdir())))
    good = path.read_bytes()
    try:
        flip(path, data.draw(st.integers(0, len(good) - 1)), 1 << data.draw(st.integers(0, 7)))
        assert not verify(shared_model).ok
    finally:
        path.write_bytes(good)


@pytest.mark.parametrize("change", ["cut", "grow", "remove", "empty"])
def test_files_of_a_wrong_size(model: Path, change: str) -> None:
    for path in sorted(model.iterdir()):
        good = path.read_bytes()
        if change == "remove":
            path.unlink()
        else:
            path.write_bytes({"cut": good[:-1], "grow": good + b"\0", "empty": b""}[change])
        if path.name == "manifest.json" and change == "remove":
            with pytest.raises(LayoutError, match="half of one"):
                verify(model)
        else:
            assert path.name in named(verify(model)) or path.name == "manifest.sha256"
            assert not verify(model).ok
        path.write_bytes(good)
    assert verify(model).ok


def test_checksums_that_are_lost_do_not_hide_the_rest(model: Path) -> None:
    (model / "ffn.crc32c").unlink()
    flip(model / "resident.safetensors", -1)
    report = verify(model)
    assert named(report) == ["ffn.crc32c", "ffn.bundles", "resident.safetensors"]
    assert "cannot be checked" in report.problems[1].what


def test_many_damaged_bundles_are_bounded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "BUNDLE_PROBLEMS_MAX", 5)
    (model / "ffn.crc32c").write_bytes(bytes(160))
    report = verify(model)
    assert sum(problem.bundle is not None for problem in report.problems) == 5
    assert any("35 more" in problem.what for problem in report.problems)


def test_a_manifest_of_another_model(model: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other-source", ffn_dim=24)
    convert(other, tmp_path / "other")
    for name in ("ffn.bundles", "ffn.crc32c", "resident.safetensors"):
        (model / name).write_bytes((tmp_path / "other" / name).read_bytes())
    problems = {p.file: p.what for p in verify(model).problems}
    assert set(problems) >= {"ffn.bundles", "resident.safetensors"}


def test_spec_and_header_must_agree(model: Path) -> None:
    values = json.loads((model / "manifest.json").read_text())
    values["spec"]["n_layers"] = 3
    raw = json.dumps(values).encode()
    (model / "manifest.json").write_bytes(raw)
    (model / "manifest.sha256").write_bytes(manifest_hash_line(raw))
    report = verify(model)
    assert "n_layers is 2, but the manifest's model has 3" in report.problems[0].what
    assert report.problems[1].file == "resident.safetensors"


def test_nothing_and_something_else(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        verify(tmp_path / "absent")
    with pytest.raises(LayoutError, match="first: flashllm convert"):
        verify(write_checkpoint(tmp_path / "source"))


def test_several_blocks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = read_header(model / "ffn.bundles")
    monkeypatch.setattr(verification, "BLOCK_BYTES", 3 * header.stride + 1)
    report = verify(model)
    assert report.ok
    assert report.bundles_checked == 40
    checksums = np.fromfile(model / "ffn.crc32c", dtype="<u4")
    assert len(set(checksums.tolist())) == 40
