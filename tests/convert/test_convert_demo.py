"""The model that comes with the package: converted once, and again when it changes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from flashllm.convert import demo_model, verify

import flashllm
from flashllm.errors import CannotCreate, ModelNotFound
from flashllm.flash.manifest import read_manifest
from flashllm.system.demos import DEMO_NAMES, demo_in
from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint, write_tensors


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose demo is a tiny checkpoint, and a cache of its own; the demo's directory."""
    write_checkpoint(tmp_path / "package" / "demo")
    monkeypatch.setattr(flashllm, "__file__", str(tmp_path / "package" / "__init__.py"))
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    return tmp_path / "package" / "demo"


def add_predictors(demo: Path) -> None:
    tensors = {}
    for layer in range(2):
        tensors[f"layers.{layer}.down"] = np.ones((4, 12), np.float16)
        tensors[f"layers.{layer}.up"] = np.ones((20, 4), np.float16)
        tensors[f"layers.{layer}.bias"] = np.ones(20, np.float32)
        tensors[f"layers.{layer}.threshold"] = np.ones(1, np.float32)
    write_tensors(demo / "predictors.safetensors", tensors)
    (demo / "activity.json").write_text('{"layers": [{}, {}]}')


def test_made_once_with_its_predictors(package: Path) -> None:
    add_predictors(package)
    directory = demo_model()
    assert directory.parent == Path(os.environ["FLASHLLM_HOME"]) / "models"
    assert "predictors.safetensors" in read_manifest(directory).files
    assert verify(directory).ok
    inode = directory.stat().st_ino
    assert demo_model() == directory
    assert directory.stat().st_ino == inode


def test_made_again_when_the_source_changes_or_the_copy_is_damaged(package: Path) -> None:
    first = demo_model()
    with open(first / "ffn.bundles", "r+b") as file:
        file.truncate(100)
    assert demo_model() == first
    assert verify(first).ok
    write_tensors(package / "model.safetensors", random_tensors(CONFIG, seed=1))
    second = demo_model()
    assert second != first
    assert verify(second).ok


def test_a_cache_that_cannot_be_written(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(package / "config.json"))
    with pytest.raises(CannotCreate, match="set FLASHLLM_HOME"):
        demo_model()


def test_a_package_without_a_demo(package: Path) -> None:
    (package / "config.json").unlink()
    for name in DEMO_NAMES:
        with pytest.raises(ModelNotFound, match=f"the {name} is not installed"):
            demo_model(name=name)


def test_each_demo_has_a_directory_of_its_own(package: Path) -> None:
    write_checkpoint(package.parent / "demo_moe")
    first, second = (demo_model(name=name) for name in DEMO_NAMES)
    assert [demo_in(path.name) for path in (first, second)] == list(DEMO_NAMES)
    assert first == demo_model()
    assert verify(second).ok


def test_several_processes_at_once(package: Path) -> None:
    script = (
        "import flashllm, sys, time; from pathlib import Path\n"
        "flashllm.__file__ = sys.argv[1]\n"
        "from flashllm.convert import demo_model\n"
        "time.sleep(max(0, float(sys.argv[2]) - time.time()))\n"
        "print(demo_model())\n"
    )
    start = str(time.time() + 2)
    command = [sys.executable, "-c", script, flashllm.__file__, start]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    (directory,) = {stdout.strip() for stdout, _ in outputs}
    assert verify(Path(directory)).ok
    left = {path.name for path in Path(directory).parent.iterdir()}
    assert left == {"demo.lock", Path(directory).name}


@pytest.mark.parametrize("name", DEMO_NAMES)
def test_the_demo_that_is_there_converts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    directory = demo_model(name=name)
    report = verify(directory)
    assert report.ok, report.problems
    manifest = read_manifest(directory)
    assert not manifest.synthetic
    assert "tokenizer.model" in manifest.files
