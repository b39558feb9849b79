"""Removes a converted model: its own files and nothing else, so that a mistake costs no more."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from flashllm.errors import CannotCreate, FlashllmError, LayoutError, ModelNotFound
from flashllm.flash.file_names import (
    ACTIVITY_FILE,
    BUNDLES_FILE,
    MANIFEST_FILE,
    MANIFEST_HASH_FILE,
    ORDER_FILE,
    PREDICTORS_FILE,
    REQUIRED_FILES,
    SKEWING_FILE,
    TENSOR_CHECKSUMS,
)
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import MANIFEST_BYTES_MAX, Manifest
from flashllm.library.openers import refuse_open

_LAST = (MANIFEST_HASH_FILE, MANIFEST_FILE)
"""Removed last: without them, what is left after an interruption would not be known as a model."""


def own_files(directory: Path) -> list[str]:
    """Names of the files of a converted model that are there, in the order of removal.

    Errors: `ModelNotFound`; `LayoutError` for what is no converted model of ours, or a link to one.
    """
    if not os.path.lexists(directory):
        raise ModelNotFound(f"{directory}: there is no such model; `flashllm ls` lists models")
    if os.path.islink(directory):
        raise LayoutError(
            f"{directory}: a link to {os.path.realpath(directory)}; remove that, or the link with"
            " `rm`"
        )
    named: set[str] = set()
    is_ours = False
    with contextlib.suppress(FlashllmError, OSError):
        path = directory / MANIFEST_FILE
        with open(path, "rb") as file:
            named = set(Manifest.from_bytes(file.read(MANIFEST_BYTES_MAX), path).files)
        is_ours = True
    with contextlib.suppress(FlashllmError, OSError):
        read_header(directory / BUNDLES_FILE)
        is_ours = True
    if not is_ours:
        raise LayoutError(
            f"{directory}: neither its manifest nor its bundles are those of a converted model;"
            " remove it yourself if it is to go"
        )
    named |= {*REQUIRED_FILES, ACTIVITY_FILE, ORDER_FILE, PREDICTORS_FILE, SKEWING_FILE}
    named |= set(TENSOR_CHECKSUMS.values())
    return [name for name in (*sorted(named), *_LAST) if os.path.lexists(directory / name)]


def remove_model(directory: Path) -> list[str]:
    """Removes a converted model; returns the names of other files there, which stay.

    Errors: those of `own_files`; `CannotCreate` where it is open elsewhere, or cannot be removed.
    """
    names = own_files(directory)
    refuse_open(directory)
    try:
        for name in names:
            os.unlink(directory / name)
        left = sorted(os.listdir(directory))
        if not left:
            os.rmdir(directory)
    except OSError as problem:
        raise CannotCreate(
            f"{problem.filename or directory}: cannot be removed: {problem.strerror}; what is left"
            " can be removed again"
        ) from problem
    return left
