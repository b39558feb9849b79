"""Files and directories of other programs are called what they are, with what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flashllm.library.foreign_formats import describe_foreign


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.gguf", b"GGUF\x03\0\0\0", "a GGUF file"),
        ("sha256-0123", b"GGUF\x03\0\0\0", "a GGUF file"),  # as ollama keeps them
        ("a.gguf", b"", "a GGUF file"),
        ("a.bin", b"lmgg", "a GGML file"),
        ("a.bin", b"tjgg", "a GGML file"),
        ("a.ggml", b"", "a GGML file"),
        ("a.onnx", b"\x08\x07", "an ONNX model"),
        ("a.pt", b"PK\x03\x04", "a file of PyTorch, weights alone"),
        ("a.PTH", b"", "a file of PyTorch, weights alone"),
        ("a.safetensors", b"\x08", "a file of weights alone"),
        ("a.tar.gz", b"\x1f\x8b", "an archive: unpack it"),
        ("a.h5", b"", "weights for TensorFlow"),
        ("notes.txt", b"hello", "a file; a model is a directory"),
        ("empty", b"", "a file; a model is a directory"),
    ],
)
def test_files(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    words = describe_foreign(tmp_path / name)
    assert words.startswith(expected)
    assert "flashllm convert" in words or "directory" in words


def test_weights_alone_lead_to_the_checkpoint_that_they_are_of(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.touch()
    assert "a checkpoint is a directory, with config.json" in describe_foreign(weights)
    (tmp_path / "config.json").write_text("{}")
    assert f"the checkpoint: `flashllm convert {tmp_path}`" in describe_foreign(weights)


def put(directory: Path, **files: object) -> Path:
    for name, content in files.items():
        (directory / name.replace("_json", ".json")).write_text(json.dumps(content))
    return directory


def test_directories(tmp_path: Path) -> None:
    assert describe_foreign(tmp_path) == ""
    (tmp_path / "model-q4.gguf").touch()
    assert describe_foreign(tmp_path).startswith("a directory with a GGUF file")
    put(tmp_path, adapter_config_json={"r": 8})
    assert "an adapter (LoRA)" in describe_foreign(tmp_path)
    put(tmp_path, config_json={"model_type": "x"})
    assert describe_foreign(tmp_path) == ""  # a checkpoint, whatever lies beside it
    put(tmp_path, config_json={"quantization": {"group_size": 64, "bits": 3}})
    assert describe_foreign(tmp_path).startswith("a model in 3 bits for Apple's MLX")
    put(tmp_path, config_json={"quantization": {"group_size": 64, "bits": 4}})
    assert describe_foreign(tmp_path) == ""  # a checkpoint, too


@pytest.mark.parametrize(
    "config", [b"", b"[]", b'{"quantization": 3}', b'{"a": 1, "a": 2}', b"\xff", b"[" * 100_000]
)
def test_a_config_that_makes_no_sense_is_no_foreign_model(tmp_path: Path, config: bytes) -> None:
    (tmp_path / "config.json").write_bytes(config)
    assert describe_foreign(tmp_path) == ""


def test_what_cannot_be_looked_at_is_nothing_known(tmp_path: Path) -> None:
    assert describe_foreign(tmp_path / "absent") == ""
    assert describe_foreign(Path("a" * 300)) == ""
    assert describe_foreign(Path("a\0b")) == ""
    os.mkfifo(tmp_path / "pipe.gguf")  # opening it must not wait for a writer
    assert describe_foreign(tmp_path / "pipe.gguf").startswith("a GGUF file")


def test_text_of_a_config_is_harmless(tmp_path: Path) -> None:
    put(tmp_path, config_json={"quantization": {"group_size": 1, "bits": "\x1b[2J" + "9" * 99}})
    words = describe_foreign(tmp_path)
    assert "\x1b" not in words
    assert "9" * 9 not in words
