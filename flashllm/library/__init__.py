"""Models on this machine: those that are converted, checkpoints that could be, conversions.

Goals: everything read is untrusted, so one broken directory is a line with its problem, never the
end of the list; looking takes bounded time; nothing but a conversion writes. No torch, no textual.
`collection.Library` finds, `job.Conversions` converts.
"""

from __future__ import annotations

from .found import Checkpoint, FoundModel, ModelChoice

__all__ = ["Checkpoint", "FoundModel", "ModelChoice"]
