"""The GGUF that llama.cpp is measured on; what needs the package gguf is skipped without it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.peers import gguf_model
from benchmarks.peers.files import read_checkpoint
from benchmarks.peers.gguf_encoding import ENCODINGS, encoding_of
from benchmarks.peers.gguf_model import describe, main, publish, write_model
from flashllm.errors import CannotCreate, DestinationExists, NotEnoughSpace, UsageError
from tests.support.checkpoints import write_checkpoint


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(
        tmp_path / "source", dtype=np.float16, torch_dtype="float16", hidden_size=64,
        word_embed_proj_dim=64, ffn_dim=192, num_attention_heads=4, vocab_size=300,
        max_position_embeddings=64,
    )  # fmt: skip


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if gguf were there: for what is refused before it is used."""
    monkeypatch.setattr(gguf_model, "import_gguf", SimpleNamespace)


def test_without_the_package_the_command_that_installs_it_is_named(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(gguf_model.importlib, "import_module", absent)
    assert main([str(source), str(tmp_path / "model.gguf")]) == 2
    assert "make peers" in capsys.readouterr().err


@pytest.mark.usefixtures("packaged")
def test_what_is_there_is_not_overwritten_and_space_is_asked_before(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = read_checkpoint(source)
    file = tmp_path / "model.gguf"
    file.write_bytes(b"mine")
    with pytest.raises(DestinationExists, match="choose another name"):
        write_model(checkpoint, file)
    assert file.read_bytes() == b"mine"
    with pytest.raises(CannotCreate, match="create it first"):
        write_model(checkpoint, tmp_path / "absent" / "model.gguf")
    full = SimpleNamespace(f_bavail=1, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(NotEnoughSpace, match="4,096 are free"):
        write_model(checkpoint, tmp_path / "new.gguf")
    assert not list(tmp_path.glob("new*"))


@pytest.mark.parametrize("links", [True, False])
def test_a_finished_file_gets_its_name_and_replaces_nothing(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    partial, file = tmp_path / "partial", tmp_path / "model.gguf"
    partial.write_bytes(b"new")
    publish(partial, file)
    assert file.read_bytes() == b"new"
    partial.unlink(missing_ok=True)  # or it would still be the same file
    partial.write_bytes(b"newer")
    with pytest.raises(FileExistsError):
        publish(partial, file)
    assert (file.read_bytes(), partial.read_bytes()) == (b"new", b"newer")


def test_another_failure_to_link_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "absent", tmp_path / "model.gguf")


def test_a_seed_is_no_negative_number(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(source), str(tmp_path / "model.gguf"), "--seed", "-1"])
    assert stopped.value.code == 2
    assert "--seed" in capsys.readouterr().err


def test_the_file_is_a_model_of_the_size_and_encoding_of_the_checkpoint(
    source: Path, tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf")
    checkpoint = read_checkpoint(source)
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    shape = write_model(checkpoint, first)
    write_model(checkpoint, second)
    assert first.read_bytes() == second.read_bytes()
    found = describe(first)
    assert found["architecture"] == "llama"
    assert found["encoding"] == "f16"
    assert found["parameters"] == shape.parameters
    assert found["parameters"] == pytest.approx(checkpoint.parameters, rel=0.1)
    for tensor in gguf.GGUFReader(first).tensors:
        values = np.abs(np.asarray(tensor.data, np.float32))
        assert np.isfinite(values).all()
        assert values.min() >= 1 / 64
    write_model(checkpoint, tmp_path / "third.gguf", seed=1)
    assert (tmp_path / "third.gguf").read_bytes() != first.read_bytes()
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize(("dtype", "bits"), [("q8_0", 8.5), ("q4_0", 4.5)])
def test_weights_that_share_scales_are_read_as_the_format_says(
    dtype: str, bits: float, source: Path, tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf")
    checkpoint = read_checkpoint(source)
    file, again = tmp_path / "model.gguf", tmp_path / "again.gguf"
    shape = write_model(checkpoint, file, dtype=dtype)
    write_model(checkpoint, again, dtype=dtype)
    assert file.read_bytes() == again.read_bytes()
    assert describe(file)["encoding"] == dtype
    assert describe(file)["parameters"] == shape.parameters
    tensors = gguf.GGUFReader(file).tensors
    sizes = {name: (rows, columns) for name, rows, columns in shape.tensors()}
    for tensor in tensors:
        rows, columns = sizes[tensor.name]
        assert [int(n) for n in reversed(tensor.shape)] == [n for n in (rows, columns) if n > 1]
        if rows == 1:
            continue
        assert 8 * tensor.n_bytes == bits * rows * columns
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert values.shape == (rows, columns)
        assert np.isfinite(values).all()
        assert 1 / 64 < np.abs(values).max() <= 1 / 32
        assert abs(values.mean()) < 1 / 256


@pytest.mark.usefixtures("packaged")
def test_rows_that_are_no_whole_groups_are_refused(tmp_path: Path) -> None:
    narrow = read_checkpoint(write_checkpoint(tmp_path / "narrow"))
    with pytest.raises(UsageError, match="no whole groups of 32"):
        write_model(narrow, tmp_path / "model.gguf", dtype="q8_0")


def test_random_groups_are_what_the_format_can_hold() -> None:
    generator = np.random.default_rng(0)
    groups = ENCODINGS["q8_0"].random(generator, 4, 320).reshape(-1, 34)
    assert groups.shape == (40, 34)
    assert groups[:, 2:].view(np.int8).min() >= -127
    for name, largest in (("q8_0", 127), ("q4_0", 8)):
        encoding = ENCODINGS[name]
        rows = encoding.random(generator, 4, 320)
        assert rows.shape == (4, encoding.nbytes(320))
        scales = rows.reshape(-1, encoding.group_bytes)[:, :2].copy().view(np.float16)
        assert (scales > 0).all()
        assert float(scales.max()) * largest <= 1 / 32
    assert encoding_of("int4").name == "q4_0"


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    with pytest.raises(UsageError, match="no such file"):
        describe(tmp_path / "absent")
    for content in (b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"x" * 100):
        file = tmp_path / "file"
        file.write_bytes(content)
        with pytest.raises(UsageError, match="no GGUF that can be read"):
            describe(file)
