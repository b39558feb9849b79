"""Keeps unfinished training, so that the same command run again continues it.

A directory next to the output: `key.json` says of which model, text and settings it is, each
trained layer is a file, and the layers being recorded have their rows there. What belongs to
another key is discarded; a directory that was never ours is refused. One process at a time, by a
lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flashllm
from flashllm.errors import CannotCreate, LayoutError
from flashllm.flash.unfinished import training_path
from flashllm.system.resumable_file import write_error, write_file

from .layer import TrainedLayer

if TYPE_CHECKING:
    from typing import Self

KEY_FILE = "key.json"
GROUP_FILE = "group.safetensors"
OUR_NAMES = re.compile(r"key\.json|group\.safetensors|(layer|rows)-\d{4}|\..*\.part")
UNFINISHED_KEY = re.compile(r"\.key\.json\..*\.part")
# Changes with what a trained layer or a recording means; one of another version is discarded.
WORK_VERSION = 2
# Free space left to others, and to the files that are written besides recordings.
FREE_BYTES_MARGIN = 64 << 20
FREE_SHARE_MAX = 0.9


def default_work(output: Path) -> Path:
    """Next to the output, since an interrupted conversion may remove the output."""
    return training_path(output)


def key_of(**about: Any) -> str:
    """Hash of all that a training's result depends on; plain values only."""
    versions = {"version": WORK_VERSION, "flashllm": flashllm.__version__}
    text = json.dumps({**versions, **about}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def space_for(work: Path, recording_bytes: int) -> int:
    """Free bytes that a recording needs, minus those that one in `work` already takes."""
    taken_bytes = sum(path.stat().st_size for path in work.glob("rows-*"))
    return max(0, math.ceil((recording_bytes + FREE_BYTES_MARGIN) / FREE_SHARE_MAX) - taken_bytes)


class WorkDirectory:
    """The locked directory; `with` creates or continues it, and leaves it unless it is removed."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self._key = key
        self._lock = -1

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._prepare()
        except BlockingIOError as error:
            self._unlock()
            raise CannotCreate(
                f"{self.path}: another process trains here; wait for it, or choose another output"
            ) from error
        except OSError as error:
            self._unlock()
            raise write_error(self.path, error) from error
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if all(path.name == KEY_FILE for path in self.path.iterdir()):
                self.remove()  # nothing was done that could be continued
        self._unlock()

    @property
    def group_path(self) -> Path:
        """Of the state of the layers being recorded."""
        return self.path / GROUP_FILE

    def rows_path(self, layer: int) -> Path:
        """Of a layer's recorded rows."""
        return self.path / f"rows-{layer:04}"

    def layer(self, layer: int) -> TrainedLayer | None:
        """A layer that is trained already; None where it is not, or its file is damaged."""
        try:
            return TrainedLayer.from_bytes(self._layer_path(layer).read_bytes())
        except (OSError, LayoutError):
            return None

    def keep_layer(self, layer: int, trained: TrainedLayer) -> None:
        """Store a trained layer, whole or not at all, and drop its rows."""
        write_file(self._layer_path(layer), trained.to_bytes())
        self.rows_path(layer).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """Bytes that recordings may take now; `space_for` is its inverse."""
        free_bytes = shutil.disk_usage(self.path).free
        return max(0, int(free_bytes * FREE_SHARE_MAX) - FREE_BYTES_MARGIN)

    def drop_recording(self) -> None:
        """Remove all recorded rows and what is known of them."""
        for path in [self.group_path, *self.path.glob("rows-*")]:
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove everything: the training is over."""
        # The key last: without it the rest would not be known as ours.
        for path in sorted(self._ours(), key=lambda path: path.name == KEY_FILE):
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _prepare(self) -> None:
        found = self._found_key()
        if found == self._key:
            return
        names = {path.name for path in self.path.iterdir()}
        if found is None and not all(map(UNFINISHED_KEY.fullmatch, names)):
            raise CannotCreate(
                f"{self.path}: holds files that are not of an unfinished training; remove or "
                "rename it, or choose another output"
            )
        for path in self._ours():
            path.unlink()
        write_file(self.path / KEY_FILE, json.dumps({"key": self._key}).encode())

    def _found_key(self) -> str | None:
        try:
            return str(json.loads((self.path / KEY_FILE).read_bytes())["key"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _ours(self) -> list[Path]:
        return [path for path in self.path.iterdir() if OUR_NAMES.fullmatch(path.name)]

    def _layer_path(self, layer: int) -> Path:
        return self.path / f"layer-{layer:04}"

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
