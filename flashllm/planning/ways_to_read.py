"""How many threads read bundles, and across which gaps: pure arithmetic, by a profile."""

from __future__ import annotations

from dataclasses import dataclass

from flashllm.hardware.machine_profile import Profile
from flashllm.options import DEFAULT_IO_THREADS
from flashllm.planning.asked_options import within
from flashllm.units import MIB

GAP_BYTES = 4096
"""Bundles on flash at most this far apart share one read, unless the profile says otherwise."""
MAX_READ_BYTES = 512 << 10
"""The core's largest single read; longer runs of neighbours are cut."""
RESERVE_BYTES = 24 * MIB
_SCATTERED_SHARE = 0.3
"""The rate of scattered reads of bundles, as a share of that of reads in order, if no profile says
it: 0.2 to 0.5 were measured for bundles of 5 to 16 KB."""
THREAD_BYTES = 192 << 10
"""Memory of a reading thread: its stack, what the allocator keeps for it, a gap of GAP_BYTES."""
_MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class WayToRead:
    """How to read: the number of threads, and the largest gap that a read may span."""

    threads: int
    gap_bytes: int

    @property
    def reserve_bytes(self) -> int:
        """Bytes reserved for the threads, and for everything that no other component names."""
        # Each thread reads gaps into a scratch buffer of its own.
        gap_bytes = max(self.gap_bytes - GAP_BYTES, 0)
        return RESERVE_BYTES + self.threads * (THREAD_BYTES + gap_bytes)


def ways_to_read(
    stride: int, select: str, io_threads: int | None, profile: Profile | None
) -> list[WayToRead]:
    """Ways to read bundles of `stride` bytes, the best first: as the profile says, then without."""
    threads = within("io-threads", io_threads, DEFAULT_IO_THREADS, _MAX_THREADS)
    usual = WayToRead(threads, GAP_BYTES)
    if profile is None or not profile.chooses_reads:
        return [usual]
    # Where every neuron is needed, whole blocks are read.
    read_bytes = MAX_READ_BYTES if select == "all" else stride
    if io_threads is None:
        threads = min(profile.best_threads(read_bytes), _MAX_THREADS)
    return [WayToRead(threads, profile.gap_bytes(read_bytes, threads)), usual]


def scattered_share(stride: int, threads: int, profile: Profile | None) -> float:
    """The rate of reads of bundles here and there, as a share of that of reads in order."""
    if profile is None:
        return _SCATTERED_SHARE
    in_order = profile.throughput(MAX_READ_BYTES, threads)
    return min(profile.throughput(stride, threads) / in_order, 1.0)
