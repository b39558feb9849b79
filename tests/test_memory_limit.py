"""What a container leaves: limits of control groups of both versions, of all groups above."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flashllm.system.memory_limit import (
    MemoryRoom,
    available_bytes,
    container_limit_bytes,
    memory_room,
)

MIB = 1 << 20
NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


class Groups:
    """A process's files of the kernel, and a tree of groups, in a folder of this test."""

    def __init__(self, folder: Path, version: int, own: str, root: str = "/") -> None:
        self.version = version
        self.mount = folder / "mount point"
        self.proc = folder / "proc"
        self.mount.mkdir()
        self.proc.mkdir()
        escaped = str(self.mount).replace(" ", "\\040")
        kind = "cgroup cgroup rw,memory" if version == 1 else "cgroup2 cgroup rw"
        (self.proc / "mountinfo").write_text(
            "22 1 0:20 / /proc rw - proc proc rw\nnonsense\n"
            f"30 24 0:26 {root} {escaped} rw,relatime shared:9 - {kind}\n"
        )
        line = f"4:cpu,memory:{own}\n" if version == 1 else f"0::{own}\n"
        (self.proc / "cgroup").write_text(f"9:name=systemd:/\n{line}")

    def add(self, path: str, limit: int | str | None, used: int = 0, cache: int = 0) -> None:
        directory = self.mount / path
        directory.mkdir(parents=True, exist_ok=True)
        limit_name, used_name, cache_name = NAMES[self.version]
        if limit is not None:
            (directory / limit_name).write_text(f"{limit}\n")
        (directory / used_name).write_text(f"{used}\n")
        (directory / "memory.stat").write_text(f"anon 5\n{cache_name} {cache}\nother x\n")


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_group_counts(tmp_path: Path, version: int) -> None:
    groups = Groups(tmp_path, version, "/pod/box")
    groups.add("", None)
    groups.add("pod", 300 * MIB, used=250 * MIB, cache=10 * MIB)
    groups.add("pod/box", 200 * MIB, used=50 * MIB)
    name = NAMES[version][0]
    expected = MemoryRoom(60 * MIB, str(groups.mount / "pod" / name), 300 * MIB)
    assert memory_room(groups.proc) == expected
    assert container_limit_bytes(groups.proc) == 200 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_sees_a_part_of_the_tree(tmp_path: Path, version: int) -> None:
    groups = Groups(tmp_path, version, "/docker/box/inner", root="/docker/box")
    groups.add("", 100 * MIB, used=40 * MIB)
    groups.add("inner", 90 * MIB, used=40 * MIB)
    assert memory_room(groups.proc).bytes == 50 * MIB
    # The group is named as the host has it, and only the mount's own files are seen.
    line = "4:memory:/elsewhere/deep\n" if version == 1 else "0::/elsewhere/deep\n"
    (groups.proc / "cgroup").write_text(line)
    assert memory_room(groups.proc).bytes == 60 * MIB


@pytest.mark.parametrize(("version", "limit"), [(1, 9223372036854771712), (2, "max")])
def test_no_limit_is_none(tmp_path: Path, version: int, limit: int | str) -> None:
    groups = Groups(tmp_path, version, "/box")
    groups.add("box", limit, used=10)
    assert container_limit_bytes(groups.proc) is None
    assert memory_room(groups.proc).limited_by == ""


def test_a_group_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    groups = Groups(tmp_path, 2, "/box")
    groups.add("box", 100 * MIB, used=120 * MIB)
    assert memory_room(groups.proc).bytes == 0
    (groups.mount / "box" / "memory.high").write_text(f"{50 * MIB}\n")
    assert container_limit_bytes(groups.proc) == 50 * MIB


@pytest.mark.parametrize("text", ["", "no colons\n", "0::\n", "::::\n", "\x00\xff"])
def test_files_that_say_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "cgroup").write_text(text)
    (tmp_path / "mountinfo").write_text(text)
    free = psutil.virtual_memory().available
    assert memory_room(tmp_path).bytes == pytest.approx(free, rel=0.2)
    assert memory_room(tmp_path / "absent").limited_by == ""


def test_a_limit_of_addresses_counts() -> None:
    """In a process of its own, for which alone the limit holds."""
    script = (
        "import resource\n"
        "from flashllm.system.memory_limit import memory_room\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))\n"
        "room = memory_room()\n"
        "print(room.bytes, room.limited_by, room.limit_bytes)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    left, *rest = done.stdout.split()
    assert 0 < int(left) < 1 << 30
    assert rest == ["ulimit", "-v", str(1 << 30)]


def test_this_process_has_room() -> None:
    assert 0 < available_bytes() <= psutil.virtual_memory().total
