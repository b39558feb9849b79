"""What `bench io` reads (a file, a model's bundles or a block device), and at what sizes."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashllm.errors import BenchmarkInvalid, ModelNotFound, NotACheckpoint, ReadFailed, UsageError
from flashllm.flash.file_names import BUNDLES_FILE
from flashllm.hardware.device import DeviceIdentity, describe_device
from flashllm.system.filesystem import find_block_device

SIZES = tuple(4096 << power for power in range(11))
THREADS = (1, 2, 4, 8, 16, 32, 64, 128)
READS_LEAST = 64
"""A file must hold this many reads of the largest size, or they are not random."""
FILE_BYTES_LEAST = 16 << 20
FILE_BYTES_ENOUGH = 1 << 30
"""From this size on, a device's own cache is a small part."""
SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Target:
    """A file to read, its size, and its device."""

    path: Path
    file_bytes: int
    device: DeviceIdentity

    @property
    def remarks(self) -> list[str]:
        """Remarks on what limits the meaning of the figures."""
        found = []
        if self.device.kind == "network":
            found.append(f"{self.path} lies on a network file system ({self.device.filesystem})")
        if self.device.kind == "usb":
            found.append(
                f"{self.path} lies on a USB device; an internal one is several times faster"
            )
        if self.file_bytes < FILE_BYTES_ENOUGH:
            found.append(
                f"{self.path} has only {self.file_bytes >> 20} MiB, which the device may keep in "
                f"memory of its own; one of {FILE_BYTES_ENOUGH >> 20} MiB or more says more"
            )
        return found


def find_target(path: Path) -> Target:
    """The file to read: `path`, or the bundles of the converted model there.

    `ModelNotFound`, `NotACheckpoint`, `ReadFailed`, `BenchmarkInvalid` or `UsageError` if there is
    none.
    """
    # Not by methods of Path, which raise where a name cannot be looked at.
    if not os.path.exists(path):
        raise ModelNotFound(f"{path}: there is no such file or directory")
    if os.path.isdir(path):
        if not os.path.isfile(path / BUNDLES_FILE):
            raise NotACheckpoint(
                f"{path}: is no converted model (there is no {BUNDLES_FILE}); give a converted "
                f"model, or a file of {FILE_BYTES_ENOUGH >> 30} GiB or more on the disk to measure"
            )
        path = path / BUNDLES_FILE
    mode = path.stat().st_mode
    # Looked at before it is opened: opening a pipe would wait for somebody to write.
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        raise UsageError(f"{path}: is neither a file nor a block device; give one of those")
    try:
        with path.open("rb") as stream:
            file_bytes = stream.seek(0, os.SEEK_END)
    except OSError as error:
        raise ReadFailed(
            f"{path}: cannot be read ({error.strerror}); give a file that you may read"
        ) from error
    device = describe_device(path)
    if device.kind == "memory":
        raise BenchmarkInvalid(
            f"{path}: lies in memory ({device.filesystem}), not on a device; give a file on a disk"
        )
    if _is_buffered_loop(path):
        raise BenchmarkInvalid(
            f"{path}: lies on a loop device whose own file is read through the page cache; give a "
            "file on the disk below, or set the device up with `losetup --direct-io=on`"
        )
    return Target(path, file_bytes, device)


def _is_buffered_loop(path: Path) -> bool:
    """Whether it is a loop device over a file in the page cache, which proves nothing."""
    block = find_block_device(path)
    for disk in (block, block.parent) if block else ():
        with contextlib.suppress(OSError):
            return (disk / "loop" / "dio").read_text(encoding="ascii").strip() == "0"
    return False


def choose_sizes(target: Target, wanted: Sequence[int] | None) -> tuple[list[int], str]:
    """Read sizes that fit into the file, and a sentence on those left out, or "".

    `UsageError` for sizes that direct reads cannot have, and if the file is too small for all.
    """
    sizes = sorted(set(wanted or SIZES))
    for size in sizes:
        if size % SECTOR_BYTES or not SECTOR_BYTES <= size <= 64 << 20:
            raise UsageError(
                f"--sizes: {size} bytes is no size of a direct read; give multiples of "
                f"{SECTOR_BYTES}, such as 4KiB, up to 64MiB"
            )
    largest = target.file_bytes // READS_LEAST
    kept = [size for size in sizes if size <= largest]
    least = max(READS_LEAST * sizes[0], FILE_BYTES_LEAST)
    enough = max(READS_LEAST * sizes[-1], FILE_BYTES_LEAST)
    if target.file_bytes < least:
        raise UsageError(
            f"{target.path}: has {target.file_bytes} bytes, too few to be measured; give a file "
            f"of {-(-least >> 20)} MiB or more, and of {-(-enough >> 20)} MiB for all sizes"
        )
    left_out = len(sizes) - len(kept)
    return kept, (
        f"{left_out} larger read sizes are left out; a file of {-(-enough >> 20)} MiB has room for"
        " all"
        if left_out
        else ""
    )


def choose_threads(wanted: Sequence[int] | None) -> list[int]:
    """Numbers of threads, ascending; `UsageError` for more than the reader supports."""
    threads = sorted(set(wanted or THREADS))
    if threads[-1] > 1024:
        raise UsageError(f"--threads: {threads[-1]} are too many; give 1 to 1024")
    return threads
