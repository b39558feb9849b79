"""The system's counts for this process; None for those that it does not tell."""

from __future__ import annotations

import contextlib
import dataclasses
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashllm.bench import page_cache
from flashllm.system.memory import rss_bytes, rss_peak_bytes
from flashllm.telemetry.costs import TokenCost

_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    """Counts since the process began, or between two moments; times in nanoseconds."""

    device_bytes_read: int | None
    """Bytes that this process caused to be read from block devices, without the page cache."""
    major_faults: int
    voluntary_switches: int
    involuntary_switches: int
    user_ns: int
    system_ns: int

    @classmethod
    def now(cls) -> ProcessCounts:
        """The counts now, of all threads together."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            device_bytes_read=page_cache.device_bytes(),
            major_faults=usage.ru_majflt,
            voluntary_switches=usage.ru_nvcsw,
            involuntary_switches=usage.ru_nivcsw,
            user_ns=round(usage.ru_utime * 1e9),
            system_ns=round(usage.ru_stime * 1e9),
        )

    def since(self, earlier: ProcessCounts) -> ProcessCounts:
        """The difference to an earlier moment."""
        late, early = self.device_bytes_read, earlier.device_bytes_read
        return ProcessCounts(
            device_bytes_read=None if late is None or early is None else late - early,
            major_faults=self.major_faults - earlier.major_faults,
            voluntary_switches=self.voluntary_switches - earlier.voluntary_switches,
            involuntary_switches=self.involuntary_switches - earlier.involuntary_switches,
            user_ns=self.user_ns - earlier.user_ns,
            system_ns=self.system_ns - earlier.system_ns,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


class PeakMemory:
    """Peak memory of runs, without the measurements of the machine in between."""

    def __init__(self) -> None:
        self._is_clean = True
        self._left_bytes = 0

    def of_run(self, costs: list[TokenCost]) -> int | None:
        """Peak bytes of a run; None if neither the system nor its tokens tell."""
        peak = max((cost.rss_bytes for cost in costs), default=None)
        if self._is_clean:
            peak = rss_peak_bytes()
        return None if peak is None else peak - self._left_bytes

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Context manager: memory taken within does not count, nor what remains of it."""
        before_bytes = rss_bytes()
        yield
        self._left_bytes += max(rss_bytes() - before_bytes, 0)
        self._is_clean = False
        with contextlib.suppress(OSError):  # Linux only
            _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
            self._is_clean = True
