"""What a part of the chat that is no widget may ask of the widget that owns it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from textual.app import App
    from textual.message import Message
    from textual.timer import Timer


class Owner(Protocol):
    """Any widget: it takes messages, and calls back later. Nothing else of it is known."""

    @property
    def app(self) -> App[Any]:
        """The application that it is in."""
        ...

    def post_message(self, message: Message) -> bool:
        """Puts a message into the owner's queue."""
        ...

    def set_timer(
        self, delay: float, callback: Callable[[], Awaitable[None] | None] | None = None
    ) -> Timer:
        """Calls back once, after `delay` seconds."""
        ...

    def call_after_refresh(self, callback: Callable[[], object]) -> bool:
        """Calls back when what changed is on the screen."""
        ...
