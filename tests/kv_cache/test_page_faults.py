"""Faults on pages of keys and values: an error of ours, or the right bits; and right afterwards."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashllm import core
from flashllm.errors import CannotCreate, FlashllmError, NotEnoughSpace, ReadFailed
from flashllm.kv_cache.dram import KvCache
from flashllm.kv_cache.layout import PageShape
from flashllm.kv_cache.page_pool import PagePool
from flashllm.kv_cache.paged import PagedKvCache
from tests.kv_cache.test_paged import CONTEXT, LEAST, SHAPE, Sequence, plan_of, same
from tests.support.faults import FLIP, READ_FAULTS, ReadFault
from tests.support.faulty_reader import FaultyReads

FAULTS = {
    **READ_FAULTS,
    "zero": ReadFault(READ_FAULTS["zero"].code, ReadFailed, ReadFailed),
    "flipped bit": ReadFault(FLIP, None, ReadFailed),
}


CHOSEN = np.array([[3, 20], [5, 25]], np.int32)
"""Of each key head, in pages that have left: the first is known ahead."""


def first_chosen(head: int, _scores: object) -> np.ndarray:
    return CHOSEN[head]


class Run:
    """The same tokens in one piece and in pages, most of which are on flash."""

    def __init__(self, directory: Path, tokens: int = 150, slots: int = LEAST) -> None:
        self.pool = PagePool(PageShape.of(SHAPE, "f16"), plan_of("f16", slots), [directory])
        self.pages = PagedKvCache(SHAPE, CONTEXT, "f16", core.Kernels(2), self.pool)
        self.whole = KvCache(SHAPE, CONTEXT, "f16", core.Kernels(2))
        self.sequence = Sequence(1)
        self.step(tokens)

    def step(self, tokens: int) -> None:
        """Equal bits of so many tokens more; where one is refused, neither goes on."""
        found = self.sequence.step(self.pages, tokens) if tokens else []
        assert same(found, self.sequence.step(self.whole, tokens) if tokens else [])

    def chosen_step(self) -> None:
        """Equal bits of a token that sees few, fetched ahead and late, then chosen by scores."""
        own = slice(self.pages.length, self.pages.length + 1)
        query, both = self.sequence.query[own], (self.pages, self.whole)
        for layer in range(2):
            for cache in both:
                cache.append(layer, *self.sequence.rows[layer, :, :, own])
            self.pages.prefetch(layer, CHOSEN[:, :1])
            assert np.array_equal(*(one.attend_to(layer, query, CHOSEN, 0.2) for one in both))
            found = (one.attend_by_scores(layer, query, first_chosen, 0.2) for one in both)
            assert np.array_equal(*found)

    @property
    def file(self) -> Any:
        assert self.pool.file is not None
        return self.pool.file


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> FaultyReads:
    return FaultyReads(monkeypatch)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[[], Run]]:
    made: list[Run] = []

    def make() -> Run:
        made.append(Run(tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.pool.close()


def outcome(run: Run, tokens: int = 1) -> FlashllmError | None:
    """Equal bits, or the error; of 0 tokens that of one that sees few."""
    try:
        run.step(tokens) if tokens else run.chosen_step()
    except FlashllmError as error:
        return error
    return None


@pytest.mark.parametrize("for_ever", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_read_that_fails(
    reads: FaultyReads, runs: Callable[[], Run], fault: str, for_ever: bool
) -> None:
    run, kind = runs(), FAULTS[fault]
    expected = kind.for_ever if for_ever else kind.once
    for nth in (1, 2, 3):
        reads.arm(kind.code, nth, for_ever=for_ever)
        error = outcome(run)
        struck = reads.disarm()
        assert struck
        assert type(error) is (expected or type(None)), error
        if error is not None:
            assert "scratch file of keys and values, layer" in str(error)
            assert "offset" in str(error)
            assert "--kv-memory" in str(error)
        run.step(1)
        if fault in ("delay", "EINVAL"):  # the latter changes the file for good
            break


@pytest.mark.parametrize("for_ever", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fetch_of_chosen_pages_that_fails(
    reads: FaultyReads, tmp_path: Path, fault: str, for_ever: bool
) -> None:
    """Ahead, late, or keys and values by themselves."""
    kind = FAULTS[fault]
    expected = kind.for_ever if for_ever else kind.once
    for nth in (1, 4, 6):
        run = Run(tmp_path, slots=28)
        try:
            assert (run.pool.slots(run.pool.pages(0, np.array([0, 1]))) < 0).all()
            reads.arm(kind.code, nth, for_ever=for_ever)
            error = outcome(run, 0)
            assert reads.disarm()
            assert type(error) is (expected or type(None)), error
            assert run.pages.is_damaged == (error is not None)
            run.chosen_step()  # the token is computed anew
            run.step(1)
        finally:
            run.pool.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_write_that_fails(
    runs: Callable[[], Run], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    run, write = runs(), os.pwritev

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", refuse)
    error = None
    while error is None and run.pages.length < CONTEXT - 20:
        error = outcome(run, 4)
    kind = CannotCreate if code == errno.EIO else NotEnoughSpace
    assert type(error) is kind, error
    assert "scratch file of keys and values, layer" in str(error)
    assert type(outcome(run, 4)) is kind, "it does so as long as it lasts"
    monkeypatch.setattr(os, "pwritev", write)
    run.step(4)
    run.step(1)


def test_a_write_that_fails_once_in_the_background_is_made_again(
    runs: Callable[[], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, write, failed = runs(), os.pwritev, []

    def refuse_once(*arguments: Any) -> int:
        if not failed:
            failed.append(1)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(*arguments)

    monkeypatch.setattr(os, "pwritev", refuse_once)
    errors = [outcome(run, 4) for _ in range(8)]
    assert failed
    assert sum(error is not None for error in errors) <= 1


def test_short_writes_go_on_where_they_ended(
    runs: Callable[[], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev

    def half(file: int, vectors: list[Any], offset: int) -> int:
        return write(file, vectors[: max(len(vectors) // 2, 1)], offset)

    monkeypatch.setattr(os, "pwritev", half)
    run = runs()
    for step in (1, 30, 1):
        run.step(step)


def test_a_disk_that_takes_no_direct_writes(
    runs: Callable[[], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refused = os.pwritev, []

    def refuse_direct(file: int, *rest: Any) -> int:
        import fcntl

        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(1)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(file, *rest)

    monkeypatch.setattr(os, "pwritev", refuse_direct)
    run = runs()
    run.step(1)
    if refused:
        assert len(refused) == 1
        assert any("page cache" in words for words in run.file.cautions)


@pytest.mark.parametrize("damage", ["a bit", "two pages change places", "zeros", "truncated"])
def test_pages_that_are_damaged_on_flash(runs: Callable[[], Run], damage: str) -> None:
    run = runs()
    file, size = run.file._file.fileno(), run.pool.shape.page_bytes
    stored = np.flatnonzero(run.pool._on_flash)
    path = f"/dev/fd/{file}"  # through the page cache, past what direct writes ask for
    with open(path, "r+b") as raw:
        one, other = (os.pread(raw.fileno(), size, page * size) for page in stored[[1, 2]].tolist())
        places = [page * size for page in stored[[1, 2]].tolist()]
        if damage == "a bit":
            raw.seek(places[0])
            raw.write(bytes([one[0] ^ 1]))
        elif damage == "zeros":
            raw.seek(places[0])
            raw.write(bytes(size))
        elif damage == "truncated":
            raw.truncate(places[0])
        else:
            raw.seek(places[0])
            raw.write(other)
            raw.seek(places[1])
            raw.write(one)
    error = outcome(run)
    assert type(error) is ReadFailed, error
    assert "layer" in str(error)
    assert run.pages.is_damaged
    # What is computed anew is right, in the same file.
    run.pages.truncate(0)
    run.whole.truncate(0)
    assert not run.pages.is_damaged
    if damage == "truncated":
        os.ftruncate(file, run.file.nbytes)
    run.step(140)
    run.step(1)


def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of("f16", LEAST)
    usage = type("Usage", (), {"free": plan.flash_bytes - 1})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    shape = PageShape.of(SHAPE, "f16")
    with pytest.raises(NotEnoughSpace, match=rf"{tmp_path} has .* free of the .* --kv-dir"):
        PagePool(shape, plan, [tmp_path])
    monkeypatch.undo()
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(CannotCreate, match="no place for keys and values"):
        PagePool(shape, plan, [file])
    # The next directory takes it.
    PagePool(shape, plan, [file, tmp_path]).close()
    assert sorted(tmp_path.iterdir()) == [file]


def test_memory_is_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = {"filesystem": "tmpfs", "network": False}
    monkeypatch.setattr("flashllm.kv_cache.tiers.describe_storage", lambda _: storage)
    pool = PagePool(PageShape.of(SHAPE, "f16"), plan_of("f16", LEAST), [tmp_path])
    assert pool.file is not None
    assert "in memory itself" in pool.file.cautions[0]
    pool.close()
    storage |= {"filesystem": "nfs4", "network": True}
    pool = PagePool(PageShape.of(SHAPE, "f16"), plan_of("f16", LEAST), [tmp_path])
    assert pool.file is not None
    assert "network disk" in pool.file.cautions[0]
    pool.close()


def test_nothing_is_left_of_a_process_that_was_killed(tmp_path: Path) -> None:
    """While it writes, nobody sees a file; after kill -9 the space is free."""
    program = """
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        from flashllm import core
        from flashllm.kv_cache.layout import PageShape
        from flashllm.kv_cache.tiers import PageFile
        file = PageFile([Path(sys.argv[1])], PageShape(2, 2, 128), 8, core.Buffer(8 << 12))
        file.write(np.arange(4), np.arange(4))
        assert file.written(wait=True)[0].error is None
        print(os.stat(file._file.fileno()).st_blocks, flush=True)
        signal.pause()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as child:
        assert child.stdout is not None
        assert int(child.stdout.readline()) > 0
        assert not list(tmp_path.iterdir())
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())
