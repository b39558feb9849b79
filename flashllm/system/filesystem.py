"""The storage under a directory: file system, device, whether it is remote or slow."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

import psutil

NETWORK_FILESYSTEMS = frozenset((
    "9p", "afpfs", "ceph", "cifs", "davfs", "fuse.rclone", "fuse.sshfs", "glusterfs",
    "nfs", "nfs3", "nfs4", "smb2", "smb3", "smbfs", "virtiofs", "webdav",
))  # fmt: skip
_BLOCK_DEVICES = Path("/sys/dev/block")


def existing_parent(directory: Path) -> Path:
    """The directory itself, or the nearest one above it that exists."""
    directory = directory.absolute()
    while not directory.is_dir() and directory != directory.parent:
        directory = directory.parent
    return directory


def describe_storage(directory: Path) -> dict[str, Any]:
    """File system, mount point and device of an existing directory; None for unknown ones."""
    mount = find_mount(directory)
    device = find_block_device(directory)
    return {
        "filesystem": mount.fstype if mount else None,
        "mount_point": mount.mountpoint if mount else None,
        "device": mount.device if mount else None,
        "network": bool(mount) and mount.fstype.lower() in NETWORK_FILESYSTEMS,
        "usb": device is not None and "/usb" in str(device),
        "rotational": is_rotational(device),
    }


def find_mount(path: Path) -> Any:
    """The mount with the longest path above `path`, as psutil gives it; None where unknown."""
    resolved = path.resolve()
    try:
        mounts = psutil.disk_partitions(all=True)
    except (OSError, RuntimeError):  # a sandbox that shows no mounts
        return None
    above = [mount for mount in mounts if resolved.is_relative_to(mount.mountpoint)]
    # If two mounts share a directory, the later one is visible.
    return max(reversed(above), key=lambda mount: len(mount.mountpoint), default=None)


def find_block_device(path: Path) -> Path | None:
    """The directory in Linux's /sys of the device that an existing path is on, or is; else None."""
    status = path.stat()
    if stat.S_ISBLK(status.st_mode):
        return _in_sys(status.st_rdev)
    found = _in_sys(status.st_dev)
    if found is None and (mount := find_mount(path)) is not None:
        # Some file systems (btrfs) number their volumes themselves; the mount names the device.
        with contextlib.suppress(OSError):
            device = Path(mount.device).stat()
            found = _in_sys(device.st_rdev) if stat.S_ISBLK(device.st_mode) else None
    return found


def _in_sys(number: int) -> Path | None:
    link = _BLOCK_DEVICES / f"{os.major(number)}:{os.minor(number)}"
    return link.resolve() if link.exists() else None


def is_rotational(device: Path | None) -> bool | None:
    """Whether the device, or the disk that it is a part of, reports that it rotates.

    Virtual devices report that whatever is below them, so they are not asked.
    """
    if device is None or "/virtio" in str(device):
        return None
    for place in (device, device.parent):
        with contextlib.suppress(OSError):
            return (place / "queue" / "rotational").read_text().strip() == "1"
    return None
