"""For tests of screens that stand alone: an application around one, and what is on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen

WAIT_SECONDS = 60.0


class Around(App[None]):
    """Shows one screen, and keeps its result and what it posted."""

    def __init__(self, make: Callable[[], Screen[Any]], **options: Any) -> None:
        super().__init__(**options)
        self.make = make
        self.results: list[Any] = []

    def on_mount(self) -> None:
        self.push_screen(self.make(), self.results.append)


def shown(app: App[Any]) -> str:
    """Every character on the screen."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    for _ in range(int(WAIT_SECONDS / 0.02)):
        await pilot.pause(0.02)
        if condition():
            return
    raise AssertionError(f"it did not happen:\n{shown(pilot.app)}")
