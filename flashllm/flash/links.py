"""Links in a converted model: none may lead out of its directory.

A model is what its manifest says, in one directory; a link out of it would have files of the user
read as weights, texts or templates of a stranger. The directory itself may be a link, and so may
files in it that lead to others in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flashllm.errors import LayoutError


def links_out(directory: Path) -> Iterator[tuple[str, str]]:
    """Name and end of each link that leads out of a model, in it and in the folders in it."""
    home = os.path.realpath(directory)
    for folder in (home, *_folders(home)):
        with os.scandir(folder) as entries:
            found = sorted(entry.path for entry in entries if entry.is_symlink())
        for path in found:
            end = os.path.realpath(path)
            if os.path.commonpath((home, end)) != home:
                yield os.path.relpath(path, home), end


def _folders(home: str) -> list[str]:
    with os.scandir(home) as entries:
        return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))


def check_links(directory: Path) -> None:
    """`LayoutError` for the first link that leads out of a model, with what to do."""
    for name, end in links_out(directory):
        raise LayoutError(
            f"{directory / name}: a link that leads out of the model, to {end}; a model is read"
            " from its own directory only. Put the file itself there, or move the whole directory"
            " to the other disk: that may be a link"
        )
