"""Directories of converted models: where some may be, which are some, and what each is called."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from flashllm.flash.file_names import BUNDLES_FILE, MANIFEST_FILE, MANIFEST_HASH_FILE
from flashllm.flash.unfinished import PARTIAL_NAME, PULLED
from flashllm.library.formatting import clean
from flashllm.system.demos import demo_in

SUFFIX = ".flash"
"""Of directories of models, by custom; no part of the name."""
ENTRIES_MAX = 1000
"""The most entries of a directory to look at."""
_MARKS = (MANIFEST_FILE, MANIFEST_HASH_FILE, BUNDLES_FILE)


def name_of(path: str | os.PathLike[str]) -> str:
    """The one name of a model, by its directory; a demo's for a demo of any version."""
    name = Path(path).name
    return demo_in(name) or name.removesuffix(SUFFIX) or name


def shown_name(path: str | os.PathLike[str]) -> str:
    """The same, ready to be shown; "" for no path."""
    return clean(name_of(path))


def looks_converted(path: Path) -> bool:
    """Whether a directory is a converted model, or half of one. Demos are not meant."""
    if demo_in(path.name) or PARTIAL_NAME.fullmatch(path.name):
        return False
    return any(os.path.lexists(path / mark) for mark in _MARKS)


def candidates(
    directories: Iterable[Path], models: Iterable[Path], demos: Iterable[Path] = ()
) -> Iterator[tuple[Path, bool | str]]:
    """Paths, and whether each was named as a model; or what is wrong with a directory."""
    for demo in demos:
        yield demo, True
    for model in map(Path, models):
        # A conversation with a demo names the directory where that was then.
        if demo_in(model.name) is None:
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


def format_unfinished(name: str, directories: Iterable[Path]) -> str:
    """What became of a model of that name that is not complete in a directory; "" without one."""
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False)]
        except OSError:
            continue
        for match in filter(None, map(PARTIAL_NAME.fullmatch, names)):
            if name not in (match[1], name_of(match[1])):
                continue
            if match[2] != PULLED:
                if _is_alive(int(match[2])):
                    return f"is being converted, by process {match[2]}; wait until it is done"
            elif _is_locked(directory / match[0]):
                return "is being fetched and converted by another process; wait until it is done"
            else:
                return (
                    f"its conversion ended early and lies in {clean(match[0])}; the same"
                    " `flashllm pull --convert` goes on with it"
                )
    return ""


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def _is_locked(directory: Path) -> bool:
    """Whether the process that writes a directory holds its lock."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
