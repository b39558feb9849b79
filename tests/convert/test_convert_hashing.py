"""Hashing goes behind the conversion: never ahead of it, never in its way, and to the end."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert
from flashllm.convert.source import files, hashing
from flashllm.convert.source.checkpoint import Checkpoint, open_checkpoint
from flashllm.convert.source.hashing import Hashing
from flashllm.convert.source.tensor import SourceTensor

from flashllm.errors import NotACheckpoint, ReadFailed
from flashllm.flash.manifest import read_manifest
from flashllm.progress import SilentProgress
from tests.support.checkpoints import CONFIG, Tensors, random_tensors, write_checkpoint
from tests.support.tiny import tiny

BLOCK_BYTES = 512
FFN = ("fc1.weight", "fc2.weight")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files then have many blocks."""
    monkeypatch.setattr(hashing, "BLOCK_BYTES", BLOCK_BYTES)


@pytest.fixture(autouse=True)
def no_threads_left() -> Any:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hashing")]


Event = tuple[str, str, int, int]
"""What was done, to which file, from which byte, how many."""


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Reads and forgets of hashing threads, and reads of the conversion, as they come."""
    found: list[Event] = []
    read, forget, use = files.RangeFile.read_into, files.RangeFile.forget, Checkpoint.read_into

    def is_hashing() -> bool:
        return threading.current_thread().name.startswith("hashing")

    def reading(file: files.RangeFile, buffer: memoryview, offset: int) -> None:
        if is_hashing():
            found.append(("hash", file.path.name, offset, len(buffer)))
        read(file, buffer, offset)

    def forgetting(file: files.RangeFile, offset: int, length: int) -> None:
        if is_hashing():
            found.append(("forget", file.path.name, offset, length))
        forget(file, offset, length)

    def using(self: Checkpoint, buffer: memoryview, tensor: SourceTensor, start: int) -> None:
        use(self, buffer, tensor, start)
        found.append(("use", tensor.file, tensor.offset + start, len(buffer)))

    monkeypatch.setattr(files.RangeFile, "read_into", reading)
    monkeypatch.setattr(files.RangeFile, "forget", forgetting)
    monkeypatch.setattr(Checkpoint, "read_into", using)
    return found


def tensor_at(file: str, first: int, count: int, name: str) -> SourceTensor:
    """A tensor that takes these blocks of a file."""
    nbytes = count * BLOCK_BYTES
    return SourceTensor(name, "f32", (nbytes // 4,), file, first * BLOCK_BYTES, nbytes)


def settled(events: list[Event]) -> list[int]:
    """Blocks that were hashed, once no more come."""
    count = -1
    while count != len(events):
        count = len(events)
        time.sleep(0.1)
    return [offset // BLOCK_BYTES for kind, _, offset, _ in events if kind == "hash"]


def test_a_tensor_is_hashed_after_its_last_use(tmp_path: Path, events: list[Event]) -> None:
    content = np.random.default_rng(0).bytes(8 * BLOCK_BYTES)
    (tmp_path / "file").write_bytes(content)
    # Blocks 0, 3, 4 and 7 belong to nothing that is used; ends are inside of blocks.
    first = replace(tensor_at("file", 1, 2, "first"), offset=BLOCK_BYTES + 8, nbytes=BLOCK_BYTES)
    twice = replace(tensor_at("file", 5, 2, "twice"), nbytes=2 * BLOCK_BYTES - 8)
    with Hashing({"file": tmp_path / "file"}, [twice, first, twice]) as hashing_:
        assert settled(events) == [0]
        hashing_.used(twice)
        assert settled(events) == [0]
        hashing_.used(first)
        assert settled(events) == [0, 1, 2, 3, 4]
        hashing_.used(twice)
        assert settled(events) == list(range(8))
        records = hashing_.records(SilentProgress())
    assert records["file"].sha256 == hashlib.sha256(content).hexdigest()
    kinds = [(kind, offset // BLOCK_BYTES) for kind, _, offset, _ in events]
    assert kinds == [(kind, block) for block in range(8) for kind in ("hash", "forget")]


@pytest.mark.parametrize("threads", [1, 2])
def test_files_may_be_used_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(hashing, "THREADS_MAX", threads)
    paths = {name: tmp_path / name for name in "abcd"}
    for name, path in paths.items():
        path.write_bytes(name.encode() * 3 * BLOCK_BYTES)
    tensors = [tensor_at(name, 1, 1, f"in {name}") for name in paths]
    with Hashing(paths, tensors) as hashing_:
        for tensor in reversed(tensors):
            hashing_.used(tensor)
        records = hashing_.records(SilentProgress())
    for name, path in paths.items():
        assert records[name].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_is_never_used_is_waited_for_until_the_records(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * BLOCK_BYTES))
    with Hashing({"file": path}, [tensor_at("file", 0, 1, "unused")]) as hashing_:
        record = hashing_.records(SilentProgress())["file"]
    assert record.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def interrupted(hashing_: Hashing, events: list[Event]) -> None:
    with hashing_:
        settled(events)
        raise KeyboardInterrupt


def test_an_interruption_ends_threads_that_wait(tmp_path: Path, events: list[Event]) -> None:
    paths = {name: tmp_path / name for name in "abcdef"}
    for path in paths.values():
        path.write_bytes(bytes(2 * BLOCK_BYTES))
    tensors = [tensor_at(name, 1, 1, f"in {name}") for name in paths]
    with pytest.raises(KeyboardInterrupt):
        interrupted(Hashing(paths, tensors), events)
    assert events
    assert all(offset == 0 for _, _, offset, _ in events)


def test_a_file_that_is_missing_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(bytes(BLOCK_BYTES))
    paths = {name: tmp_path / name for name in ("there", "missing")}
    with pytest.raises(ReadFailed, match="missing: cannot be opened"), Hashing(paths):
        pass


def test_a_file_that_changes_before_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * BLOCK_BYTES))
    with Hashing({"file": path}, [tensor_at("file", 1, 1, "tensor")]) as hashing_:
        with open(path, "r+b") as file:
            file.write(b"other")
        with pytest.raises(NotACheckpoint, match="file: changed while"):
            hashing_.records(SilentProgress())


def save_bin(directory: Path) -> None:
    """The same checkpoint as torch writes it."""
    whole = directory / "model.safetensors"
    with open_checkpoint(directory) as checkpoint:
        tensors = {}
        for tensor in checkpoint.tensors.values():
            raw = bytearray(tensor.nbytes)
            checkpoint.read_into(memoryview(raw), tensor, 0)
            tensors[tensor.name] = torch.frombuffer(raw, dtype=torch.float32).view(tensor.shape)
    torch.save(tensors, directory / "pytorch_model.bin")
    whole.unlink()


def layers_of(count: int) -> Tensors:
    return random_tensors({**CONFIG, "num_hidden_layers": count})


def write_alphabetical(directory: Path) -> None:
    tensors = layers_of(12)
    ordered = {name: tensors[name] for name in sorted(tensors)}
    write_checkpoint(directory, tensors=ordered, num_hidden_layers=12)


def write_backwards(directory: Path) -> None:
    tensors = layers_of(3)
    write_checkpoint(
        directory, tensors={n: tensors[n] for n in reversed(tensors)}, num_hidden_layers=3
    )


def write_shards(directory: Path) -> None:
    write_checkpoint(directory, tensors=layers_of(3), num_hidden_layers=3, shards=7)


def write_pickled(directory: Path) -> None:
    write_alphabetical(directory)
    save_bin(directory)


def write_tied(directory: Path) -> None:
    """The head beside the embedding, and a tensor that no model needs."""
    tensors = random_tensors(CONFIG)
    head = {"lm_head.weight": tensors["model.decoder.embed_tokens.weight"]}
    unused = {"decoder.version": np.zeros(4 * BLOCK_BYTES, np.float32)}
    write_checkpoint(directory, tensors=head | unused | tensors)


def write_falcon(directory: Path) -> None:
    """Queries, keys and values in one tensor."""
    tiny("falcon", ffn_hidden_size=20).save_pretrained(directory)


def write_phi3(directory: Path) -> None:
    """Gate and up in one tensor, too."""
    sizes = {"intermediate_size": 20, "num_key_value_heads": 2}
    tiny("phi3", **sizes).save_pretrained(directory)


WRITERS = (
    write_alphabetical, write_backwards, write_shards, write_pickled, write_tied, write_falcon,
    write_phi3,
)  # fmt: skip


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("write", WRITERS)
def test_a_conversion_is_followed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    events: list[Event],
    write: Callable[[Path], None],
    threads: int,
) -> None:
    monkeypatch.setattr(hashing, "THREADS_MAX", threads)
    left: list[int] = []
    real = Hashing.records

    def records(self: Hashing, progress: Any) -> Any:
        left.extend(self._left.values())
        return real(self, progress)

    monkeypatch.setattr(Hashing, "records", records)
    write(tmp_path / "source")
    events.clear()

    convert(tmp_path / "source", tmp_path / "out", allow_pickle=True)

    # The last use of a tensor is told as such: hashing need not wait for the end.
    assert set(left) == {0}
    recorded = read_manifest(tmp_path / "out").source["files"]
    with open_checkpoint(tmp_path / "source", allow_pickle=True) as checkpoint:
        assert set(recorded) == {"config.json", *checkpoint.files}
    for name, record in recorded.items():
        raw = (tmp_path / "source" / name).read_bytes()
        assert record == {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        hashed = -1
        for kind, file, offset, nbytes in events:
            if file == name and kind == "hash":
                assert offset == max(hashed, 0)
                hashed = offset + nbytes
            elif file == name and kind == "use":
                assert offset >= hashed, "hashed before it was used"
        forgotten = sum(n for kind, file, _, n in events if (kind, file) == ("forget", name))
        assert hashed == forgotten == len(raw)


def test_offsets_in_a_pickle(tmp_path: Path) -> None:
    """They are where the bytes are, of parts of a storage too, whatever the order of names."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(100, generator=generator)
    tensors = {
        "z": torch.randn(7, 3, generator=generator),
        "part": whole[30:60],
        "whole": whole,
        "half": torch.randn(9, generator=generator).half(),
        "a": torch.randn(5, generator=generator),
    }
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    raw = (tmp_path / "pytorch_model.bin").read_bytes()
    with open_checkpoint(tmp_path, allow_pickle=True) as checkpoint:
        for name, values in tensors.items():
            found = checkpoint.tensors[name]
            expected = values.numpy().tobytes()
            assert raw[found.offset : found.offset + found.nbytes] == expected, name


def test_a_read_that_fails_while_hashing_ends_the_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(tmp_path / "source")
    real = files.RangeFile.read_into

    def failing(file: files.RangeFile, buffer: memoryview, offset: int) -> None:
        if threading.current_thread().name.startswith("hashing") and offset == 4 * BLOCK_BYTES:
            raise ReadFailed(f"{file.path}: byte {offset}: broken")
        real(file, buffer, offset)

    monkeypatch.setattr(files.RangeFile, "read_into", failing)
    with pytest.raises(ReadFailed, match=r"model\.safetensors: byte 2048: broken"):
        convert(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


class Shown(SilentProgress):
    """Phases with their totals and what was told of each."""

    def __init__(self) -> None:
        self.phases: dict[str, tuple[int, list[int]]] = {}
        self._told: list[int] = []

    def start(self, phase: str, total_bytes: int) -> None:
        self._told = []
        self.phases[phase] = (total_bytes, self._told)

    def advance(self, nbytes: int) -> None:
        self._told.append(nbytes)


def test_what_is_left_to_be_hashed_is_a_phase(tmp_path: Path, events: list[Event]) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10 * BLOCK_BYTES))
    tensor = tensor_at("file", 4, 1, "tensor")
    for used, left in ((False, 6), (True, 1)):
        events.clear()
        progress = Shown()
        with Hashing({"file": path}, [tensor]) as hashing_:
            if used:
                hashing_.used(tensor)
            settled(events)
            hashing_.records(progress)
        total_bytes, told = progress.phases["hashing the source"]
        assert total_bytes == sum(told) == left * BLOCK_BYTES
        assert len(told) == 10


def test_phases_come_in_order(tmp_path: Path) -> None:
    progress = Shown()
    convert(write_checkpoint(tmp_path / "source"), tmp_path / "out", progress=progress)
    assert list(progress.phases) == [
        "resident weights", "feed-forward bundles", "hashing the source",
    ]  # fmt: skip
    assert all(total == sum(told) for total, told in progress.phases.values())
