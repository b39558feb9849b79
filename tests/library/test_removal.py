"""A model is removed with all of its files and no others."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flashllm.convert import demo_source

from flashllm.errors import CannotCreate, LayoutError, ModelNotFound
from flashllm.library.openers import find_openers
from flashllm.library.removal import own_files, remove_model
from tests.support.checkpoints import write_checkpoint

GOLDEN = Path(__file__).parents[1] / "flash" / "golden"


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "converted", tmp_path / "big.flash")
    return tmp_path / "big.flash"


def test_a_whole_model_goes(model: Path) -> None:
    assert sorted(own_files(model)) == sorted(path.name for path in model.iterdir())
    assert own_files(model)[-1] == "manifest.json"
    assert remove_model(model) == []
    assert not model.exists()


def test_files_of_others_stay(model: Path) -> None:
    (model / "notes.txt").write_text("mine")
    (model / "folder").mkdir()
    assert remove_model(model) == ["folder", "notes.txt"]
    assert sorted(path.name for path in model.iterdir()) == ["folder", "notes.txt"]
    assert (model / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("lost", ["ffn.bundles", "manifest.sha256", "manifest.json"])
def test_a_broken_model_goes_too(model: Path, lost: str) -> None:
    (model / lost).unlink()
    assert remove_model(model) == []
    assert not model.exists()


def test_a_link_inside_is_removed_and_not_followed(model: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    (model / "resident.safetensors").rename(weights)
    (model / "resident.safetensors").symlink_to(weights)
    assert remove_model(model) == []
    assert weights.exists()


def test_a_manifest_cannot_name_files_elsewhere(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    path = model / "manifest.json"
    values = json.loads(path.read_bytes())
    values["files"]["../mine"] = values["files"]["ffn.bundles"]
    path.write_text(json.dumps(values))
    remove_model(model)  # known by its bundles; the manifest is not believed
    assert (tmp_path / "mine").read_text() == "keep"


def test_what_is_no_model_is_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ModelNotFound):
        remove_model(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    (tmp_path / "marked").mkdir()
    (tmp_path / "marked" / "manifest.json").write_text("{}")
    (tmp_path / "link").symlink_to(model)
    others = [tmp_path / "empty", tmp_path / "marked", tmp_path / "link", demo_source()]
    others += [write_checkpoint(tmp_path / "checkpoint"), tmp_path]
    before = contents(tmp_path)
    for path in others:
        with pytest.raises(LayoutError):
            remove_model(path)
    assert contents(tmp_path) == before


def test_what_is_open_elsewhere_is_refused(model: Path) -> None:
    code = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, model / "ffn.bundles"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert [number for number, _ in find_openers(model)] == [other.pid]
        with pytest.raises(CannotCreate, match=f"is open in process {other.pid} \\(python"):
            remove_model(model)
        other.kill()
    assert (model / "manifest.json").exists()
    assert remove_model(model) == []


def test_the_engine_is_seen_to_have_it_open(sparse_model: Path, tmp_path: Path) -> None:
    shutil.copytree(sparse_model, tmp_path / "model")
    code = (
        "import flashllm, sys\n"
        "with flashllm.open_model(sys.argv[1]): print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "model"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(CannotCreate, match="is open in process"):
            remove_model(tmp_path / "model")
        other.kill()
