"""Profiles of devices that there are not, for tests of arithmetic."""

from __future__ import annotations

from flashllm.dtypes import DTYPES
from flashllm.hardware.curves import IoPoint, MachineRates
from flashllm.hardware.device import DeviceIdentity
from flashllm.hardware.machine_profile import Profile
from flashllm.planning.cost_model import CHUNK, NARROW

DEVICE = DeviceIdentity("test", "a device of the tests", "ext4", "rw", "nvme")
FLAT = 8e9
RATES = MachineRates(
    dram_bytes_per_second={1: FLAT, 2: FLAT},
    kernel_bytes_per_second={
        key.format(dtype): rate
        for dtype in DTYPES
        for key, rate in (("{}", FLAT), (NARROW, FLAT), (CHUNK, 1e11))
    },
    rows_bytes_per_second=dict.fromkeys(DTYPES, FLAT),
    layer_overhead_ns=100_000.0,
    token_overhead_ns=500_000.0,
)


def flash_profile(
    points: dict[tuple[int, int], float], rates: MachineRates | None = RATES
) -> Profile:
    """A profile of (bytes of a read, threads) -> bytes per second."""
    return Profile(
        device=DEVICE,
        machine_name="tests",
        date="2026-01-01",
        direct=True,
        points=tuple(
            IoPoint(size, threads, rate, (rate,), {}) for (size, threads), rate in points.items()
        ),
        fits=(),
        sequential_bytes_per_second=max(points.values()),
        rates=rates,
    )


def law(per_read_seconds: float, bytes_per_second: float, *threads: int) -> Profile:
    """A device of the law t = a + S/B at one thread, which more threads share out."""
    sizes = [512 << power for power in range(14)]
    return flash_profile(
        {
            (size, n): size / (per_read_seconds / n + size / bytes_per_second)
            for size in sizes
            for n in threads or (1, 4, 32)
        }
    )
