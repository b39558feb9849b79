"""A hypervisor that takes away what it is told to, for the tests of what measures runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flashllm.bench.steal_time import ProcessorTime

TICKS = 1000


def take_away(monkeypatch: pytest.MonkeyPatch, shares: Sequence[float]) -> None:
    """From one run to the next, these parts of the time; nothing of what comes after them."""
    calls, now = 0, ProcessorTime(TICKS, 0)

    def look() -> ProcessorTime:
        nonlocal calls, now
        run, is_end = divmod(calls, 2)
        calls += 1
        if is_end:
            share = shares[run] if run < len(shares) else 0.0
            now = ProcessorTime(now.ticks + TICKS, now.stolen_ticks + round(share * TICKS))
        return now

    monkeypatch.setattr(ProcessorTime, "now", look)
