"""What the reader promises: right bytes, counted reads, typed errors, nothing half done."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Open = Callable[..., Any]


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_aligned_batch_arrives(open_reader: Open, core: ModuleType, contents: np.ndarray) -> None:
    reader = open_reader(threads=4)
    buffer = core.Buffer(3 * 4096)
    reader.read(int64(8192, 0, 40960), 4096, buffer, int64(0, 4096, 8192))
    array = buffer.array()
    for offset, destination in ((8192, 0), (0, 4096), (40960, 8192)):
        got = array[destination : destination + 4096]
        assert np.array_equal(got, contents[offset : offset + 4096])
    stats = reader.stats()
    assert stats["bytes_useful"] == stats["bytes_read"] == 3 * 4096
    assert stats["reads"] == 3
    assert stats["bounced"] == 0
    assert stats["size_histogram"][12] == 3
    assert stats["depth_max"] >= 1
    assert stats["depth_ns"] >= stats["busy_ns"] > 0
    reader.close()


def test_neighbours_become_one_read_and_gaps_are_counted(
    open_reader: Open, core: ModuleType, contents: np.ndarray
) -> None:
    reader = open_reader(threads=4, gap_bytes=4096)
    buffer = core.Buffer(4 * 4096)
    # 0 and 4096 touch, 12288 comes after a gap of 4096, 28672 after one that is too wide.
    reader.read(int64(28672, 12288, 4096, 0), 4096, buffer, int64(0, 4096, 8192, 12288))
    assert np.array_equal(buffer.array()[12288:16384], contents[:4096])
    assert np.array_equal(buffer.array()[8192:12288], contents[4096:8192])
    assert np.array_equal(buffer.array()[4096:8192], contents[12288:16384])
    assert np.array_equal(buffer.array()[:4096], contents[28672:32768])
    stats = reader.stats()
    assert stats["reads"] == 2
    assert stats["bytes_read"] == 4 * 4096 + 4096
    assert stats["bytes_useful"] == 4 * 4096


def test_long_requests_are_split(open_reader: Open, core: ModuleType, contents: np.ndarray) -> None:
    reader = open_reader(threads=4, max_read_bytes=8192)
    buffer = core.Buffer(65536)
    reader.read(int64(4096), 20480, buffer, int64(8192))
    assert np.array_equal(buffer.array()[8192:28672], contents[4096:24576])
    assert not buffer.array()[:8192].any()
    assert not buffer.array()[28672:].any()
    assert reader.stats()["reads"] == 3


def test_many_neighbours_stay_within_the_vectors_of_a_call(
    open_reader: Open, core: ModuleType, contents: np.ndarray
) -> None:
    reader = open_reader(threads=2, gap_bytes=512)
    count = 290
    offsets = np.arange(count, dtype=np.int64) * 1024
    buffer = core.Buffer(count * 512)
    reader.read(offsets, 512, buffer, np.arange(count, dtype=np.int64)[::-1].copy() * 512)
    got = buffer.array().reshape(count, 512)[::-1]
    assert np.array_equal(got, contents[: count * 1024].reshape(count, 1024)[:, :512])
    assert reader.stats()["reads"] == 2


def test_reads_the_tail_of_the_file(
    open_reader: Open, core: ModuleType, contents: np.ndarray
) -> None:
    reader = open_reader()
    assert reader.file_bytes == len(contents)
    buffer = core.Buffer(1001)
    reader.read(int64(len(contents) - 1001), 1001, buffer, int64(0))
    assert np.array_equal(buffer.array(), contents[-1001:])


def test_the_same_bytes_may_be_read_twice(
    open_reader: Open, core: ModuleType, contents: np.ndarray
) -> None:
    reader = open_reader(gap_bytes=1 << 20)
    buffer = core.Buffer(12288)
    reader.read(int64(4096, 4096, 6144), 4096, buffer, int64(0, 4096, 8192))
    assert np.array_equal(buffer.array()[:4096], contents[4096:8192])
    assert np.array_equal(buffer.array()[4096:8192], contents[4096:8192])
    assert np.array_equal(buffer.array()[8192:], contents[6144:10240])


def test_nothing_to_read_is_fine(open_reader: Open, core: ModuleType) -> None:
    reader = open_reader()
    reader.read(int64(), 4096, core.Buffer(4096), int64())
    assert reader.stats()["reads"] == 0


def test_tickets_may_be_waited_for_in_any_order(
    open_reader: Open, core: ModuleType, contents: np.ndarray
) -> None:
    reader = open_reader(threads=3)
    buffers = [core.Buffer(4096) for _ in range(8)]
    tickets = [
        reader.submit(int64(i * 4096), 4096, buffer, int64(0)) for i, buffer in enumerate(buffers)
    ]
    assert len(set(tickets)) == 8
    for ticket in reversed(tickets):
        reader.wait(ticket)
    for i, buffer in enumerate(buffers):
        assert np.array_equal(buffer.array(), contents[i * 4096 : (i + 1) * 4096])


def test_urgent_batches_arrive_with_those_they_overtook(
    open_reader: Open, core: ModuleType, contents: np.ndarray
) -> None:
    reader = open_reader(threads=1, max_read_bytes=512)
    guessed, needed = core.Buffer(262_144), core.Buffer(4096)
    tickets = [
        reader.submit(int64(0), 262_144, guessed, int64(0)),
        reader.submit(int64(8192), 2048, needed, int64(0), urgent=True),
        reader.submit(int64(40_960), 2048, needed, int64(2048), True),
    ]
    reader.wait(tickets[2])
    assert np.array_equal(needed.array()[2048:], contents[40_960:43_008])
    reader.wait(tickets[1])
    assert np.array_equal(needed.array()[:2048], contents[8192:10_240])
    reader.wait(tickets[0])
    assert np.array_equal(guessed.array(), contents[:262_144])
    assert reader.stats()["reads"] == 512 + 4 + 4


def test_what_is_read_ahead_arrives_if_it_is_needed_and_never_if_it_is_dropped(
    open_reader: Open, core: ModuleType, contents: np.ndarray
) -> None:
    reader = open_reader(threads=2, max_read_bytes=512)
    guessed, needed = core.Buffer(262_144), core.Buffer(4096)
    wrong = reader.submit(int64(0), 262_144, guessed, int64(0), ahead=True)
    right = reader.submit(int64(8192), 4096, needed, int64(0), ahead=True)
    reader.hasten(right)
    reader.wait(right)
    assert np.array_equal(needed.array(), contents[8192:12_288])
    assert 0 <= reader.drop(wrong) <= 262_144
    with contextlib.suppress(InterruptedError):  # unless all of it was there already
        reader.wait(wrong)
    for call in (reader.hasten, reader.drop, reader.wait):
        with pytest.raises(ValueError, match="no ticket"):
            call(wrong)


def test_a_buffer_that_nobody_holds_outlives_its_reads(open_reader: Open, core: ModuleType) -> None:
    reader = open_reader(threads=8)
    offsets = np.arange(64, dtype=np.int64) * 4096
    tickets = [reader.submit(offsets, 4096, core.Buffer(1 << 18), offsets) for _ in range(20)]
    for ticket in tickets:
        reader.wait(ticket)
    assert reader.stats()["bytes_useful"] == 20 * 64 * 4096


WRONG_BATCHES = {
    "offset negative": ((-1,), 512, (0,), IndexError),
    "offset very negative": ((-(1 << 63),), 512, (0,), IndexError),
    "offset at the end": ((300_001,), 1, (0,), IndexError),
    "offset and length past the end": ((299_990,), 12, (0,), IndexError),
    "offset that wraps around": (((1 << 63) - 1,), 512, (0,), IndexError),
    "destination negative": ((0,), 512, (-512,), IndexError),
    "destination past the end": ((0,), 512, (65_025,), IndexError),
    "destination that wraps around": ((0,), 512, ((1 << 63) - 1,), IndexError),
    "length zero": ((0,), 0, (0,), ValueError),
    "length negative": ((0,), -512, (0,), ValueError),
    "length of the whole address space": ((0,), (1 << 63) - 1, (0,), IndexError),
    "arrays of different sizes": ((0, 512), 512, (0,), ValueError),
    "destinations that overlap": ((0, 4096), 512, (0, 511), ValueError),
    "destinations that are the same": ((0, 4096), 512, (512, 512), ValueError),
    "one wrong among many": ((0, 512, 1024, 300_000), 512, (0, 512, 1024, 1536), IndexError),
}


@pytest.mark.parametrize("case", WRONG_BATCHES)
def test_wrong_batches_raise_and_nothing_is_read(
    open_reader: Open, core: ModuleType, case: str
) -> None:
    offsets, length, destinations, error = WRONG_BATCHES[case]
    reader = open_reader()
    buffer = core.Buffer(65_536)
    with pytest.raises(error):
        reader.submit(int64(*offsets), length, buffer, int64(*destinations))
    assert reader.stats()["reads"] == 0
    assert not buffer.array().any()


@pytest.mark.parametrize(
    "offsets",
    [
        np.zeros(1, np.int32),
        np.zeros(1, np.uint64),
        np.zeros(1, np.float64),
        np.zeros((1, 1), np.int64),
        np.zeros(4, np.int64)[::2],
        [0],
        None,
    ],
    ids=["int32", "uint64", "float64", "2-d", "strided", "list", "None"],
)
def test_arrays_of_a_wrong_kind_are_not_converted(
    open_reader: Open, core: ModuleType, offsets: Any
) -> None:
    with pytest.raises(TypeError):
        open_reader().submit(offsets, 512, core.Buffer(4096), int64(0))


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": -1},
        {"threads": 100_000},
        {"gap_bytes": -1},
        {"max_read_bytes": 0},
    ],
    ids=str,
)
def test_wrong_options_raise(open_reader: Open, options: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        open_reader(**options)


def test_unknown_policy_raises(core: ModuleType, data_file: Path) -> None:
    with pytest.raises(ValueError, match="expected required, optional or disabled"):
        core.Reader(str(data_file), direct="maybe")


def test_unknown_backend_raises(core: ModuleType, data_file: Path) -> None:
    with pytest.raises(ValueError, match="expected auto, threads or uring"):
        core.Reader(str(data_file), backend="maybe")


def test_the_backend_is_reported(core: ModuleType, data_file: Path) -> None:
    for wanted in ("auto", "threads"):
        reader = core.Reader(str(data_file), backend=wanted)
        assert (reader.backend, reader.backend_problem) == ("threads", "")
    ring = core.Reader(str(data_file), backend="uring")
    assert ring.backend in ("threads", "uring")
    assert (ring.backend == "uring") == (ring.backend_problem == "")


def test_a_file_that_is_not_there(core: ModuleType, tmp_path: Path) -> None:
    path = str(tmp_path / "absent")
    with pytest.raises(FileNotFoundError) as caught:
        core.Reader(path)
    assert caught.value.filename == path


def test_a_directory_is_no_file(core: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="director"):
        core.Reader(str(tmp_path))


def test_an_empty_file_opens_and_has_nothing(core: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    reader = core.Reader(str(path))
    assert reader.file_bytes == 0
    with pytest.raises(IndexError):
        reader.read(int64(0), 1, core.Buffer(1), int64(0))


def test_the_policy_is_reported(core: ModuleType, data_file: Path) -> None:
    buffered = core.Reader(str(data_file), direct="disabled", threads=3)
    assert not buffered.direct
    assert buffered.fallback == "disabled by request"
    assert buffered.alignment == 1
    assert buffered.threads == 3
    optional = core.Reader(str(data_file))
    assert optional.direct == (optional.fallback == "")
    assert optional.direct or optional.alignment == 1


def test_required_is_direct_or_refused(core: ModuleType, data_file: Path) -> None:
    if core.Reader(str(data_file)).direct:
        assert core.Reader(str(data_file), direct="required").direct
    else:
        with pytest.raises(OSError, match="refused"):
            core.Reader(str(data_file), direct="required")


def test_a_file_that_cannot_be_read_directly_falls_back(core: ModuleType) -> None:
    # A file of the kernel's: direct I/O is refused by open or by the probe read.
    if not Path("/proc/self/maps").exists():
        pytest.skip("no /proc here")
    reader = core.Reader("/proc/self/maps")
    assert not reader.direct
    assert reader.fallback
    with pytest.raises(OSError, match="refused"):
        core.Reader("/proc/self/maps", direct="required")


def test_close_gives_the_file_back(open_reader: Open, data_file: Path) -> None:
    reader = open_reader()
    assert data_file in open_files()
    reader.close()
    reader.close()
    assert data_file not in open_files()
    assert reader.file_bytes == data_file.stat().st_size
    assert reader.stats()["reads"] == 0


def open_files() -> list[Path]:
    links = Path("/proc/self/fd")
    if not links.exists():
        pytest.skip("no /proc here")
    return [link.readlink() for link in links.iterdir() if link.is_symlink()]


def test_a_file_cut_short_while_open(
    core: ModuleType, backend: str, tmp_path: Path, contents: np.ndarray
) -> None:
    for direct in ("optional", "disabled"):
        path = tmp_path / f"cut-{direct}.bin"
        contents.tofile(path)
        reader = core.Reader(str(path), direct=direct, backend=backend)
        buffer = core.Buffer(16_384)
        os.truncate(path, 10_000)
        with pytest.raises(EOFError, match="ends at offset 10000"):
            reader.read(int64(4096), 8192, buffer, int64(0))
        with pytest.raises(EOFError):
            reader.read(int64(200_000), 8192, buffer, int64(0))
        reader.read(int64(0), 8192, buffer, int64(0))
        assert np.array_equal(buffer.array()[:8192], contents[:8192])


def test_cancelled_work_raises_until_it_is_cleared(
    open_reader: Open, core: ModuleType, contents: np.ndarray
) -> None:
    reader = open_reader(threads=2)
    buffer = core.Buffer(8192)
    reader.cancel()
    ticket = reader.submit(int64(0), 8192, buffer, int64(0))
    with pytest.raises(InterruptedError, match="cancelled"):
        reader.wait(ticket)
    reader.clear_cancel()
    reader.read(int64(0), 8192, buffer, int64(0))
    assert np.array_equal(buffer.array(), contents[:8192])


def test_cancel_from_another_thread_ends_a_wait(open_reader: Open, core: ModuleType) -> None:
    reader = open_reader(threads=1, max_read_bytes=512)
    buffer = core.Buffer(262_144)
    stop = threading.Thread(target=reader.cancel)
    started = threading.Event()

    def read_for_ever() -> None:
        while True:
            started.set()
            reader.read(int64(0), 262_144, buffer, int64(0))

    def read_until_cancelled() -> None:
        with pytest.raises(InterruptedError):
            read_for_ever()

    worker = threading.Thread(target=read_until_cancelled)
    worker.start()
    assert started.wait(30)
    stop.start()
    worker.join(30)
    stop.join(30)
    assert not worker.is_alive()


def test_tickets_are_for_once(open_reader: Open, core: ModuleType) -> None:
    reader = open_reader()
    ticket = reader.submit(int64(0), 512, core.Buffer(512), int64(0))
    reader.wait(ticket)
    for wrong in (ticket, ticket + 1, 0):
        with pytest.raises(ValueError, match="no ticket"):
            reader.wait(wrong)


def test_a_closed_reader_refuses(open_reader: Open, core: ModuleType) -> None:
    reader = open_reader()
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.submit(int64(0), 512, core.Buffer(512), int64(0))
    with pytest.raises(ValueError, match="closed"):
        reader.wait(1)


def test_closing_with_work_queued_leaves_nothing_in_flight(
    open_reader: Open, core: ModuleType
) -> None:
    reader = open_reader(threads=2, max_read_bytes=512)
    buffer = core.Buffer(262_144)
    reader.submit(int64(0), 262_144, buffer, int64(0))
    reader.close()
    before = buffer.array().copy()
    core.Buffer(1 << 20).array()[:] = 255
    assert np.array_equal(buffer.array(), before)


def test_both_cores_plan_the_same_reads(data_file: Path, contents: np.ndarray) -> None:
    import flashllm._core as native
    from flashllm.core.numpy_twin import kernels

    rng = np.random.default_rng(5)
    slots = rng.permutation(200)[:120].astype(np.int64)
    results = []
    for core, backend in ((native, "threads"), (native, "uring"), (kernels, "auto")):
        for direct in ("optional", "disabled"):
            reader = core.Reader(str(data_file), direct=direct, gap_bytes=2048, backend=backend)
            buffer = core.Buffer(120 * 1024)
            destinations = np.arange(120, dtype=np.int64) * 1024
            reader.read(slots * 1024, 1024, buffer, destinations)
            expected = contents[: 200 * 1024].reshape(200, 1024)[slots]
            assert np.array_equal(buffer.array().reshape(120, 1024), expected)
            stats = reader.stats()
            results.append(
                [stats[key] for key in ("reads", "bytes_read", "bytes_useful", "size_histogram")]
            )
    assert results[0] == results[2] == results[4]
    assert results[1] == results[3] == results[5]
