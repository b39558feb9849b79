"""Pictures of the chat in each of its states; `pytest --snapshot-update` draws them anew."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.widgets import Input, TextArea

from tests.support.looks import LOOKS, Look, still

pytestmark = pytest.mark.usefixtures("footer")
CASES = [(look, size) for look in LOOKS for size in look.sizes]


@pytest.mark.parametrize(
    ("look", "size"), CASES, ids=[f"{look.name}-{size[0]}x{size[1]}" for look, size in CASES]
)
def test_look(
    look: Look,
    size: tuple[int, int],
    snap_compare: Any,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in look.environment:
        monkeypatch.setenv(name, value)
    time.tzset()
    # Seconds that have passed are on the screen; here none pass.
    stopped = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr("flashllm.ui.chat.status.time", stopped)
    # Nor do cursors blink. To stop one later is too late: lines of the half second without it are
    # kept by Textual, and stand for those of a cursor that does not blink.
    monkeypatch.setattr(TextArea, "_toggle_cursor_blink_visible", lambda _: None)
    monkeypatch.setattr(Input, "_toggle_cursor", lambda _: None)

    pictures: list[str] = []

    async def run_before(pilot: Any) -> None:
        await look.prepare(pilot)
        pictures.append(await still(pilot))

    same = snap_compare(look.make(), terminal_size=size, run_before=run_before)
    # The report with both pictures is a file, which nobody has who reads only what was printed.
    assert same, difference(request.node.name, pictures)


def difference(name: str, pictures: Sequence[str]) -> str:
    """What the picture has that the kept one has not, and the other way round."""
    kept = Path(__file__).parent / "__snapshots__" / "test_snapshots" / f"{name}.svg"
    if not kept.exists() or not pictures:
        return f"{kept}: {'nothing was drawn' if kept.exists() else 'not kept yet'}"
    # Names of styles hold a number made of all the text.
    before, now = (
        re.sub(r"terminal-\d+", "terminal", svg).replace("><", ">\n<").splitlines()
        for svg in (kept.read_text(), pictures[-1])
    )
    return "\n".join(difflib.unified_diff(before, now, "kept", "now", n=0, lineterm=""))


def test_there_are_as_many_as_we_say() -> None:
    assert len(CASES) >= 40
    assert len({look.name for look in LOOKS}) == len(LOOKS)
