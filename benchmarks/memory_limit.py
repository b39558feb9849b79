"""A memory limit for a process and its children: a control group of Linux, version 1 or 2.

Goals: everything that the processes use counts, the page cache of the files they read included;
swap is not a way out; the group is gone afterwards. Not a goal: limits without the kernel's help
(a limit on address space would refuse maps that cost nothing).
Source: the kernel's documentation, admin-guide/cgroup-v1/memory.rst and admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashllm.errors import FlashllmError, UsageError

CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
LEAVE_SECONDS = 5.0
CANNOT_JOIN = 77
"""Exit code of a command that could not be moved into its group."""
ADVICE = (
    "Run as root, or where systemd runs the session as: systemd-run --user --scope "
    "-p Delegate=yes COMMAND"
)


class MemoryLimitError(FlashllmError):
    """This system lets us limit nobody's memory."""

    exit_code = 77


@dataclass(frozen=True, slots=True)
class Version:
    """What one version of control groups calls things."""

    number: int
    limit: str
    swap_limit: str
    peak: str
    kills: tuple[str, str]
    """A file and the key in it that counts the processes killed."""


VERSION_1 = Version(
    1,
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max_usage_in_bytes",
    ("memory.oom_control", "oom_kill"),
)
VERSION_2 = Version(
    2, "memory.max", "memory.swap.max", "memory.peak", ("memory.events", "oom_kill")
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a group used; None for what the kernel does not tell."""

    limit_bytes: int
    peak_bytes: int | None
    kills: int
    swap_limited: bool
    version: int

    @property
    def held(self) -> bool | None:
        """Whether the limit was kept; None where the kernel keeps no peak."""
        return None if self.peak_bytes is None else self.peak_bytes <= self.limit_bytes


class MemoryGroup:
    """A group with a limit; processes join it by `command`."""

    def __init__(self, place: Path, version: Version, limit_bytes: int) -> None:
        self.place = place
        self._version = version
        _write(place / version.limit, limit_bytes)
        # Rounded to pages by the kernel; what it kept is what counts.
        self.limit_bytes = int(_read(place / version.limit))
        self._swap_limited = False
        with contextlib.suppress(OSError):  # absent in a kernel that does not account for swap
            swap_bytes = self.limit_bytes if version.number == 1 else 0
            _write(place / version.swap_limit, swap_bytes)
            self._swap_limited = True

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` in the group, under the same process id."""
        join = f'echo $$ > "$0" || exit {CANNOT_JOIN}; exec "$@"'
        return ["/bin/sh", "-c", join, str(self.place / "cgroup.procs"), *command]

    def check_joinable(self) -> None:
        """`MemoryLimitError` where no process can be moved into the group.

        Making a group needs other permissions than moving processes, which those of the common
        ancestor decide about in version 2.
        """
        command = self.command(["/bin/sh", "-c", ":"])
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as problem:
            raise MemoryLimitError(
                f"{command[0]}: {problem.strerror}, and without it no process can be limited"
            ) from problem
        if done.returncode == CANNOT_JOIN:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise MemoryLimitError(f"{self.place}: nothing can be moved there ({reason}). {ADVICE}")

    def usage(self) -> Usage:
        """Read back from the kernel."""
        peak_bytes = None
        with contextlib.suppress(OSError):
            peak_bytes = int(_read(self.place / self._version.peak))
        return Usage(
            self.limit_bytes, peak_bytes, self._kills(), self._swap_limited, self._version.number
        )

    def _kills(self) -> int:
        file, key = self._version.kills
        with contextlib.suppress(OSError):
            for line in _read(self.place / file).splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
        return 0

    def close(self) -> None:
        """Remove the group; its last process may need a moment to be gone."""
        patience = time.monotonic() + LEAVE_SECONDS
        while self.place.exists() and time.monotonic() < patience:
            with contextlib.suppress(OSError):
                self.place.rmdir()
                return
            time.sleep(0.02)


@contextlib.contextmanager
def limited(
    limit_bytes: int, root: Path = CGROUPS, own: Path = OWN_GROUPS
) -> Iterator[MemoryGroup]:
    """A group of that limit, removed afterwards; `MemoryLimitError` where none can be made.

    It is made below the group of this process, or below one above that where the rules of
    version 2 forbid it (a group that passes on its memory holds no processes itself).
    """
    if limit_bytes < 1:
        raise UsageError(f"a memory limit of {limit_bytes} bytes; at least 1 is needed")
    group = _create(limit_bytes, root, own)
    try:
        yield group
    finally:
        group.close()


def _create(limit_bytes: int, root: Path, own: Path) -> MemoryGroup:
    found = _own_group(root, own)
    if found is None:
        raise MemoryLimitError(
            f"{root}: no control groups for memory here, so that nothing can be limited. {ADVICE}"
        )
    top, group, version = found
    problems = []
    for parent in (group, *group.parents):
        place = parent / f"flashllm-peers-{os.getpid()}-{time.monotonic_ns()}"
        try:
            return _create_below(parent, place, version, limit_bytes)
        except OSError as problem:
            problems.append(f"{parent}: {problem.strerror}")
            with contextlib.suppress(OSError):
                place.rmdir()
        if parent == top:
            break
    raise MemoryLimitError(f"no memory limit can be set ({problems[0]}). {ADVICE}")


def _create_below(parent: Path, place: Path, version: Version, limit_bytes: int) -> MemoryGroup:
    """Raises OSError where this parent does not let us."""
    if version.number == 2:
        controllers = _read(parent / "cgroup.subtree_control").split()
        if "memory" not in controllers:
            _write(parent / "cgroup.subtree_control", "+memory")
    place.mkdir()
    return MemoryGroup(place, version, limit_bytes)


def _own_group(root: Path, own: Path) -> tuple[Path, Path, Version] | None:
    """The top of the hierarchy that limits memory, our place in it, and its version."""
    try:
        lines = own.read_text("utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            top = root / "memory"
            return top, _visible(top, path), VERSION_1
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers and (root / "cgroup.controllers").is_file():
            return root, _visible(root, path), VERSION_2
    return None


def _visible(top: Path, path: str) -> Path:
    """Our group below `top`; a container may show its own group as the top."""
    group = top / path.strip("/")
    return group if group.is_dir() else top


def _read(path: Path) -> str:
    return path.read_text("ascii").strip()


def _write(path: Path, value: object) -> None:
    """One write without creating: a file that is not there is a control that is not there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode("ascii"))
    finally:
        os.close(descriptor)
