"""How fast conversions to a disk are here: measured by earlier ones, and kept; else estimated.

A conversion reads, encodes, hashes and writes at once, so one rate of bytes read and written says
more than those of its parts; training computes, at a rate of operations.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.errors import LayoutError
from flashllm.hardware import machine_profile
from flashllm.hardware.device import describe_device
from flashllm.schedule import ExpectedPhase, Schedule
from flashllm.system.atomic_file import write_whole
from flashllm.system.paths import cache_dir
from flashllm.untrusted.strict_json import parse_object

if TYPE_CHECKING:
    from flashllm.convert import PhaseWork

MOVED_BYTES_PER_SECOND = 800e6
"""Two processors read and wrote 13.3 GB of f16 in 28 to 32 s (docs/log, 2026-11-23)."""
OPERATIONS_PER_SECOND = 60e9
"""One thread trained a layer of 7B's shape at 90 (docs/log, 2026-11-20), older processors less."""
SECONDS_LEAST = 1.0
"""A conversion that took less says little of the next one."""
RATE_LEAST, RATE_MOST = 1e5, 1e15
FILE_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class ConversionSpeeds:
    """What a conversion to a disk is expected to do in a second."""

    moved_bytes_per_second: float = MOVED_BYTES_PER_SECOND
    operations_per_second: float = OPERATIONS_PER_SECOND
    origin: str = ""
    """Where the rate of bytes comes from, for people; "" where nothing was measured here."""

    def expect(self, phases: Sequence[PhaseWork]) -> tuple[ExpectedPhase, ...]:
        """The phases with the seconds that each is expected to take."""
        return tuple(
            ExpectedPhase(
                phase.name,
                "computing" if phase.operations else "moving",
                phase.moved_bytes / self.moved_bytes_per_second
                + phase.operations / self.operations_per_second,
                phase.times,
            )
            for phase in phases
        )


def speeds_for(destination: Path) -> ConversionSpeeds:
    """The speeds to expect of a conversion to `destination`, which need not exist."""
    device = describe_device(destination)
    kept = _kept().get(device.key, {})
    operations = _rate(kept.get("operations_per_second")) or OPERATIONS_PER_SECOND
    if moved := _rate(kept.get("moved_bytes_per_second")):
        return ConversionSpeeds(moved, operations, f"as an earlier conversion to {device.name}")
    profile = machine_profile.find(destination)
    if profile is not None:
        # It says nothing of writing; no copy is faster than reading alone.
        moved = min(MOVED_BYTES_PER_SECOND, profile.sequential_bytes_per_second)
        kind = "quick profile" if profile.quick else "profile"
        origin = f"by the {kind} of {device.name}, which knows its reads"
        return ConversionSpeeds(moved, operations, origin)
    return ConversionSpeeds(operations_per_second=operations)


def keep_speeds(destination: Path, phases: Sequence[PhaseWork], schedule: Schedule) -> None:
    """Keeps the rates of a conversion that is complete, for the next one to the same disk."""
    key = describe_device(destination).key
    kept = _kept()
    rates = dict(kept.get(key, {}))
    moved = sum(phase.moved_bytes for phase in phases if not phase.operations)
    operations = sum(phase.operations for phase in phases)
    found = {
        "moved_bytes_per_second": (moved, schedule.spent("moving")),
        "operations_per_second": (operations, schedule.spent("computing")),
    }
    for name, (amount, seconds) in found.items():
        if amount and seconds >= SECONDS_LEAST:
            # Half of what was kept stays: one conversion on a busy machine is no rule.
            before = _rate(rates.get(name)) or amount / seconds
            rates[name] = (before + amount / seconds) / 2
    if rates == kept.get(key, {}):
        return
    file = _file()
    # Only makes the next estimate better.
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(kept | {key: rates}).encode())


def _file() -> Path:
    return cache_dir() / "conversion-speeds.json"


def _kept() -> dict[str, dict[str, Any]]:
    """What earlier conversions measured, by device; {} where that cannot be read."""
    file = _file()
    try:
        with file.open("rb") as stream:
            values = parse_object(stream.read(FILE_BYTES_MAX), file, LayoutError)
    except (OSError, LayoutError):
        return {}
    return {key: value for key, value in values.items() if isinstance(value, dict)}


def _rate(value: object) -> float | None:
    """A rate that makes sense."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if RATE_LEAST <= value <= RATE_MOST else None
