"""What a directory lies on: file system, device, and whether that is far away or slow."""

from __future__ import annotations

import contextlib
import os
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
    """File system, mount point and device of an existing directory; None for what is not known."""
    mount = _mount(directory)
    device = _block_device(directory)
    return {
        "filesystem": mount.fstype if mount else None,
        "mount_point": mount.mountpoint if mount else None,
        "device": mount.device if mount else None,
        "network": bool(mount) and mount.fstype.lower() in NETWORK_FILESYSTEMS,
        "usb": device is not None and "/usb" in str(device),
        "rotational": _rotational(device),
    }


def _mount(directory: Path) -> Any:
    """The mount with the longest path above the directory."""
    resolved = directory.resolve()
    above = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if resolved.is_relative_to(mount.mountpoint)
    ]
    return max(above, key=lambda mount: len(mount.mountpoint), default=None)


def _block_device(directory: Path) -> Path | None:
    """The device in Linux's /sys, where the directory lies on one."""
    number = directory.stat().st_dev
    link = _BLOCK_DEVICES / f"{os.major(number)}:{os.minor(number)}"
    return link.resolve() if link.exists() else None


def _rotational(device: Path | None) -> bool | None:
    """Whether the device, or the disk that it is a part of, says that it turns.

    Virtual devices say so whatever lies under them; they are not asked.
    """
    if device is None or "/virtio" in str(device):
        return None
    for place in (device, device.parent):
        with contextlib.suppress(OSError):
            return (place / "queue" / "rotational").read_text().strip() == "1"
    return None
