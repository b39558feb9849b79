"""When text is shown: rarely where it costs much, and behind a key while somebody types."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flashllm.ui.chat import refresh_rate
from flashllm.ui.chat.refresh_rate import (
    BETWEEN_KEYS_SECONDS,
    SECONDS_LEAST,
    SECONDS_MOST,
    SHARE,
    TYPING_SECONDS,
    RefreshRate,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Wall time and time of the processor, as the test says."""
    times = SimpleNamespace(now=100.0, computed=1.0)
    monkeypatch.setattr(
        refresh_rate,
        "time",
        SimpleNamespace(monotonic=lambda: times.now, thread_time=lambda: times.computed),
    )
    return times


@pytest.mark.parametrize(
    ("cost", "typed_before", "wait"),
    [
        (0.0, None, SECONDS_LEAST),
        (0.006, None, 0.006 / SHARE),
        (1.0, None, SECONDS_MOST),
        (0.0, 0.1, SECONDS_MOST),
        (1.0, 0.1, SECONDS_MOST),
        (0.0, TYPING_SECONDS + 0.1, SECONDS_LEAST),
        (1.0, TYPING_SECONDS + 0.1, SECONDS_MOST),
    ],
)
def test_how_long_is_waited(
    clock: SimpleNamespace, cost: float, typed_before: float | None, wait: float
) -> None:
    one = RefreshRate()
    if typed_before is not None:
        clock.now -= typed_before
        one.typed()
        clock.now += typed_before
    one.shown()
    clock.computed += cost
    one.shown()
    clock.computed += cost
    assert one.wait_seconds() == pytest.approx(wait)


def test_what_is_overdue_is_shown_at_once(clock: SimpleNamespace) -> None:
    one = RefreshRate()
    one.shown()
    clock.now += 2 * SECONDS_MOST
    assert 0 < one.wait_seconds() < SECONDS_LEAST


def test_text_follows_a_key_but_not_each_of_many(clock: SimpleNamespace) -> None:
    one = RefreshRate()
    one.shown()
    clock.now += BETWEEN_KEYS_SECONDS / 2
    assert not one.fits_behind_key()
    clock.now += BETWEEN_KEYS_SECONDS
    assert one.fits_behind_key()
