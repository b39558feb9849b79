"""The device under a file: its name, its kind, and a key that identifies it.

Linux tells all of these; elsewhere the kind is "unknown", and the key comes from the mount.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from flashllm.system.filesystem import (
    NETWORK_FILESYSTEMS,
    existing_parent,
    find_block_device,
    find_mount,
    is_rotational,
)
from flashllm.units import GIB

KINDS = ("nvme", "ssd", "disk", "usb", "network", "memory", "virtual", "unknown")
_MEMORY_FILESYSTEMS = frozenset(("devtmpfs", "ramfs", "tmpfs"))
_KEY_DIGITS = 12


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """A device on this machine, as far as the system names it."""

    key: str
    """Made from device, file system type and machine: safe in a file name, reveals no serial
    number."""
    name: str
    filesystem: str
    mount_options: str
    kind: str
    """One of KINDS."""


def describe_device(path: Path) -> DeviceIdentity:
    """The device of a path, or of its nearest existing parent; unknown facts are no error.

    Partitions of one disk are one device, since the disk is measured.
    """
    place = path.absolute()
    if not place.exists():
        place = existing_parent(place)
    mount = find_mount(place)
    block = find_block_device(place)
    if block is not None and place.is_block_device():
        mount = None  # the device itself: no file system is between
    filesystem = mount.fstype if mount else ""
    disk = _whole_disk(block) if block else None
    return DeviceIdentity(
        key=_key(disk, mount, filesystem),
        name=_name(disk, mount),
        filesystem=filesystem or "unknown",
        mount_options=mount.opts if mount else "",
        kind=_kind(block, disk, filesystem.lower()),
    )


def machine_name() -> str:
    """A description of this machine: processor, number of CPUs and memory."""
    memory = psutil.virtual_memory().total / GIB
    return f"{processor_name()}, {os.cpu_count() or 1} CPUs, {memory:.0f} GiB"


def processor_name() -> str:
    """The processor's model, where the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _whole_disk(block: Path) -> Path:
    """The disk of a partition; any other device is one itself."""
    return block.parent if (block / "partition").exists() else block


def _key(disk: Path | None, mount: Any, filesystem: str) -> str:
    """A hash, since serial numbers and machine ids are private."""
    if disk is not None:
        parts = [disk.name, _first_text(disk, _SERIALS), _first_text(disk, ("size",))]
    else:
        parts = [mount.device, mount.mountpoint] if mount else ["unknown"]
    word = "".join(c for c in (disk.name if disk else filesystem) if c.isalnum()) or "device"
    text = "\0".join([_machine_id(), filesystem, *parts])
    return f"{word}-{hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]}"


_SERIALS = ("wwid", "serial", "device/wwid", "device/serial", "dm/uuid", "loop/backing_file")
_MODELS = ("device/model", "dm/name")


def _machine_id() -> str:
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        with contextlib.suppress(OSError):
            if text := path.read_text(encoding="ascii", errors="replace").strip():
                return text
    return platform.node()


def _name(disk: Path | None, mount: Any) -> str:
    if disk is None:
        return str(mount.device) if mount else "unknown"
    model = _first_text(disk, _MODELS)
    return f"{model} ({disk.name})" if model else disk.name


def _first_text(disk: Path, names: tuple[str, ...]) -> str:
    """The content of the first of these attributes that exists and is not empty."""
    for name in names:
        with contextlib.suppress(OSError):
            if text := (disk / name).read_text(encoding="utf-8", errors="replace").strip():
                return text
    return ""


def _kind(block: Path | None, disk: Path | None, filesystem: str) -> str:
    if filesystem in NETWORK_FILESYSTEMS:
        return "network"
    if filesystem in _MEMORY_FILESYSTEMS:
        return "memory"
    if block is None or disk is None:
        return "unknown"
    return _disk_kind(disk)


def _disk_kind(disk: Path, depth: int = 0) -> str:
    """By the path of the device in /sys; of a mapped device, that of what it maps."""
    where = str(disk)
    if disk.name.startswith(("zram", "ram")):
        return "memory"
    if "/usb" in where:
        return "usb"
    if "/nvme" in where:
        return "nvme"
    if "/virtio" in where:
        return "virtual"
    below = sorted((disk / "slaves").glob("*")) if depth < 8 else []
    if below:
        return _disk_kind(_whole_disk(below[0].resolve()), depth + 1)
    if "/devices/virtual/" in where:
        return "virtual"
    rotational = is_rotational(disk)
    return "unknown" if rotational is None else "disk" if rotational else "ssd"
