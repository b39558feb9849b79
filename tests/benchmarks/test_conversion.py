"""`python -m benchmarks.conversion`: figures that belong together, and nothing left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from flashllm.convert.source import files

from benchmarks import conversion
from flashllm.errors import UsageError
from tests.support.checkpoints import write_checkpoint


def test_a_checkpoint_is_measured_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_checkpoint(tmp_path / "source")
    with files.RangeFile(source / "model.safetensors") as file:
        if not file.read_directly():
            pytest.skip("the file system has no direct I/O")
    monkeypatch.setattr(conversion, "BLOCK_BYTES", 4096)
    argv = ["conversion", str(source), "--dtype", "f16", "--probe", "64KiB", "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", argv)

    assert conversion.main() == 0

    lines = capsys.readouterr().out.splitlines()
    report = json.loads(lines[-1])
    source_bytes = (source / "model.safetensors").stat().st_size
    assert report["header"]["settings"]["source_bytes"] == source_bytes
    assert len(report["rounds"]) == 2
    for found in report["rounds"]:
        slower = min(found["read_bytes_per_second"], found["write_bytes_per_second"])
        assert found["share"] == pytest.approx(found["source_bytes_per_second"] / slower)
        copied = found["copy_bytes_per_second"]
        assert found["share_of_copy"] == pytest.approx(found["source_bytes_per_second"] / copied)
        assert found["peak_bytes"] > 10 << 20
    for label in ("share of the slower", "both at once, MB/s each", "share of both at once"):
        assert any(line.startswith(f"| {label} |") for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_conversion_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_checkpoint(tmp_path / "source")
    (source / "config.json").write_text("{}")
    monkeypatch.setattr(conversion, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(sys, "argv", ["conversion", str(source), "--probe", "64KiB"])
    with pytest.raises(conversion.CommandError, match=r"config\.json"):
        conversion.main()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["conversion", str(tmp_path)])
    with pytest.raises(UsageError, match="no weights"):
        conversion.main()
