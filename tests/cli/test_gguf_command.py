"""Commands with a file in GGUF: what they make of it, and what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flashllm.bench.header import run_header
from flashllm.cli.bench.tokens_table import describe_run
from flashllm.cli.main import main
from tests.support.gguf_models import write_gguf
from tests.support.tiny import tiny

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "intermediate_size": 64,
}


SETTINGS: dict[str, Any] = {
    "lossy": False,
    "io_threads": 1,
    "direct": True,
    "select": "router",
    "slots": 4,
    "context": 8,
    "kv_dtype": "f16",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(root: Path, kind: str) -> Path:
    tiny("olmoe", **SIZES).save_pretrained(root / "source")
    return write_gguf(root / "source", root, "olmoe", kind).gguf


def test_from_the_file_to_the_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(home, "Q4_0")
    assert main(["plan", "model.gguf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["dtype"] == "int4"
    assert main(["convert", "model.gguf", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"in int4; reads [0-9.]+ KiB of model\.gguf\n.* are free", said)
    assert main(["run", "model.gguf", "hello"]) == 65
    assert "first: `flashllm convert model.gguf`" in capsys.readouterr().err
    assert main(["convert", "model.gguf"]) == 0
    made = Path(capsys.readouterr().out.strip())
    assert made == home / "home" / "models" / "model.flash"
    assert main(["run", "model", "--raw", "--ids", "5,6,7", "-n", "3"]) == 0


def test_what_is_rounded_again_is_asked_for_and_said(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(home, "Q5_0")
    for command in (["plan", "model.gguf"], ["convert", "model.gguf", "out"]):
        assert main(command) == 65
        said = capsys.readouterr().err
        assert "rounded a second time: blk.0.ffn_gate_exps.weight (Q5_0 to int8)" in said
        assert "--requantise" in said
        assert main([*command, "--requantise"]) == 0
        capsys.readouterr()
    assert main(["show", "out"]) == 0
    assert "int8, requantised from Q5_0" in capsys.readouterr().out
    header = run_header(home / "out", SETTINGS)
    assert header["model"]["requantised"] == "requantised from Q5_0"
    rows = dict(describe_run({"header": header, "complete": True}, "policy blend"))
    assert rows["model"] == "model (requantised from Q5_0)"
