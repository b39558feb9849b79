"""The models that come with the package, each converted at first use into the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path

import flashllm
from flashllm.errors import CannotCreate, ModelError, ModelNotFound
from flashllm.flash.file_names import PREDICTORS_FILE
from flashllm.flash.manifest import LAYOUT_VERSION, read_manifest
from flashllm.progress import Progress
from flashllm.system.demos import DEMO_NAME, demo_checkpoint
from flashllm.system.paths import cache_dir

from .pipeline import convert

_HASHED_BYTES = 1 << 20
"""At once: the chat asks for the hash whenever it looks for models, within its ceiling."""


def demo_source(name: str = DEMO_NAME) -> Path:
    """The checkpoint of the demo of that name; `ModelNotFound` where it is not installed."""
    source = demo_checkpoint(name)
    if not (source / "config.json").is_file():
        raise ModelNotFound(f"{source}: the {name} is not installed; give the path of a model")
    return source


def demo_directory(name: str = DEMO_NAME) -> Path:
    """Where the converted demo of that name is, once this version's has been made.

    In the user's cache directory, or below FLASHLLM_HOME where that is set.
    """
    return cache_dir() / "models" / f"{name}-{_source_hash(demo_source(name))}"


def demo_model(progress: Progress | None = None, name: str = DEMO_NAME) -> Path:
    """Directory of the converted demo; made when absent, damaged, or of another version.

    Two processes at once are safe: one converts, the other waits.
    """
    source, directory = demo_source(name), demo_directory(name)
    models = directory.parent
    if _opens(directory):
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
        if not _opens(directory):
            shutil.rmtree(directory, ignore_errors=True)
            predictors = source / PREDICTORS_FILE
            chosen = predictors if predictors.is_file() else "none"
            convert(source, directory, predictors=chosen, progress=progress)
    finally:
        os.close(lock)
    return directory


def _opens(directory: Path) -> bool:
    """Whether a complete converted model is there."""
    try:
        read_manifest(directory)
    except (ModelError, ModelNotFound):
        return False
    return True


def _source_hash(source: Path) -> str:
    """16 hexadecimal digits over the names and the bytes of all files of the demo."""
    digest = hashlib.sha256(f"layout {LAYOUT_VERSION}, flashllm {flashllm.__version__}".encode())
    for path in sorted(path for path in source.iterdir() if path.is_file()):
        digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while part := file.read(_HASHED_BYTES):
                digest.update(part)
    return digest.hexdigest()[:16]
