"""What lies beside a model while it is made, or after its making was interrupted: paths alone.

DST.partial-PROCESS    a conversion, removed when it ends, however it ends
DST.partial-pull       a conversion of what is being fetched; the next one goes on with it
DST.predictors-work    the training of predictors; the next one goes on with it
"""

from __future__ import annotations

import re
from pathlib import Path

PULLED = "pull"
PARTIAL_NAME = re.compile(rf"(.*)\.partial-(\d+|{PULLED})", re.DOTALL)
"""Name of the model, and the process that writes it or PULLED."""


def partial_path(destination: Path, process: int) -> Path:
    """Where a process writes the model that is to be at `destination`."""
    return destination.with_name(f"{destination.name}.partial-{process}")


def pulled_path(destination: Path) -> Path:
    """Where the model grows while its checkpoint is fetched."""
    return destination.with_name(f"{destination.name}.partial-{PULLED}")


def training_path(destination: Path) -> Path:
    """Where a training of predictors keeps what it has done."""
    destination = destination.absolute()
    return destination.with_name(f"{destination.name}.predictors-work")
