"""All targets, by name."""

from __future__ import annotations

from .checkpoints import CHECKPOINT_TARGETS
from .converted_models import CONVERTED_MODEL_TARGETS
from .target import Target
from .texts import TEXT_TARGETS
from .user_files import USER_FILE_TARGETS

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *CONVERTED_MODEL_TARGETS,
        *CHECKPOINT_TARGETS,
        *TEXT_TARGETS,
        *USER_FILE_TARGETS,
    )
}
