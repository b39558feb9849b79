"""When a model was checked last, and what makes that untrue."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flashllm.cli.main import main
from flashllm.library.verification import keep_verified, last_verified


@pytest.fixture
def model(sparse_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(sparse_model, tmp_path / "model"))


def test_verify_is_remembered(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert last_verified(model) is None
    assert main(["verify", str(model)]) == 0
    date = last_verified(model)
    assert date is not None
    assert date.startswith("20")
    capsys.readouterr()


def test_a_model_that_changed_is_unchecked(model: Path) -> None:
    keep_verified(model)
    assert last_verified(model) is not None
    file = model / "ffn.bundles"
    os.utime(file, ns=(1, 1))
    assert last_verified(model) is None


def test_damage_is_not_remembered_as_checked(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = model / "ffn.bundles"
    raw = bytearray(file.read_bytes())
    raw[5000] ^= 1
    file.write_bytes(raw)
    assert main(["verify", str(model)]) == 65
    assert last_verified(model) is None
    capsys.readouterr()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"date": 5}', b'{"date": "x", "state": null}'])
def test_a_record_that_is_none(model: Path, content: bytes) -> None:
    keep_verified(model)
    (record,) = (Path(os.environ["FLASHLLM_HOME"]) / "verified").iterdir()
    record.write_bytes(content)
    assert last_verified(model) is None


def test_nothing_is_kept_of_what_is_no_model(tmp_path: Path, model: Path) -> None:
    keep_verified(tmp_path / "absent")
    assert last_verified(tmp_path / "absent") is None
    assert not (Path(os.environ["FLASHLLM_HOME"]) / "verified").exists()
