"""Gives a converted model another name: that of its directory, which stays where it is."""

from __future__ import annotations

import os
import re
from pathlib import Path

from flashllm.conversations.store import SessionStore
from flashllm.errors import CannotCreate, DestinationExists, UsageError
from flashllm.library.directories import SUFFIX
from flashllm.library.names import ModelNames
from flashllm.library.openers import refuse_open
from flashllm.system.demos import DEMO_NAMES, demo_in
from flashllm.system.paths import database_file

_NAME = re.compile(r"\w[\w.+-]{0,99}")
_RESERVED = re.compile(r".*\.partial-\w+")
"""Of models that are being written."""


def rename_model(directory: Path, new: str, names: ModelNames) -> Path:
    """Renames the directory of a model; returns the new one.

    Errors: `UsageError` for what can be no name, `DestinationExists` for one that is taken,
    `CannotCreate` where the model is open elsewhere or the directory cannot be renamed.
    """
    new = new.removesuffix(SUFFIX)
    check_name(new)
    taken = [str(model.path) for model in names.all() if new == model.name]
    target = directory.with_name(new + (SUFFIX if directory.name.endswith(SUFFIX) else ""))
    if taken or os.path.lexists(target):
        raise DestinationExists(f"{new}: is taken, by {(*taken, target)[0]}; choose another name")
    refuse_open(directory)
    try:
        os.rename(directory, target)
    except OSError as problem:
        raise CannotCreate(f"{directory}: cannot be renamed: {problem.strerror}") from problem
    return target


def check_name(name: str) -> None:
    """`UsageError` for a text that can be no name of a model."""
    if os.sep in name:
        raise UsageError(f"{name}: is a path; a name has no {os.sep}. `mv` moves a model elsewhere")
    if name in DEMO_NAMES or demo_in(name):
        raise UsageError(f"{name}: is a demo's; choose another name")
    if not _NAME.fullmatch(name) or _RESERVED.fullmatch(name):
        raise UsageError(
            f"{name!r} can be no name; it has letters, digits and . _ + -, a letter or digit first"
        )


def follow_in_conversations(before: Path, after: Path) -> int:
    """Lets conversations with a model that was renamed go on with it; returns how many did."""
    if not database_file().exists():
        return 0
    with SessionStore() as store:
        return store.replace_model(str(before.absolute()), str(after.absolute()))
