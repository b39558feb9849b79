"""How a model is opened: its options, their choices and their defaults. Standard library only.

`settings.resolve` makes ModelOptions of flags, environment and config.toml, `library.open` of what
Python code says; everyone below gets one, whole and frozen.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, Unpack, get_args

Select = Literal["predicted", "gate", "all", "oracle"]
"""What finds the active set: low-rank predictors, which are lossy; or exactly, by a gate in memory,
by computing all neurons, or by those that turn out not to be zero."""
SELECTORS: tuple[Select, ...] = get_args(Select)

Policy = Literal["blend", "frequency", "lru2", "lru", "window"]
"""Which bundles stay in DRAM; `window` is the paper's."""
POLICIES: tuple[Policy, ...] = get_args(Policy)
DEFAULT_POLICY: Policy = "blend"

KvDType = Literal["f32", "f16", "int8"]
"""Encoding of keys and values."""
KV_DTYPES: tuple[KvDType, ...] = get_args(KvDType)
DEFAULT_KV_DTYPE: KvDType = "f16"

Overlap = Literal["none", "hits", "attention", "layer"]
"""What of a token is computed while its bundles are read: nothing; what needs only bundles that are
there; also attention, behind reads that were guessed before it; also the layer before."""
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
DEFAULT_OVERLAP: Overlap = "layer"

DEFAULT_IO_THREADS = 32
DEFAULT_CONTEXT = 2048


class ModelOverrides(TypedDict, total=False):
    """The fields of ModelOptions, as keywords."""

    memory: int | None
    select: Select | None
    policy: Policy | None
    window: int | None
    io_threads: int | None
    overlap: Overlap | None
    direct: bool
    context: int | None
    kv_dtype: KvDType | None
    profile: str | os.PathLike[str] | None
    application_bytes: int
    contexts: int


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How to open a model; None leaves a choice to the plan."""

    memory: int | None = None
    """Ceiling in bytes for the resident memory of the whole process."""
    select: Select | None = None
    policy: Policy | None = None
    window: int | None = None
    """Tokens, for the policy window, which it implies."""
    io_threads: int | None = None
    overlap: Overlap | None = None
    direct: bool = True
    """Read past the page cache, where the file system can."""
    context: int | None = None
    """Tokens that a context may hold."""
    kv_dtype: KvDType | None = None
    profile: str | os.PathLike[str] | None = None
    """A file to plan with, instead of what was measured of the device that the model is on."""
    application_bytes: int = 0
    """Of the ceiling, what is left to a process beside this one."""
    contexts: int = 1
    """Contexts that may live at once, the default one included."""

    def having(self, **overrides: Unpack[ModelOverrides]) -> ModelOptions:
        """The same with some options changed."""
        return replace(self, **overrides)


DEFAULT_OPTIONS = ModelOptions()
