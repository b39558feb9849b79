"""The system's counts for this process; None for those that it does not tell."""

from __future__ import annotations

import dataclasses
import resource
from dataclasses import dataclass
from typing import Any

from flashllm.bench import page_cache


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
