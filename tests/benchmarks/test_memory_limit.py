"""The memory limit holds, is read back, and says what to do where it cannot be set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import memory_limit
from benchmarks.memory_limit import MemoryGroup, MemoryLimitError, limited
from benchmarks.page_cache import cached_share, drop_page_cache
from flashllm.errors import UsageError
from flashllm.units import MIB


@pytest.fixture(scope="module")
def may_limit() -> None:
    try:
        with limited(64 * MIB):
            pass
    except MemoryLimitError as problem:
        pytest.skip(str(problem))


def allocate(group: MemoryGroup, mib: int) -> subprocess.CompletedProcess[str]:
    code = f"content = b'x' * ({mib} << 20); print(len(content))"
    command = group.command([sys.executable, "-S", "-c", code])
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.usefixtures("may_limit")
def test_a_process_that_takes_too_much_is_killed_and_one_that_does_not_is_not() -> None:
    with limited(100 * MIB) as group:
        assert allocate(group, 30).stdout == f"{30 * MIB}\n"
        small = group.usage()
        assert small.kills == 0
        assert small.limit_bytes == 100 * MIB
        if small.peak_bytes is not None:
            assert 30 * MIB < small.peak_bytes < 100 * MIB
        assert allocate(group, 300).returncode == -9
        large = group.usage()
        assert large.kills >= 1
        assert large.held is not False
        place = group.place
    assert not place.exists()


@pytest.mark.usefixtures("may_limit")
def test_arguments_reach_the_command_as_they_are() -> None:
    with limited(100 * MIB) as group:
        command = group.command(
            [sys.executable, "-c", "import sys; print(sys.argv[1])", "$0 'a b'"]
        )
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "$0 'a b'\n"


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"), limited(0):
        pass


def test_where_there_are_no_groups_the_error_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(MemoryLimitError, match=r"systemd-run --user --scope") as caught,
        limited(MIB, tmp_path, tmp_path / "absent"),
    ):
        pass
    assert caught.value.exit_code == 77


def test_without_permission_the_error_names_the_place(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("4:memory:/mine\n0::/\n")
    (tmp_path / "memory" / "mine").mkdir(parents=True)
    # A plain directory: what is made in it has none of the kernel's files.
    with pytest.raises(MemoryLimitError, match=r"mine: .*Run as root"), limited(MIB, tmp_path, own):
        pass
    assert not list((tmp_path / "memory" / "mine").iterdir())


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree as version 2 shows it: the group of a session may not pass on, the one above may."""
    tree = tmp_path / "cgroup"
    (tree / "slice" / "session").mkdir(parents=True)
    (tree / "cgroup.controllers").write_text("cpu memory")
    for place in (tree, tree / "slice"):
        (place / "cgroup.subtree_control").write_text("cpu")
    (tmp_path / "own").write_text("0::/slice/session\n")
    make = Path.mkdir

    def make_group(self: Path) -> None:
        make(self)
        for name in ("memory.max", "memory.swap.max", "cgroup.procs"):
            (self / name).write_text("")
        (self / "memory.peak").write_text("4096\n")
        (self / "memory.events").write_text("low 0\noom 2\noom_kill 1\noom_group_kill 0\n")

    monkeypatch.setattr(Path, "mkdir", make_group)
    monkeypatch.setattr(memory_limit, "LEAVE_SECONDS", 0.0)
    return tree


def test_version_2_is_used_from_the_nearest_group_that_may(version_2: Path) -> None:
    with limited(8192, version_2, version_2.parent / "own") as group:
        assert group.place.parent == version_2 / "slice"
        assert (version_2 / "slice" / "cgroup.subtree_control").read_text() == "+memory"
        assert (group.place / "memory.max").read_text() == "8192"
        assert (group.place / "memory.swap.max").read_text() == "0"
        usage = group.usage()
    assert (usage.peak_bytes, usage.kills, usage.version) == (4096, 1, 2)
    assert usage.held
    assert usage.swap_limited


def test_a_group_that_nothing_can_join_is_found_before_any_run(version_2: Path) -> None:
    with limited(8192, version_2, version_2.parent / "own") as group:
        processes = group.place / "cgroup.procs"
        group.check_joinable()
        assert int(processes.read_text()) > 0
        processes.unlink()
        os.mkdir(processes)  # something that even root cannot write to
        with pytest.raises(MemoryLimitError, match=r"nothing can be moved there .*Run as root"):
            group.check_joinable()


@pytest.mark.usefixtures("may_limit")
def test_a_real_group_can_be_joined() -> None:
    with limited(100 * MIB) as group:
        group.check_joinable()


def test_version_1_limits_swap_together_with_memory(
    version_2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own1"
    own.write_text("9:cpu:/\n4:memory:/gone/in/this/container\n")
    top = tmp_path / "memory"
    top.mkdir()
    make = Path.mkdir

    def make_group(self: Path) -> None:
        make(self)
        (self / "memory.limit_in_bytes").write_text("")
        (self / "memory.memsw.limit_in_bytes").write_text("")
        (self / "memory.max_usage_in_bytes").write_text("9000")
        (self / "memory.oom_control").write_text("oom_kill_disable 0\noom_kill 3\n")

    monkeypatch.setattr(Path, "mkdir", make_group)
    with limited(8192, tmp_path, own) as group:
        assert group.place.parent == top
        assert (group.place / "memory.memsw.limit_in_bytes").read_text() == "8192"
        usage = group.usage()
    assert (usage.peak_bytes, usage.kills, usage.version) == (9000, 3, 1)
    assert usage.held is False


def test_the_page_cache_is_dropped_and_that_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * MIB)
    before = cached_share([file])
    if before is None:
        pytest.skip("this system does not say what is in the page cache")
    assert before == 1.0
    drop_page_cache([file])
    after = cached_share([file])
    if after == 1.0:
        pytest.skip("this file system is memory")
    assert after == 0.0
