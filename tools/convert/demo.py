"""The models that come with the package, each converted at first use into the user's cache."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from flashllm.errors import CannotCreate
from flashllm.flash.demo_places import demo_directory, demo_source, is_made
from flashllm.flash.file_names import PREDICTORS_FILE
from flashllm.progress import Progress
from flashllm.system.demos import DEMO_NAME

from .pipeline import convert


def demo_model(progress: Progress | None = None, name: str = DEMO_NAME) -> Path:
    """Directory of the converted demo; made when absent, damaged, or of another version.

    Two processes at once are safe: one converts, the other waits.
    """
    source, directory = demo_source(name), demo_directory(name)
    models = directory.parent
    if is_made(directory):
        return directory
    try:
        models.mkdir(parents=True, exist_ok=True)
        lock = os.open(models / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        raise CannotCreate(
            f"{models}: cannot be written: {problem.strerror}; set FLASHLLM_HOME to a directory "
            "that can"
        ) from problem
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made(directory):
            shutil.rmtree(directory, ignore_errors=True)
            predictors = source / PREDICTORS_FILE
            chosen = predictors if predictors.is_file() else "none"
            convert(source, directory, predictors=chosen, progress=progress)
    finally:
        os.close(lock)
    return directory
