"""The header of a report: what is needed to repeat it, and nothing that JSON does not know."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import flashllm
from flashllm.bench import header
from flashllm.bench.header import run_header

ROOT = Path(flashllm.__file__).parent.parent


def test_header_of_a_model(sparse_model: Path) -> None:
    found = run_header(sparse_model, {"tokens": 3})
    plain = json.loads(json.dumps(found, allow_nan=False))
    assert plain["machine"] == found["machine"]
    raw = (sparse_model / "manifest.json").read_bytes()
    assert found["model"]["hash"] == hashlib.sha256(raw).hexdigest()
    assert found["model"]["layout_version"] == json.loads(raw)["layout_version"]
    assert found["settings"] == {"tokens": 3}
    assert found["synthetic"] is False
    assert found["storage"]["filesystem"]
    assert found["machine"]["memory_total_bytes"] > 1 << 28
    assert found["machine"]["isa"]
    assert found["tool_version"] == flashllm.__version__


def test_header_says_that_a_model_is_synthetic(sparse_model: Path, tmp_path: Path) -> None:
    raw = (sparse_model / "manifest.json").read_bytes().replace(
        b'"synthetic": false', b'"synthetic": true'
    )  # fmt: skip
    for path in sparse_model.iterdir():
        (tmp_path / path.name).hardlink_to(path)
    for name in ("manifest.json", "manifest.sha256"):
        (tmp_path / name).unlink()
    (tmp_path / "manifest.json").write_bytes(raw)
    line = f"{hashlib.sha256(raw).hexdigest()}  manifest.json\n"
    (tmp_path / "manifest.sha256").write_text(line)
    found = run_header(tmp_path, {})
    assert found["synthetic"] is found["model"]["synthetic"] is True


def test_header_has_what_config_toml_set_of_models_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(tmp_path))
    assert run_header(None, {})["config"] == {}
    file = tmp_path / "config.toml"
    file.write_text('temp = 0.5\nmemory = "1GiB"\n[chat]\nsystem = "nobody else\'s business"\n')
    assert run_header(None, {})["config"] == {"memory": 1 << 30, "temp": 0.5}
    file.write_text("temp = ")
    assert "is not TOML" in run_header(None, {})["config"]["problem"]


def test_header_without_a_model(tmp_path: Path) -> None:
    assert run_header(None, {})["storage"] is None
    file = tmp_path / "bytes"
    file.write_bytes(b"1")
    found = run_header(file, {})
    assert found["model"] is None
    assert found["storage"]["filesystem"]


@pytest.mark.parametrize(
    ("original", "expected"),
    [
        (["python", "-m", "flashllm", "bench", "io", "a file"],
         "python -m flashllm bench io 'a file'"),
        (["python", "-I", "-m", "flashllm", "-x"], "python -I -m flashllm -x"),
        (["python", "/bin/flashllm", "bench", "-m"], "flashllm bench"),
    ],
)  # fmt: skip
def test_the_command_can_be_typed_again(
    original: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With -m, what the interpreter leaves in sys.argv is the path of a file of ours."""
    monkeypatch.setattr(sys, "orig_argv", original)
    monkeypatch.setattr(sys, "argv", ["flashllm", "bench"])
    assert run_header(None, {})["command"] == expected


def test_header_of_a_damaged_model(sparse_model: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    assert "manifest" in run_header(tmp_path, {})["model"]["problem"]


def test_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    assert header.git_state(tmp_path) is None
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    git = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    found = header.git_state(ROOT)
    assert found is not None
    assert found["commit"] == git.stdout.strip()


def test_a_checkout_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", "")
    assert header.git_state(tmp_path) is None


def test_a_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(header, "_THERMAL", tmp_path)
    monkeypatch.setattr(header, "container_limit_bytes", lambda: None)
    monkeypatch.setattr(header.psutil, "cpu_freq", lambda: None)
    monkeypatch.delattr(header.os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(header.os, "getloadavg")
    found = header.machine()
    unknown = ("frequency_mhz", "temperature_celsius", "memory_limit_bytes", "load_average")
    assert [found[name] for name in unknown] == [None] * 4
