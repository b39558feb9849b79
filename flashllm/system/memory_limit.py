"""Memory that processes of this group may still take: the machine's, and the limits of cgroups.

Source: the kernel's documentation, admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

_OWN_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file", "active_file")
_VERSION_1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    "total_active_file",
)


def available_bytes(own_groups: Path = _OWN_GROUPS, mount: Path = _MOUNT) -> int:
    """What can be taken without swapping or passing a limit; cached files count as free."""
    found = [int(psutil.virtual_memory().available)]
    for place, names in _groups(own_groups, mount):
        left = _left_bytes(place, *names)
        if left is not None:
            found.append(max(left, 0))
    return min(found)


def _groups(own_groups: Path, mount: Path) -> Iterator[tuple[Path, tuple[str, str, str, str]]]:
    """The groups of this process that may limit its memory, each with all groups around it."""
    try:
        lines = own_groups.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers:
            top, names = mount, _VERSION_2
        elif "memory" in controllers.split(","):
            top, names = mount / "memory", _VERSION_1
        else:
            continue
        place = top / name.lstrip("/")
        while True:
            yield place, names
            if place == top or top not in place.parents:
                break
            place = place.parent


def _left_bytes(place: Path, limit: str, usage: str, *cached: str) -> int | None:
    """What the limit of a group leaves; None where there is none."""
    with contextlib.suppress(OSError, ValueError):
        most = (place / limit).read_text("ascii").strip()
        if most == "max":
            return None
        used = int((place / usage).read_text("ascii"))
        lines = (place / "memory.stat").read_text("ascii").splitlines()
        statistics = dict(line.split(" ", 1) for line in lines if " " in line)
        return int(most) - used + sum(int(statistics.get(name, 0)) for name in cached)
    return None
