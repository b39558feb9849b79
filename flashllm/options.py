"""How a model is opened: the options, their choices and their defaults. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Which model to open, and how: the arguments of `local.open_model`."""

    path: str | None = None
    memory: int | None = None
    select: str | None = None
    policy: str | None = None
    window: int | None = None
    io_threads: int | None = None
    overlap: str | None = None
    direct: bool = True
    context: int | None = None
    kv_dtype: str | None = None
    profile: str | None = None


DEFAULT_IO_THREADS = 32
DEFAULT_CONTEXT = 2048

Overlap = Literal["none", "hits", "attention", "layer"]
"""What of a token is computed while its bundles are read: nothing; what needs only bundles that are
there; also attention, behind reads that were guessed before it; also the layer before."""
DEFAULT_OVERLAP: Overlap = "layer"
