"""Reading, hashing and writing beside each other: the same bytes, errors come, no threads stay."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert.output import destination
from flashllm.convert.output.destination import OutputFile
from flashllm.convert.source import files, hashing
from flashllm.convert.source.hashing import Hashing

from flashllm.errors import CannotCreate, ReadFailed
from flashllm.flash.raw_tensor import all_finite
from flashllm.progress import SilentProgress

BLOCK_BYTES = 8192


class Sum(SilentProgress):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.messages: list[int] = []

    def start(self, phase: str, total_bytes: int) -> None:
        assert phase == "hashing the source"
        self.total_bytes = total_bytes

    def advance(self, nbytes: int) -> None:
        self.messages.append(nbytes)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files then have many blocks."""
    monkeypatch.setattr(destination, "BLOCK_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(hashing, "BLOCK_BYTES", BLOCK_BYTES)


@pytest.fixture(autouse=True)
def no_threads_left() -> Any:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def parts_of(content: bytes, seed: int) -> list[bytes]:
    """A content in pieces of many sizes, empty ones and some of several blocks among them."""
    sizes = np.random.default_rng(seed).choice([0, 1, 511, 4096, 8192, 8193, 50_000], 200)
    ends = np.minimum(np.cumsum(sizes), len(content)).tolist()
    return [content[a:b] for a, b in zip([0, *ends], [*ends, len(content)], strict=True)]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 81_920, 300_001])
def test_a_file_is_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, direct: bool
) -> None:
    if not direct:
        monkeypatch.setattr(destination, "set_direct", lambda *_: False)
    content = np.random.default_rng(size).bytes(size)
    reused = bytearray(size)
    with OutputFile(tmp_path / "file") as file:
        for part in parts_of(content, size):
            view = memoryview(reused)[: len(part)]
            view[:] = part
            file.write(view)
            view[:] = bytes(len(part))  # as callers do with their blocks
        assert file.bytes == size
    assert (tmp_path / "file").read_bytes() == content
    assert file.record.bytes == size
    assert file.record.sha256 == hashlib.sha256(content).hexdigest()


class Refusing:
    """A file whose `nth` write is refused, and that writes at most 5000 bytes at once."""

    def __init__(self, path: Path, nth: int, number: int) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115
        self._left, self._number = nth, number
        self.fileno, self.close = self._file.fileno, self._file.close

    def write(self, view: memoryview) -> int:
        self._left -= 1
        if self._left == 0:
            raise OSError(self._number, os.strerror(self._number))
        return os.pwrite(self.fileno(), bytes(view[:4096]), self._seek(4096, len(view)))

    def _seek(self, most: int, length: int) -> int:
        place = self._file.tell()
        self._file.seek(place + min(most, length))
        return place


@pytest.mark.parametrize("nth", [1, 2, 7])
def test_where_direct_writes_are_refused_it_writes_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    calls: list[bool] = []

    def pretend(_: int, direct: bool) -> bool:
        calls.append(direct)
        return direct

    monkeypatch.setattr(destination, "set_direct", pretend)
    monkeypatch.setattr(
        destination, "open", lambda path, *_, **__: Refusing(path, nth, errno.EINVAL), raising=False
    )
    content = np.random.default_rng(0).bytes(10 * BLOCK_BYTES + 17)
    with OutputFile(tmp_path / "file") as file:
        file.write(content)
    assert (tmp_path / "file").read_bytes() == content
    assert file.record.sha256 == hashlib.sha256(content).hexdigest()
    assert calls == [True, False]


def write_blocks(path: Path, count: int) -> None:
    with OutputFile(path) as file:
        for _ in range(count):
            file.write(bytes(BLOCK_BYTES))


@pytest.mark.parametrize("nth", [1, 3, 9])
def test_a_write_that_fails_is_raised_before_the_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    monkeypatch.setattr(
        destination, "open", lambda path, *_, **__: Refusing(path, nth, errno.EIO), raising=False
    )
    monkeypatch.setattr(destination, "set_direct", lambda *_: False)
    with pytest.raises(CannotCreate, match="file: cannot be written"):
        write_blocks(tmp_path / "file", 10)


def test_hashes_of_several_files(tmp_path: Path) -> None:
    sizes = {"empty": 0, "one": 1, "block": BLOCK_BYTES, "odd": 5 * BLOCK_BYTES + 7, "more": 40_000}
    paths, expected = {}, {}
    for name, size in sizes.items():
        paths[name] = tmp_path / name
        content = np.random.default_rng(size).bytes(size)
        paths[name].write_bytes(content)
        expected[name] = hashlib.sha256(content).hexdigest()
    progress = Sum()
    with Hashing(paths) as hashing_:
        records = hashing_.records(progress)
    assert {name: record.sha256 for name, record in records.items()} == expected
    assert {name: record.bytes for name, record in records.items()} == sizes
    assert list(records) == list(sizes)
    assert 0 < progress.total_bytes == sum(progress.messages) <= sum(sizes.values())
    assert len(progress.messages) == 0 + 1 + 1 + 6 + 5


def test_a_file_that_cannot_be_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).write_bytes(bytes(3 * BLOCK_BYTES))
    paths = {name: tmp_path / name for name in ("good", "bad")}
    real = files.RangeFile.read_into

    def failing(file: files.RangeFile, buffer: memoryview, offset: int) -> None:
        if file.path.name == "bad" and offset == BLOCK_BYTES:
            raise ReadFailed(f"{file.path}: byte {offset}: broken")
        real(file, buffer, offset)

    monkeypatch.setattr(files.RangeFile, "read_into", failing)
    with pytest.raises(ReadFailed, match="bad: byte 8192: broken"), Hashing(paths) as hashing_:
        hashing_.records(SilentProgress())


def test_hashing_ends_with_its_block(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 32)  # takes seconds to hash
    with pytest.raises(KeyboardInterrupt), Hashing({"large": tmp_path / "large"}) as hashing_:
        raise KeyboardInterrupt
    progress = Sum()
    while not hashing_._done.empty():
        progress.advance(int(hashing_._done.get()))  # type: ignore[arg-type]
    assert sum(progress.messages) < 1 << 32


def test_where_direct_reads_are_refused_the_cache_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = np.random.default_rng(1).bytes(3 * BLOCK_BYTES)
    (tmp_path / "file").write_bytes(content)
    direct: list[bool] = []
    real = os.preadv

    def pretend(_: int, wanted: bool) -> bool:
        direct.append(wanted)
        return wanted

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        if direct[-1] and offset:
            raise OSError(errno.EINVAL, "refused")
        return real(descriptor, [buffers[0][:BLOCK_BYTES]], offset)

    monkeypatch.setattr(files, "set_direct", pretend)
    monkeypatch.setattr(os, "preadv", preadv)
    found = bytearray(len(content))
    with files.RangeFile(tmp_path / "file") as file:
        assert file.read_directly()
        file.read_into(memoryview(found), 0)
    assert found == content
    assert direct == [True, False]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_number_of_16_bits_is_finite_or_not(dtype: str) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    values = patterns.view(np.float16).astype(np.float32)
    if dtype == "bf16":
        values = (patterns.astype(np.uint32) << 16).view(np.float32)
    found = [all_finite(one.view(np.uint8), dtype) for one in patterns.reshape(-1, 1)]
    np.testing.assert_array_equal(found, np.isfinite(values))


def test_an_infinity_is_found_wherever_it_is() -> None:
    values = np.zeros(300_000, np.float32)
    assert all_finite(values.view(np.uint8), "f32")
    for place in (0, 65_535, 65_536, 299_999):
        for bad in (np.inf, -np.inf, np.nan, -np.nan):
            values[place] = bad
            assert not all_finite(values.view(np.uint8), "f32")
        values[place] = -np.finfo(np.float32).max
        assert all_finite(values.view(np.uint8), "f32")
    assert all_finite(np.empty(0, np.uint8), "f32")
