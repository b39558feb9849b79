"""Which file a quick profile reads: the largest that is there anyway on the disk of a model.

Nothing is written to measure a disk. Where its models are small, as the demo is, the largest
library that the program comes with serves, if it lies on the same disk: reads of a small file may
be answered by a device's own memory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from flashllm.flash.file_names import BUNDLES_FILE
from flashllm.library.hf_cache import cache_directories
from flashllm.system.paths import cache_dir, models_dir

FILE_BYTES_ENOUGH = 1 << 30
"""From this size on, no larger one is looked for."""
FILE_BYTES_SMALL = 64 << 20
"""Below this, also the files of the libraries are looked at."""
HOLES_SHARE = 0.01
"""A file may lack so much: what was never written is not read from a device."""
FILES_MAX = 2000
"""Files of the Hugging Face cache that are looked at."""


def quick_target(path: Path) -> Path:
    """The file to read for a quick profile of the disk of `path`, a model's directory.

    A path that is no directory is taken as it is; so is one on whose disk nothing can be found.
    """
    if not os.path.isdir(path):
        return path
    device = os.stat(path).st_dev
    best = _largest([path / BUNDLES_FILE], device)
    if _size(best) < FILE_BYTES_ENOUGH:
        best = _largest([best, *_model_files()], device)
    if _size(best) < FILE_BYTES_SMALL:
        best = _largest([best, *_libraries()], device)
    return best or path


def _model_files() -> Iterator[Path]:
    """Bundles of the user's models, and weights in the Hugging Face cache."""
    for directory in (models_dir(), cache_dir() / "models"):
        with contextlib.suppress(OSError):
            yield from (entry / BUNDLES_FILE for entry in directory.iterdir())
    for root in cache_directories():
        found = (file for blobs in root.glob("models--*/blobs") for file in blobs.iterdir())
        with contextlib.suppress(OSError):
            yield from (file for _, file in zip(range(FILES_MAX), found, strict=False))


def _libraries() -> list[Path]:
    """The shared libraries of torch, which is always installed; it is not imported."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin is not None:
            return list((Path(spec.origin).parent / "lib").iterdir())
    return []


def _largest(files: list[Path | None], device: int) -> Path | None:
    """The largest regular file on a device that is written in full; None if there is none."""
    best: Path | None = None
    for file in files:
        with contextlib.suppress(OSError):
            if file is None or not file.is_file():
                continue
            status = file.stat()
            is_whole = status.st_blocks * 512 >= status.st_size * (1 - HOLES_SHARE)
            if status.st_dev == device and is_whole and status.st_size > _size(best):
                best = file
    return best


def _size(file: Path | None) -> int:
    return 0 if file is None else file.stat().st_size
