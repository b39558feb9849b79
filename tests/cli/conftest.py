"""A model to name: `m` in the working directory looks like one; tests open something else."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "manifest.json").touch()
    return directory
