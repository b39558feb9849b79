"""How much memory this process may still take, and what limits it.

Free memory is that of the whole machine. A container may take less of it: its control group has a
limit, and so may every group above it, in version 1 and 2 of the kernel's interface
(Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst). `ulimit -v` limits addresses.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flashllm.system.memory import PAGE_BYTES

PROC = Path("/proc/self")
NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes a number near 2^63 where there is no limit."""
_LIMIT_FILES = {"cgroup": ("memory.limit_in_bytes",), "cgroup2": ("memory.max", "memory.high")}
_USAGE_FILES = {"cgroup": "memory.usage_in_bytes", "cgroup2": "memory.current"}
# Pages of files that the kernel takes back before it kills anything.
_RECLAIMABLE = {"cgroup": "total_inactive_file", "cgroup2": "inactive_file"}


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Memory that can still be taken."""

    bytes: int
    limited_by: str = ""
    """What leaves no more: a file of a control group, or `ulimit -v`; "" for what is free."""
    limit_bytes: int | None = None
    """That limit, of which a part is taken; None where what is free is the limit."""


def memory_room(proc: Path = PROC) -> MemoryRoom:
    """What is free on this machine, or what the tightest limit of this process leaves of it.

    `proc` is where the kernel describes this process.
    """
    import psutil

    rooms = [MemoryRoom(int(psutil.virtual_memory().available))]
    rooms += _group_rooms(proc)
    rooms += _address_room(proc)
    return min(rooms, key=lambda room: room.bytes)


def available_bytes() -> int:
    """Memory that this process can still take, in bytes."""
    return memory_room().bytes


def container_limit_bytes(proc: Path = PROC) -> int | None:
    """The tightest limit of this process's control groups, in bytes; None where there is none."""
    limits = (room.limit_bytes for room in _group_rooms(proc))
    return min((limit for limit in limits if limit is not None), default=None)


def _address_room(proc: Path) -> Iterator[MemoryRoom]:
    """What `ulimit -v` leaves of addresses."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    taken = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        taken = int((proc / "statm").read_text(encoding="ascii").split()[0]) * PAGE_BYTES
    yield MemoryRoom(max(0, limit - taken), "ulimit -v", limit)


def _group_rooms(proc: Path) -> Iterator[MemoryRoom]:
    """What each control group of this process, and each above it, leaves."""
    for kind, directory, top in _groups(proc):
        for group in (directory, *directory.parents):
            yield from _room_of_group(kind, group)
            if group == top:
                break


def _room_of_group(kind: str, group: Path) -> Iterator[MemoryRoom]:
    for name in _LIMIT_FILES[kind]:
        limit = _number(group / name)
        if limit is None or limit >= NO_LIMIT_BYTES:
            continue
        used = _number(group / _USAGE_FILES[kind]) or 0
        free = limit - used + _reclaimable(group, _RECLAIMABLE[kind])
        yield MemoryRoom(min(max(0, free), limit), str(group / name), limit)


def _groups(proc: Path) -> Iterator[tuple[str, Path, Path]]:
    """Kind, directory and topmost visible directory of the groups that count memory."""
    paths = dict(_group_paths(proc))
    for kind, root, mount in _mounts(proc):
        path = paths.get(kind)
        if path is None:
            continue
        # In a container the mount shows a part of the tree: the group's own, or one above it.
        below = path.removeprefix(root.rstrip("/")) if path.startswith(root) else ""
        directory = mount / below.lstrip("/")
        yield kind, (directory if directory.is_dir() else mount), mount


def _group_paths(proc: Path) -> Iterator[tuple[str, str]]:
    """The group of this process in each hierarchy that counts memory, by kind of hierarchy."""
    for line in _lines(proc / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield "cgroup2", path
        elif "memory" in controllers.split(","):
            yield "cgroup", path


def _mounts(proc: Path) -> Iterator[tuple[str, str, Path]]:
    """Kind, root and place of each mounted hierarchy that may count memory (proc(5), mountinfo)."""
    for line in _lines(proc / "mountinfo"):
        before, separator, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if not separator or len(fields) < 5 or len(kinds) < 3:
            continue
        is_memory = kinds[0] == "cgroup2" or "memory" in kinds[2].split(",")
        if kinds[0] in _LIMIT_FILES and is_memory:
            yield kinds[0], _unescaped(fields[3]), Path(_unescaped(fields[4]))


def _unescaped(text: str) -> str:
    """A path as mountinfo has it: spaces and the like as backslash and octal digits."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no such file, or it says `max`."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _reclaimable(group: Path, name: str) -> int:
    for line in _lines(group / "memory.stat"):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0
