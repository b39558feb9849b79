"""Models on this machine: those that are converted, checkpoints that could be, conversions.

Goals: everything read is untrusted, so one broken directory is a line with its problem, never the
end of the list; looking takes bounded time; nothing is written. No torch, no textual.
"""

from __future__ import annotations

from .found import Checkpoint, FoundModel, ModelChoice

__all__ = ["Checkpoint", "FoundModel", "ModelChoice"]
