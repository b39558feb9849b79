"""What a conversion says that was stopped: what is on the disk by then, and what to do next."""

from __future__ import annotations

import os
from pathlib import Path

from flashllm.flash.file_names import MANIFEST_FILE
from flashllm.flash.unfinished import partial_path, pulled_path, training_path


def format_stopped(destination: Path, existed: bool) -> str:
    """For a conversion of a source that is here; `existed`: the destination was there before."""
    if words := _settled(destination, existed):
        return words
    partial = partial_path(destination, os.getpid())
    left = f"nothing is left at {destination}"
    if os.path.lexists(partial):
        left = f"{partial} is left, unfinished; the next conversion to the same place removes it"
    work = training_path(destination)
    if os.path.lexists(work):
        return (
            f"stopped; {left}. What was trained is kept in {work}: the same command converts again"
            " and goes on training from there"
        )
    return f"stopped; {left}. The same command converts again, from the beginning"


def format_stopped_pull(destination: Path, existed: bool) -> str:
    """For a conversion of what is being fetched, which keeps what it has written."""
    if words := _settled(destination, existed):
        return words
    kept = pulled_path(destination)
    if os.path.lexists(kept):
        return f"stopped; what is written so far stays in {kept}. Run the same command to go on"
    return f"stopped before anything was written to {destination}. Run the same command again"


def format_not_durable(destination: Path, reason: str) -> str:
    """For a model that is complete, but whose name may not outlive a loss of power."""
    return (
        f"{destination}: the model is complete, but {destination.parent} could not be made durable"
        f" ({reason}): a loss of power soon may undo it. Check that disk; `flashllm verify` checks"
        " the model"
    )


def is_complete(destination: Path) -> bool:
    """Whether a model is there: it gets its name when it is complete, manifest and all."""
    return os.path.isfile(destination / MANIFEST_FILE)


def _settled(destination: Path, existed: bool) -> str:
    """Where nothing is left to be done at the destination; else ""."""
    if existed:
        return f"stopped; {destination} was there before, and is as it was"
    if is_complete(destination):
        kept = pulled_path(destination)
        rest = f"; {kept}, what is left of its source, can go" if os.path.lexists(kept) else ""
        return f"stopped when the model was complete: it is at {destination}, to be used{rest}"
    return ""
