"""Devices: by what Linux's /sys says of them, and where it says nothing."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashllm.hardware import device as devices
from flashllm.hardware.device import KINDS, describe_device, machine_name
from flashllm.system import filesystem as storage


def pretend(monkeypatch: pytest.MonkeyPatch, block: Path | None, filesystem: str = "ext4") -> None:
    mount = SimpleNamespace(
        device="/dev/x", mountpoint="/data", fstype=filesystem, opts="rw,noatime"
    )
    monkeypatch.setattr(devices, "find_mount", lambda path: mount)
    monkeypatch.setattr(devices, "find_block_device", lambda path: block)


def make_disk(root: Path, where: str, rotational: str = "0", **attributes: str) -> Path:
    disk = root / where
    (disk / "queue").mkdir(parents=True)
    (disk / "queue" / "rotational").write_text(rotational)
    for name, text in attributes.items():
        (disk / name).write_text(text + "\n")
    return disk


@pytest.mark.parametrize(
    ("where", "rotational", "kind"),
    [
        ("pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1", "0", "nvme"),
        ("pci0000:00/ata1/host0/sda", "0", "ssd"),
        ("pci0000:00/ata1/host0/sda", "1", "disk"),
        ("pci0000:00/usb2/2-1/host6/sdb", "1", "usb"),
        ("pci0000:00/0000:00:02.0/virtio1/block/vda", "1", "virtual"),
        ("devices/virtual/block/loop0", "0", "virtual"),
        ("devices/virtual/block/zram0", "0", "memory"),
    ],
)
def test_the_kind_follows_from_the_path_in_sys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, rotational: str, kind: str
) -> None:
    pretend(monkeypatch, make_disk(tmp_path, where, rotational))
    assert describe_device(tmp_path).kind == kind


def test_a_partition_is_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = make_disk(tmp_path, "nvme/nvme0n1", serial="S1")
    for number in "12":
        (disk / f"nvme0n1p{number}").mkdir()
        (disk / f"nvme0n1p{number}" / "partition").write_text(number)
    keys = set()
    for block in (disk, disk / "nvme0n1p1", disk / "nvme0n1p2"):
        pretend(monkeypatch, block)
        keys.add(describe_device(tmp_path).key)
    assert len(keys) == 1
    pretend(monkeypatch, disk, "xfs")  # another file system reads at another speed
    assert describe_device(tmp_path).key not in keys


def test_a_mapped_device_is_of_the_kind_that_it_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = make_disk(tmp_path, "nvme/nvme0n1")
    mapped = make_disk(tmp_path, "devices/virtual/block/dm-0")
    (mapped / "slaves").mkdir()
    (mapped / "slaves" / "nvme0n1").symlink_to(disk)
    (mapped / "dm").mkdir()
    (mapped / "dm" / "name").write_text("crypt\n")
    pretend(monkeypatch, mapped)
    found = describe_device(tmp_path)
    assert (found.kind, found.name) == ("nvme", "crypt (dm-0)")


def test_the_key_tells_disks_and_machines_apart_and_no_serial_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for serial, machine in (("S1", "a"), ("S2", "a"), ("S1", "b")):
        disk = make_disk(tmp_path / f"{serial}{machine}", "nvme/nvme0n1", serial=serial)
        pretend(monkeypatch, disk)
        monkeypatch.setattr(devices, "_machine_id", lambda machine=machine: machine)
        keys.append(describe_device(tmp_path).key)
    assert len(set(keys)) == 3
    assert all(re.fullmatch(r"nvme0n1-[0-9a-f]{12}", key) for key in keys)


@pytest.mark.parametrize(
    ("filesystem", "kind"), [("nfs4", "network"), ("tmpfs", "memory"), ("apfs", "unknown")]
)
def test_without_a_device_the_file_system_tells_the_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filesystem: str, kind: str
) -> None:
    pretend(monkeypatch, None, filesystem)
    found = describe_device(tmp_path)
    assert (found.kind, found.filesystem, found.mount_options) == (kind, filesystem, "rw,noatime")


def test_a_system_that_tells_nothing_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> Any:
        raise OSError("no mounts here")

    monkeypatch.setattr(storage.psutil, "disk_partitions", refuse)
    monkeypatch.setattr(storage, "_BLOCK_DEVICES", tmp_path / "absent")
    found = describe_device(tmp_path)
    assert (found.name, found.filesystem, found.kind) == ("unknown", "unknown", "unknown")


def test_this_machine_is_described() -> None:
    found = describe_device(Path("/nowhere/at/all"))
    assert found.kind in KINDS
    assert found == describe_device(Path("/"))
    assert "CPUs" in machine_name()
