"""Pickles: behind a word, in a process with limits, whose answers are not believed either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert
from flashllm.convert.source import pickle_process, pickled
from flashllm.convert.source.checkpoint import open_checkpoint

from flashllm.cli.main import main
from flashllm.errors import FlashllmError, NotACheckpoint, TensorMismatch, UsageError
from tests.support.checkpoints import CONFIG, all_bytes, random_tensors, write_checkpoint

ROOT = Path(__file__).parents[2]


def write_pickle(directory: Path, **changes: Any) -> Path:
    """The checkpoint of `write_checkpoint`, as torch writes it."""
    write_checkpoint(directory)
    (directory / "model.safetensors").unlink()
    tensors = {n: torch.from_numpy(t) for n, t in random_tensors(CONFIG).items()}
    torch.save(tensors | changes, directory / "pytorch_model.bin")
    return directory


def refusal(source: Path) -> FlashllmError:
    with (
        pytest.raises(FlashllmError) as raised,
        open_checkpoint(source, allow_pickle=True),
    ):
        pass
    return raised.value


def test_without_the_word_they_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_pickle(tmp_path / "source")
    with pytest.raises(UsageError, match=r"pytorch_model\.bin: a pickle, .* --allow-pickle reads"):
        convert(source, tmp_path / "out")
    assert main(["convert", str(source), str(tmp_path / "out")]) == 2
    assert "--allow-pickle" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    assert main(["convert", str(source), str(tmp_path / "out"), "--allow-pickle"]) == 0


def test_predictors_too(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    (tmp_path / "p").mkdir()
    torch.save({}, tmp_path / "p" / "model_0.pt")
    with pytest.raises(UsageError, match=r"model_0\.pt: a pickle, .* --allow-pickle reads"):
        convert(source, tmp_path / "out", predictors=tmp_path / "p")
    assert not (tmp_path / "out").exists()


def test_the_model_is_the_same_and_the_converter_never_loads_torch(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path / "source", dtype=np.float32)
    convert(whole, tmp_path / "expected")
    (whole / "model.safetensors").unlink()
    tensors = {n: torch.from_numpy(t) for n, t in random_tensors(CONFIG).items()}
    torch.save(tensors, whole / "pytorch_model.bin")
    script = (
        "import sys; from pathlib import Path; from flashllm.convert import convert\n"
        "convert(*map(Path, sys.argv[1:]), allow_pickle=True); assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", script, str(whole), str(tmp_path / "out")]
    subprocess.run(command, cwd=ROOT, check=True)
    expected, found = all_bytes(tmp_path / "expected"), all_bytes(tmp_path / "out")
    assert found["resident.safetensors"] == expected["resident.safetensors"]
    assert found["ffn.bundles"][4096:] == expected["ffn.bundles"][4096:]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(4, 3).T, "extra: not a dense, contiguous tensor"),
        (torch.zeros(4, 3).to_sparse(), "extra: not a dense, contiguous tensor"),
        ([1, 2], "extra: expected a tensor, found list"),
    ],
)
def test_what_is_no_plain_tensor(tmp_path: Path, value: object, words: str) -> None:
    source = write_pickle(tmp_path / "source", extra=value)
    with pytest.raises(pickle_process.RefusedError, match=words):
        pickle_process.describe(str(source / "pytorch_model.bin"))


def test_what_the_process_refuses_is_our_error(tmp_path: Path) -> None:
    found = refusal(write_pickle(tmp_path / "source", extra=torch.zeros(4, 3).T))
    assert isinstance(found, TensorMismatch)
    assert str(found).startswith(f"{tmp_path / 'source' / 'pytorch_model.bin'}: extra: not a dense")


def rewrite(path: Path, change: Any) -> None:
    """The archive again, each record as `change(name, content)` gives it, and how it is kept."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            changed, kind = change(name, content)
            archive.writestr(name, changed, kind)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name, raw: (raw, zipfile.ZIP_DEFLATED), "is compressed"),
        (
            lambda name, raw: (b"big" if "byteorder" in name else raw, zipfile.ZIP_STORED),
            "in the other order",
        ),
        (
            lambda name, raw: (raw[:-4] if "/data/" in name else raw, zipfile.ZIP_STORED),
            "reaches beyond its place in the file",
        ),
    ],
)
def test_archives_that_torch_does_not_write(tmp_path: Path, change: Any, words: str) -> None:
    source = write_pickle(tmp_path / "source")
    rewrite(source / "pytorch_model.bin", change)
    with pytest.raises(pickle_process.RefusedError, match=words):
        pickle_process.describe(str(source / "pytorch_model.bin"))


def use_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """Another child, under the same limits."""
    place = Path(pickle_process.__file__)
    begin = f"""
        import importlib.util, json, os, sys, time
        spec = importlib.util.spec_from_file_location("pickle_process", {str(place)!r})
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        cpu_seconds, memory_bytes, *descriptors = map(int, sys.argv[1:])
        def say(tensors): print(json.dumps({{"files": [{{"tensors": tensors}}]}}))
        module.limit_resources(cpu_seconds, memory_bytes)
    """
    file = tmp_path / "child.py"
    file.write_text(textwrap.dedent(begin) + textwrap.dedent(script))
    monkeypatch.setattr(pickled, "_PROCESS", file)
    monkeypatch.setattr(pickled, "CPU_SECONDS_MAX", 1)
    monkeypatch.setattr(pickled, "MEMORY_BYTES_MAX", 64 << 20)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("while True: pass", "it takes more than 1 s of processor time"),
        ("x = bytearray(1 << 30)", "ended with code 1"),
        ("for _ in range(40): sys.stdout.write('x' * (1 << 20))", "MiB to name its tensors"),
        ("os.kill(os.getpid(), 11)", "ended by signal 11"),
        ("print('nothing')", "not valid JSON"),
        ("print('{}')", "torch says nothing of it"),
        ("print(json.dumps({'files': []}))", "torch says nothing of it"),
        ("print(json.dumps({'files': [7]}))", "torch says nothing of its tensors"),
        ("f = open(os.environ['HOME'] + '/owned', 'w'); f.write('x'); f.close()", "with code 1"),
    ],
)
def test_the_limits_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    source = write_pickle(tmp_path / "source")
    monkeypatch.setenv("HOME", str(tmp_path))
    use_process(monkeypatch, tmp_path, script)
    found = refusal(source)
    assert isinstance(found, NotACheckpoint)
    assert words in str(found)
    owned = tmp_path / "owned"
    assert not owned.exists() or owned.stat().st_size == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="the kernel counts no processes of root")
def test_it_begins_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_pickle(tmp_path / "source")
    use_process(monkeypatch, tmp_path, "os.fork()")
    assert "ended with code 1" in str(refusal(source))


def test_it_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_pickle(tmp_path / "source")
    use_process(monkeypatch, tmp_path, "os.close(1); time.sleep(60)")
    monkeypatch.setattr(pickled, "WALL_SECONDS_MAX", 0.5)
    assert "it takes more than" in str(refusal(source))


def test_it_gets_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_pickle(tmp_path / "source")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    use_process(monkeypatch, tmp_path, "say([[str(dict(os.environ)), 'x', [], 0, 0]])")
    with open_checkpoint(source, allow_pickle=True) as checkpoint:
        (told,) = checkpoint.tensors
    assert "PATH" in told
    assert "hf_secret" not in told


GOOD: list[Any] = ["t", "f32", [2, 3], 64, 24]


@pytest.mark.parametrize(
    "lie",
    [
        {0: 3}, {0: "x" * 513}, {0: "\ud800"}, {1: None}, {2: "ab"}, {2: [1] * 9}, {2: [2.0, 3]},
        {2: [-2, -3]}, {2: [True, 6]}, {3: -1}, {3: 1 << 41}, {3: 1 << 20}, {4: 25}, {4: -24},
        {4: 1 << 40}, {4: None},
    ],
)  # fmt: skip
def test_what_it_says_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: dict[int, Any]
) -> None:
    source = write_pickle(tmp_path / "source")
    told = [lie.get(place, value) for place, value in enumerate(GOOD)]
    use_process(monkeypatch, tmp_path, f"say(json.loads({json.dumps(json.dumps([told]))}))")
    found = refusal(source)
    assert isinstance(found, NotACheckpoint)
    assert "of it. It is damaged, or holds more than tensors" in str(found)


def test_what_is_true_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_pickle(tmp_path / "source")
    use_process(monkeypatch, tmp_path, f"say([{GOOD!r}])")
    with open_checkpoint(source, allow_pickle=True) as checkpoint:
        assert checkpoint.tensors["t"].nbytes == 24
    for told in (7, GOOD[:4], [GOOD]):
        use_process(monkeypatch, tmp_path, f"say([{told!r}])")
        assert "holds more than tensors" in str(refusal(source))
    (source / "second.bin").write_bytes((source / "pytorch_model.bin").read_bytes())
    use_process(monkeypatch, tmp_path, f"say([{GOOD!r}])")
    with pytest.raises(NotACheckpoint, match="torch says too little of it"):
        pickled.open_pickles(source, ["pytorch_model.bin", "second.bin"])
    use_process(monkeypatch, tmp_path, f"say([{GOOD!r}, {GOOD!r}])")
    assert "several tensors have one name" in str(refusal(source))
