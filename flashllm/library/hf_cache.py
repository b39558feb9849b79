"""Checkpoints in the Hugging Face cache: read by hand, never written, never left by a link.

Layout, as huggingface_hub documents it: `models--org--name/` with `refs/` (a name -> a commit),
`snapshots/COMMIT/` (links with the names of the files) and `blobs/` (what they lead to).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from flashllm.errors import FlashllmError
from flashllm.library.formatting import clean, format_error, format_shape
from flashllm.library.models import Checkpoint

ENTRIES_MAX = 1000
SNAPSHOTS_MAX = 50
REFS_MAX = 50
CACHED_PREFIX = "models--"
"""Of the directories of models."""
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_COMMIT_SHOWN = 7
_LOG = logging.getLogger("flashllm")


def cache_directories(environment: Mapping[str, str] | None = None) -> list[Path]:
    """Where the cache is, as the variables of huggingface_hub say."""
    environment = os.environ if environment is None else environment
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := environment.get(name):
            return [_expanded(value)]
    home = environment.get("HF_HOME")
    if not home:
        base = environment.get("XDG_CACHE_HOME") or "~/.cache"
        home = os.path.join(base, "huggingface")
    return [_expanded(home) / "hub"]


def _expanded(text: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(text)))


def checkpoints(environment: Mapping[str, str] | None = None) -> Iterator[Checkpoint]:
    """Every snapshot of every model in the cache, convertible or with the reason why not.

    Where there are more than are looked at, one more is what they are in, which says so: the last
    one is the cache, or the last one of a repository is the repository.
    """
    for root in cache_directories(environment):
        entries = _entries(root, ENTRIES_MAX + 1)
        for repository in entries[:ENTRIES_MAX]:
            if repository.name.startswith(CACHED_PREFIX):
                yield from _of_repository(repository)
        if len(entries) > ENTRIES_MAX:
            yield _unseen(root, clean(root.name or str(root)), f"{ENTRIES_MAX} entries")


def _unseen(directory: Path, name: str, most: str) -> Checkpoint:
    problem = f"has more than {most}; the others were not looked at"
    return Checkpoint(directory, name, "", 0, problem=problem)


def _entries(parent: Path, most: int) -> list[os.DirEntry[str]]:
    """What is in a directory, by name; nothing where it cannot be looked at."""
    try:
        with os.scandir(parent) as entries:
            found = [entry for _, entry in zip(range(most), entries, strict=False)]
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry.name)


def _of_repository(repository: os.DirEntry[str]) -> Iterator[Checkpoint]:
    path = Path(repository.path)
    name = clean(repository.name.removeprefix(CACHED_PREFIX).replace("--", "/"))
    # The cache makes no links of directories: what one leads to may lie anywhere.
    if repository.is_symlink():
        yield Checkpoint(path, name, "", 0, problem="a link out of the cache; it is not followed")
        return
    names = _entries(path / "refs", REFS_MAX + 1)
    refs = _refs(names[:REFS_MAX])
    snapshots = _entries(path / "snapshots", SNAPSHOTS_MAX + 1)
    looked_at = snapshots[:SNAPSHOTS_MAX]
    found = [entry for entry in looked_at if entry.is_dir(follow_symlinks=False)]
    for snapshot in found:
        yield _examine(Path(snapshot.path), name, _revision(snapshot.name, refs))
    if len(snapshots) > SNAPSHOTS_MAX:
        yield _unseen(path, name, f"{SNAPSHOTS_MAX} snapshots")
    elif not found:
        yield Checkpoint(path, name, "", 0, problem="nothing of it was fetched")
    if len(names) > REFS_MAX:
        yield _unseen(path, name, f"{REFS_MAX} names of snapshots (refs)")


def _refs(entries: Iterable[os.DirEntry[str]]) -> dict[str, str]:
    """Commit -> name of the branch or tag that it is."""
    found: dict[str, str] = {}
    for entry in entries:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if entry.is_file(follow_symlinks=False):
                with open(entry.path, "rb") as file:
                    commit = file.read(128).decode("ascii").strip()
                if _COMMIT.fullmatch(commit):
                    found.setdefault(commit, clean(entry.name))
    return found


def _revision(commit: str, refs: Mapping[str, str]) -> str:
    short = clean(commit)[:_COMMIT_SHOWN]
    return f"{refs[commit]} ({short})" if commit in refs else short


def _examine(snapshot: Path, name: str, revision: str) -> Checkpoint:
    """From config.json and the names and sizes of files alone."""
    from flashllm.convert import describe

    features, size_bytes, remark = "", 0, ""
    try:
        features = format_shape(describe(snapshot))
        size_bytes, pickled = _weights(snapshot)
        remark = "weights are pickles: converted only with --allow-pickle" if pickled else ""
        problem = ""
    except (FlashllmError, OSError, RecursionError, MemoryError) as error:
        problem = format_error(error, snapshot)
    except Exception as error:  # noqa: BLE001  one odd checkpoint must not end the list
        _LOG.exception("a checkpoint could not be looked at")
        problem = clean(f"unexpected: {type(error).__name__}: {error}")
    return Checkpoint(snapshot, name, revision, size_bytes, features, remark, problem)


def _weights(snapshot: Path) -> tuple[int, bool]:
    """Bytes of all files of weights, and whether these are pickles; an error where one is absent.

    Files that lie outside of the repository's own folders are refused.
    """
    from flashllm.convert import source_file, weight_files

    files = weight_files(snapshot)
    return sum(source_file(snapshot, shard).stat().st_size for shard in files.shards), files.pickled
