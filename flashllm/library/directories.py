"""Directories of converted models: where some may be, which are some, and what each is called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from flashllm.flash.manifest import BUNDLES_FILE, MANIFEST_FILE, MANIFEST_HASH_FILE
from flashllm.library.formatting import clean
from flashllm.library.models import DEMO_DIRECTORY, DEMO_NAME

SUFFIX = ".flash"
"""Of directories of models, by custom; no part of the name."""
ENTRIES_MAX = 1000
"""The most entries of a directory to look at."""
_MARKS = (MANIFEST_FILE, MANIFEST_HASH_FILE, BUNDLES_FILE)
_PARTIAL = re.compile(r"(.*)\.partial-(\d+)", re.DOTALL)
"""Directories that are being written, by a process."""


def name_of(path: str | os.PathLike[str]) -> str:
    """The one name of a model, by its directory; `demo` for the demo of any version."""
    name = Path(path).name
    return DEMO_NAME if DEMO_DIRECTORY.fullmatch(name) else name.removesuffix(SUFFIX) or name


def shown_name(path: str | os.PathLike[str]) -> str:
    """The same, ready to be shown; "" for no path."""
    return clean(name_of(path))


def looks_converted(path: Path) -> bool:
    """Whether a directory is a converted model, or half of one. The demo is not meant."""
    if DEMO_DIRECTORY.fullmatch(path.name) or _PARTIAL.fullmatch(path.name):
        return False
    return any(os.path.lexists(path / mark) for mark in _MARKS)


def candidates(
    directories: Iterable[Path], models: Iterable[Path], demo: Path | None = None
) -> Iterator[tuple[Path, bool | str]]:
    """Paths, and whether each was named as a model; or what is wrong with a directory."""
    if demo is not None:
        yield demo, True
    for model in map(Path, models):
        # A conversation with the demo names the directory where the demo was then.
        if not DEMO_DIRECTORY.fullmatch(model.name):
            yield model, True
    for directory in map(Path, directories):
        if looks_converted(directory):
            yield directory, True
            continue
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for _, entry in zip(range(ENTRIES_MAX + 1), entries)]  # noqa: B905
        except OSError as problem:
            yield directory, f"cannot be looked through: {problem.strerror}"
            continue
        for name in sorted(names[:ENTRIES_MAX]):
            yield directory / name, False
        if len(names) > ENTRIES_MAX:
            yield directory, f"has more than {ENTRIES_MAX} entries; the others were not looked at"


def writing_process(name: str, directories: Iterable[Path]) -> int | None:
    """The process that writes a model of that name in one of the directories; None without one."""
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False)]
        except OSError:
            continue
        for match in filter(None, map(_PARTIAL.fullmatch, names)):
            if name in (match[1], name_of(match[1])) and _is_alive(int(match[2])):
                return int(match[2])
    return None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True
