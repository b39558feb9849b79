"""Links in a converted model: those that lead out of it are refused, wherever it is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from flashllm.convert import reorder, verify

from flashllm.cli.main import main
from flashllm.engine.local import load_info
from flashllm.errors import LayoutError
from flashllm.flash.manifest import read_manifest
from flashllm.flash.store import Store

GOLDEN = Path(__file__).parent / "golden" / "converted"
FILES = sorted(path.name for path in GOLDEN.iterdir())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_lies_outside(name: str, model: Path, tmp_path: Path) -> None:
    (model / name).rename(tmp_path / "outside")
    (model / name).symlink_to(tmp_path / "outside")
    words = f"{name}: a link that leads out of the model, to {tmp_path / 'outside'}; "
    for open_it in (read_manifest, Store, load_info):
        with pytest.raises(LayoutError, match="may be a link") as raised:
            open_it(model)
        assert words in str(raised.value)
    with pytest.raises(LayoutError, match="leads out of the model"):
        reorder(model, tmp_path / "ordered")
    report = verify(model)
    assert not report.ok
    assert [(p.file, p.what) for p in report.problems if "link" in p.what] == [
        (name, f"a link that leads out of the model, to {tmp_path / 'outside'}; it is not read")
    ]
    assert main(["verify", str(model)]) == 65


@pytest.mark.parametrize("end", ["/etc/passwd", "../../gone", "../../model2/manifest.json"])
def test_what_no_manifest_names(end: str, model: Path) -> None:
    """Tokenizers read files that are there, so that these count too; and those in a folder."""
    folder = model / "additional_chat_templates"
    folder.mkdir()
    (folder / "default.jinja").symlink_to("../manifest.json")
    read_manifest(model)
    (folder / "default.jinja").unlink()
    (folder / "default.jinja").symlink_to(end)
    with pytest.raises(LayoutError, match=r"additional_chat_templates/default\.jinja: a link"):
        read_manifest(model)


def test_links_that_stay_inside_and_links_to_the_whole(model: Path, tmp_path: Path) -> None:
    (model / "resident.safetensors").rename(model / "weights")
    (model / "resident.safetensors").symlink_to("weights")
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "link of a link").symlink_to(tmp_path / "link")
    for path in (model, tmp_path / "link", tmp_path / "link of a link"):
        assert read_manifest(path).spec.n_layers
        assert verify(path).ok
