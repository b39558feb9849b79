"""Pages that were closed are gone, whatever they looked up meanwhile."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
from textual.widget import Widget

from flashllm.library.library import Library
from flashllm.ui.chat.screen import ChatScreen
from flashllm.ui.closed_widgets import collect_closed_widgets
from tests.support.chat_pilot import make_app, ready
from tests.support.fake_engine import FakeModel
from tests.support.screens import until

OPENED, TRIES = 2, 100
KEPT_MOST = 1
"""What the event loop notes beside a call that is yet to come may name one page that is closed, and
a search that was begun asks a process of its own for seconds. More would add up."""


@pytest.mark.parametrize("wait_seconds", [0.0, 0.3])
async def test_pages_do_not_add_up(tmp_path: Path, wait_seconds: float) -> None:
    """Also none that was closed while it was looking for models on a thread."""
    app = make_app(
        FakeModel(["fine"]), store=tmp_path / "s.db", library=lambda: Library(home=tmp_path)
    )
    async with app.run_test(size=(100, 30)) as pilot:
        chat = (await ready(pilot)).chat
        seen = list[weakref.ref[Widget]]()
        for keys in (["f1"], ["f4"], ["f5"], ["f5", "c"], ["f6"]) * OPENED:
            for key in keys:
                before = len(app.screen_stack)
                await pilot.press(key)
                await until(pilot, lambda before=before: len(app.screen_stack) > before)
                seen.append(weakref.ref(app.screen))
            await pilot.pause(wait_seconds)
            while app.screen is not chat:
                await pilot.press("escape")
                await pilot.pause()
        assert isinstance(app.screen, ChatScreen)
        assert len(seen) == 6 * OPENED

        for _ in range(TRIES):  # the last messages of closed widgets are on their way
            collect_closed_widgets(app)
            gc.collect()  # what the first one freed may have held others
            if not (kept := [repr(one) for gone in seen if (one := gone()) is not None]):
                break
            await pilot.pause(0.1)
        assert len(kept) <= KEPT_MOST
