"""The interface of a generated token, for code that shows or reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flashllm.telemetry.costs import TokenCost


class EngineToken(Protocol):
    """One generated token; `text` is what can be shown now and may be empty."""

    @property
    def id(self) -> int: ...  # noqa: D102
    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def cost(self) -> TokenCost: ...  # noqa: D102
