"""What a group of processes may still take, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from flashllm.system.memory_limit import available_bytes

MIB = 1 << 20


def free_bytes() -> int:
    return int(psutil.virtual_memory().available)


def group(place: Path, names: tuple[str, str], limit: str, used: int, cached: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / names[0]).write_text(f"{limit}\n")
    (place / names[1]).write_text(f"{used}\n")
    prefix = "total_" if "limit" in names[0] else ""
    (place / "memory.stat").write_text(
        f"anon 5\n{prefix}inactive_file {cached}\n{prefix}active_file 0\n"
    )


V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_a_limit_of_version_2(tmp_path: Path) -> None:
    own, mount = tmp_path / "own", tmp_path / "mount"
    own.write_text("0::/slice/app\n")
    group(mount / "slice" / "app", V2, "max", 30 * MIB, 0)
    group(mount / "slice", V2, str(100 * MIB), 60 * MIB, 10 * MIB)
    assert available_bytes(own, mount) == 50 * MIB


def test_a_limit_of_version_1(tmp_path: Path) -> None:
    own, mount = tmp_path / "own", tmp_path / "mount"
    own.write_text("5:cpu,cpuacct:/a\n4:memory:/a/b\n")
    group(mount / "memory" / "a" / "b", V1, str(80 * MIB), 60 * MIB, 5 * MIB)
    group(mount / "memory" / "a", V1, str(1 << 60), 60 * MIB, 0)
    assert available_bytes(own, mount) == 25 * MIB


@pytest.mark.parametrize("text", ["", "0::/gone\n", "nonsense\n", "4:memory:/../..\n"])
def test_without_a_limit_the_machine_counts(tmp_path: Path, text: str) -> None:
    own = tmp_path / "own"
    own.write_text(text)
    assert available_bytes(own, tmp_path) == pytest.approx(free_bytes(), rel=0.2)
    assert available_bytes(tmp_path / "absent", tmp_path) > 0


def test_what_is_used_up_is_none(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/\n")
    group(tmp_path, V2, str(10 * MIB), 12 * MIB, 0)
    assert available_bytes(own, tmp_path) == 0
