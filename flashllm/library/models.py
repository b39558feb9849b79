"""Results of a search. All texts are sanitised and on one line, ready to be shown."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from flashllm.system.demos import DEMO_NAME, demo_in

NO_TOKENIZER = (
    "this model came without a tokenizer, which a chat needs; "
    "`flashllm run MODEL --ids 1,2,3` works without one"
)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model to open: the directory of a converted one, or None for a demo."""

    path: Path | None = None
    name: str = field(default=DEMO_NAME, compare=False)
    """For display only; it does not identify the model."""
    demo: str = DEMO_NAME
    """Which of the models that came with the project, where there is no path."""

    @property
    def demo_name(self) -> str | None:
        """The demo that it is, if it is one; conversations name the directory of theirs."""
        return self.demo if self.path is None else demo_in(self.path.name)

    @property
    def target(self) -> str | None:
        """What an engine's process is told to open: a path, a demo's name, or None for the demo."""
        if self.path is not None:
            return os.path.join(os.curdir, self.path)  # a path, whatever it is called
        return None if self.demo == DEMO_NAME else self.demo


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A model to open, and in how much memory; None leaves that to the plan."""

    choice: ModelChoice
    memory: int | None = None
    """Ceiling of all processes together, in bytes."""
    context: int | None = None
    """The most tokens that its context can hold."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A converted model, or a directory that looks like one and has a `problem`."""

    path: Path
    name: str
    """Of its directory; what can be typed."""
    features: str = ""
    """Its shape in words."""
    encoding: str = ""
    size_bytes: int | None = None
    smallest_ceiling_bytes: int | None = None
    """The least memory that it runs in; None if the planner could not say."""
    tokens_per_second: float | None = None
    """What the planner expects with this device's profile; None without one."""
    ceiling_bytes: int | None = None
    """The memory for which this speed is expected."""
    assumed: str = ""
    """What the speed assumes of the model, where nothing was recorded."""
    quick: bool = False
    """Whether the speed is by a quick profile of disk and machine."""
    remarks: tuple[str, ...] = ()
    """Remarks before it is opened: lossy, no tokenizer, random weights."""
    problem: str = ""
    """Why it cannot be opened; "" where it can."""
    is_demo: bool = False
    """Whether it came with the project; `name` says which it is."""
    source: str = ""
    """The checkpoint that it was made from, as its manifest calls it."""
    has_tokenizer: bool = True
    """Whether it takes text; without one only ids, as `flashllm run --ids` gives them."""
    application_bytes: int = 0
    """The part of the least memory that is for the application's own process."""

    @property
    def is_too_large(self) -> bool:
        """Whether it needs more memory than it would get."""
        needs, ceiling = self.smallest_ceiling_bytes, self.ceiling_bytes
        return needs is not None and ceiling is not None and needs > ceiling

    @property
    def choice(self) -> ModelChoice:
        """The choice that opens it."""
        if self.is_demo:
            return ModelChoice(None, self.name, self.name)
        return ModelChoice(self.path, self.name)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in the Hugging Face cache."""

    path: Path
    """Its snapshot: the directory to convert."""
    name: str
    """organisation/name."""
    revision: str
    """Its name in the cache, with the beginning of its commit."""
    size_bytes: int
    """Bytes of its weights."""
    features: str = ""
    remark: str = ""
    problem: str = ""
    """Why it cannot be converted; "" if its config.json and its files allow it."""
