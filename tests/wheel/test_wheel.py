"""What an installation consists of, and that it works without the source beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel() -> Path:
    """Built by `make wheel-test`, which runs these."""
    return Path(os.environ["FLASHLLM_WHEEL"])


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_it_holds_one_package_and_its_metadata(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert "flashllm" in tops
    assert all(top == "flashllm" or top.endswith(".dist-info") for top in tops), tops


def test_everything_that_runs_is_in_it(names: list[str]) -> None:
    present = set(names)
    for folder, place in (
        ("flashllm", "flashllm"),
        ("tools/convert", "flashllm/convert"),
        ("predictors", "flashllm/predictors"),
    ):
        for path in (ROOT / folder).rglob("*.py"):
            assert f"{place}/{path.relative_to(ROOT / folder).as_posix()}" in present
    for demo in ("demo", "demo_moe"):
        for path in (ROOT / "flashllm" / demo).iterdir():
            assert f"flashllm/{demo}/{path.name}" in present
    assert "flashllm/convert/families/known_models.toml" in present
    assert "flashllm/py.typed" in present
    assert any(name.startswith("flashllm/_core.") and name.endswith(".so") for name in names)


def test_nothing_else_is_in_it(names: list[str]) -> None:
    endings = (".h", ".cpp", ".a", ".o", ".pyc")
    assert not [name for name in names if name.endswith(endings)]
    assert not [name for name in names if "/native/" in name or "/tests/" in name]
    assert not [name for name in names if name.startswith("flashllm/tools")]


def test_it_works_with_no_source_beside_it(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = """
import flashllm, flashllm.convert, flashllm.predictors
from flashllm import core
from flashllm.cli.main import main
print(core.NAME, flashllm.__file__, flashllm.convert.__file__)
"""
    # -S leaves out the editable installation's finder.
    libraries = sysconfig.get_path("purelib")
    finished = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{libraries}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    shown = finished.stdout.split()
    assert shown[0] == "native"
    assert all(path.startswith(str(tmp_path)) for path in shown[1:])
