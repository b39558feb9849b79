"""Where the models that come with the package are: their checkpoints, and what is made of them.

Apart from what makes them, so that to look for models loads no converter.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import flashllm
from flashllm.errors import ModelError, ModelNotFound
from flashllm.flash.manifest import LAYOUT_VERSION, read_manifest
from flashllm.system.demos import DEMO_NAME, demo_checkpoint
from flashllm.system.paths import cache_dir

_HASHED_BYTES = 64 << 10
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


def is_made(directory: Path) -> bool:
    """Whether a complete converted model is there; one that is broken is made anew."""
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
