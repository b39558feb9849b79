"""Paths that a path which is being typed could become."""

from __future__ import annotations

import os
from collections.abc import Iterable

from flashllm.untrusted.terminal import sanitize_line

ENTRIES_MAX = 2000
"""Of a directory; the others are not offered."""
OFFERED_MAX = 200


def folder_of(begun: str) -> str:
    """The directory, as it is typed, in which the rest of a path is looked for: up to its slash."""
    return begun[: begun.rfind("/") + 1]


def list_folder(folder: str) -> list[str]:
    """Names in a directory as it is typed, `~` included; a slash follows those of directories.

    One that cannot be read has none. It may take long, on a disk that does.
    """
    names = []
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            for _, entry in zip(range(ENTRIES_MAX), entries):  # noqa: B905  as far as both go
                names.append(f"{entry.name}/" if _is_folder(entry) else entry.name)
    except (OSError, ValueError):  # ValueError: a null character
        return []
    return sorted(names)


def completions(begun: str, names: Iterable[str]) -> list[str]:
    """Whole paths, of the names in the directory of `begun`; hidden ones where a dot is typed."""
    folder, name = folder_of(begun), begun[len(folder_of(begun)) :]
    return [
        folder + one
        for one in names
        if one.startswith(name)
        and one != name
        and (name.startswith(".") or not one.startswith("."))
        and sanitize_line(one) == one  # what cannot be typed cannot be offered
    ][:OFFERED_MAX]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere
        return False
