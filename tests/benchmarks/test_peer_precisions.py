"""`benchmarks.peers.precisions`: what it makes, takes as it is, removes, and says in one table."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.own_command import CommandError
from benchmarks.peers import precisions
from flashllm.errors import UsageError
from tests.support.checkpoints import write_checkpoint


class Commands:
    """In the place of processes: makes what they would make, and remembers what was asked."""

    def __init__(self) -> None:
        self.run: list[list[str]] = []
        self.fails = ""

    def __call__(self, command: Sequence[str], **_: Any) -> SimpleNamespace:
        arguments = [str(part) for part in command]
        self.run.append(arguments)
        module = arguments[2]
        if self.fails and self.fails in arguments[2:]:
            return SimpleNamespace(returncode=74)
        if module == "flashllm":
            place = Path(arguments[5])
            place.mkdir()
            (place / "ffn.bundles").write_bytes(b"weights")
        elif module == "benchmarks.peers.gguf_model":
            Path(arguments[4]).write_bytes(b"GGUF")
        else:
            assert Path(arguments[3]).is_dir(), "the model is there while it is measured"
            report = Path(arguments[arguments.index("--json") + 1])
            report.write_text(json.dumps({"rows": [ROW, ROW | FAILED]}))
        return SimpleNamespace(returncode=0)


ROW = {
    "contender": "flashllm", "weight_bits": 8.5, "limit_bytes": 3 << 30, "ratio": None,
    "token_seconds": {"median": 0.5, "min": 0.4, "max": 0.6}, "problem": "",
    "rss_peak_bytes": 2 << 30, "stolen_share_max": 0.021,
}  # fmt: skip
FAILED = {
    "contender": "llama.cpp", "token_seconds": None, "problem": "killed: out of memory",
    "rss_peak_bytes": None, "stolen_share_max": None,
}  # fmt: skip


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands()
    monkeypatch.setattr(subprocess, "run", found)
    versions = {"llama-cpp-python": "1", "accelerate": None, "transformers": None}
    monkeypatch.setattr(precisions, "installed_versions", lambda _: versions)
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = write_checkpoint(tmp_path / "source")
    (directory / "predictors.safetensors").write_bytes(b"")
    return directory


def test_each_precision_is_made_measured_and_removed(
    source: Path, tmp_path: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    arguments = [str(source), str(work), "--precisions", "int8,int4", "--rounds", "2"]
    assert precisions.main(arguments) == 0
    assert sorted(path.name for path in work.iterdir()) == ["peers-int4.json", "peers-int8.json"]
    convert, gguf, peers, *_ = commands.run
    assert convert[6:8] == ["--dtype", "int8"]
    predictors = ["--predictors", str(source / "predictors.safetensors")]
    assert convert[8:] == [*predictors, "--predictor-dtype", "int8"]
    assert gguf[-2:] == ["--dtype", "q8_0"]
    assert peers[-4:] == ["--gguf", str(work / "int8.gguf"), "--rounds", "2"]
    assert commands.run[4][-2:] == ["--dtype", "q4_0"]
    text = capsys.readouterr().out
    assert "| int8 | flashllm | 8.50 | 3.0 GiB | 0.5 (0.4 to 0.6) |  | 2,048 | 2.1% |" in text
    assert "| int4 | llama.cpp | 8.50 | 3.0 GiB | killed: out of memory |  |  | unknown |" in text


def test_what_is_there_stays_and_so_does_all_with_keep(
    source: Path, tmp_path: Path, commands: Commands
) -> None:
    (tmp_path / "f16.flash").mkdir()
    assert precisions.main([str(source), str(tmp_path), "--precisions", "f16"]) == 0
    assert [command[2] for command in commands.run] == [
        "benchmarks.peers.gguf_model",
        "benchmarks.peers",
    ]
    assert (tmp_path / "f16.flash").is_dir()
    assert not (tmp_path / "f16.gguf").exists()
    assert precisions.main([str(source), str(tmp_path), "--precisions", "f16", "--keep"]) == 0
    assert (tmp_path / "f16.gguf").exists()


def test_what_was_made_is_removed_where_something_fails(
    source: Path, tmp_path: Path, commands: Commands
) -> None:
    commands.fails = "benchmarks.peers"
    work = tmp_path / "work"
    with pytest.raises(CommandError, match=r"int8: benchmarks\.peers"):
        precisions.main([str(source), str(work), "--precisions", "int8"])
    assert not list(work.iterdir())
    commands.fails = "benchmarks.peers.gguf_model"
    with pytest.raises(CommandError, match=r"int8\.gguf could not be made"):
        precisions.main([str(source), str(work), "--precisions", "int8"])
    assert not list(work.iterdir())


def test_a_precision_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="'int3' is no precision"):
        precisions.parse_precisions("f16,int3")
