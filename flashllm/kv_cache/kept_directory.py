"""Files of kept keys and values: a directory of bounded size, from which the oldest go first."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from flashllm.errors import ReadFailed
from flashllm.kv_cache.context_tokens import ContextTokens
from flashllm.kv_cache.kept_file import KeptFile
from flashllm.units import GIB

SUFFIX = ".kv"
FILES_MAX = 64
"""Each is looked into before a long prompt."""
FREE_BYTES_MIN = GIB
"""So much of the disk is left to others."""


class KeptDirectory:
    """Finds the file that holds most of a prompt, and makes room for what is to be kept.

    A file that another process has open is left alone.
    """

    def __init__(
        self,
        directory: Path,
        bytes_max: int,
        settings: Mapping[str, str],
        layers: int,
        token_bytes: int,
    ) -> None:
        """`settings`: all that the bits of keys and values depend on; the rest as of `KeptFile`."""
        self.problem = ""
        """What was wrong with the last file that could not be used; "" for nothing."""
        self._directory, self._bytes_max = directory, bytes_max
        self._settings, self._layers, self._token_bytes = settings, layers, token_bytes
        digest = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()
        self._prefix = digest[:16]

    def find(self, ids: Sequence[int], answer: int, alike: ContextTokens) -> KeptFile | None:
        """The file whose tokens save most of the prompt `ids`, as `cached_prefix` has it, or None.

        Who gets it closes it.
        """
        best: KeptFile | None = None
        most = 0
        for path in reversed(self._files()):
            if not path.name.startswith(self._prefix):
                continue
            file = self._open(path)
            if file is None:
                continue
            usable = file.tokens(alike).cached_prefix(ids, answer)
            if usable > most:
                if best is not None:
                    best.close()
                best, most = file, usable
            else:
                file.close()
        return best

    def create(self) -> KeptFile:
        """A new file without tokens; `OSError`."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._directory / f"{self._prefix}-{os.urandom(6).hex()}{SUFFIX}"
        file = KeptFile.create(path, self._settings, self._layers, self._token_bytes)
        _lock(file)
        return file

    def make_room(self, nbytes: int, own: Path) -> bool:
        """Whether `nbytes` more fit, once the files that were not used for longest are removed.

        `own` stays. `OSError`.
        """
        sizes = {path: path.stat().st_size for path in self._files()}
        others = [path for path in sizes if path != own]
        while others and (sum(sizes.values()) + nbytes > self._bytes_max or len(sizes) > FILES_MAX):
            oldest = others.pop(0)
            oldest.unlink(missing_ok=True)
            del sizes[oldest]
        fits = sum(sizes.values()) + nbytes <= self._bytes_max
        return fits and shutil.disk_usage(self._directory).free >= nbytes + FREE_BYTES_MIN

    def _files(self) -> list[Path]:
        """All of them, the one that was not used for longest first."""
        ages: list[tuple[int, Path]] = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for path in self._directory.glob(f"*{SUFFIX}"):
                with contextlib.suppress(FileNotFoundError):
                    ages.append((path.lstat().st_mtime_ns, path))
        return [path for _, path in sorted(ages)]

    def _open(self, path: Path) -> KeptFile | None:
        try:
            file = KeptFile.open(path, self._settings, self._layers, self._token_bytes)
        except (OSError, ReadFailed) as error:
            self.problem = str(error)
            return None
        if not _lock(file):
            file.close()
            return None
        self.problem = file.problem or self.problem
        return file


def clear(directory: Path) -> None:
    """Removes all that is kept; `OSError`."""
    for path in directory.glob(f"*{SUFFIX}"):
        path.unlink(missing_ok=True)


def _lock(file: KeptFile) -> bool:
    """Whether no other process has the file open; holds until it is closed."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
