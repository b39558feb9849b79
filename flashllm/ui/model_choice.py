"""Which model the chat is to open."""

from __future__ import annotations

from flashllm.library import ModelChoice

__all__ = ["ModelChoice"]
