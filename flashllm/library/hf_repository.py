"""One repository of the Hugging Face cache: its snapshots, and whether they are whole."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from flashllm.errors import ModelNotFound, NotACheckpoint
from flashllm.library.formatting import clean
from flashllm.library.hf_cache import CACHED_PREFIX, ENTRIES_MAX, SNAPSHOTS_MAX, cache_directories
from flashllm.library.hub_names import DEFAULT_REVISION, RepositoryId
from flashllm.settings.nearest import nearest

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT_SHOWN = 7
SMALL_BYTES_MAX = 32 << 20
"""Files in git itself are small."""
NEAREST_MOST = 3


def cached_names(environment: Mapping[str, str] | None = None) -> list[str]:
    """The repositories of models in the cache, by name; their content is not looked at."""
    names: set[str] = set()
    for root in cache_directories(environment):
        with contextlib.suppress(OSError), os.scandir(root) as entries:
            for _, entry in zip(range(ENTRIES_MAX), entries, strict=False):
                if entry.name.startswith(CACHED_PREFIX):
                    names.add(entry.name.removeprefix(CACHED_PREFIX).replace("--", "/"))
    return sorted(names)


def find_snapshot(wanted: RepositoryId, environment: Mapping[str, str] | None = None) -> Path:
    """The directory of a checkpoint in the cache, which may lack files.

    `ModelNotFound` where the cache has nothing of it, or not this revision.
    """
    repository = _repository(wanted, environment)
    if repository is None:
        places = ", ".join(map(str, cache_directories(environment)))
        near = nearest(wanted.name, cached_names(environment), NEAREST_MOST)
        meant = f"; did you mean {' or '.join(near)}?" if near else ";"
        raise ModelNotFound(
            f"{wanted}: there is no such directory, and the Hugging Face cache ({places}) has no"
            f" such repository{meant} `flashllm pull {wanted}` fetches one"
        )
    snapshots = _snapshots(repository)
    commit = _commit(repository, wanted.revision or DEFAULT_REVISION)
    if commit is None and not wanted.revision and len(snapshots) == 1:
        commit = snapshots[0]
    found = [name for name in snapshots if commit is not None and name.startswith(commit)]
    if len(found) == 1:
        return repository / "snapshots" / found[0]
    if len(found) > 1:
        raise ModelNotFound(f"{wanted}: several commits begin so: {', '.join(found)}")
    if state := unfinished(repository):
        raise ModelNotFound(f"{wanted}: {state}")
    raise ModelNotFound(
        f"{wanted}: the Hugging Face cache has {_format_revisions(wanted, repository, snapshots)};"
        f" `flashllm pull {wanted}` fetches it"
    )


def check_whole(wanted: RepositoryId, snapshot: Path) -> None:
    """`NotACheckpoint` where files of the weights are not there, or not yet."""
    from flashllm.convert import source_file, weight_files

    try:
        for shard in weight_files(snapshot).shards:
            source_file(snapshot, shard)
    except NotACheckpoint as problem:
        state = unfinished(snapshot.parent.parent)
        if not state:
            raise
        raise NotACheckpoint(f"{wanted}: {state} ({problem})") from problem


def unfinished(repository: Path) -> str:
    """Why a repository may lack files: a download that goes on, or ended early; else ""."""
    locks = repository.parent / ".locks" / repository.name
    if _is_locked(locks):
        return "another program is fetching it now; wait until it is done"
    if any(_names(repository / "blobs", ".incomplete")):
        name = repository.name.removeprefix(CACHED_PREFIX).replace("--", "/")
        return f"its download ended early; `flashllm pull {clean(name)}` goes on with it"
    return ""


def _repository(wanted: RepositoryId, environment: Mapping[str, str] | None) -> Path | None:
    for root in cache_directories(environment):
        path = root / f"{CACHED_PREFIX}{wanted.name.replace('/', '--')}"
        # The cache makes no links of directories: what one leads to may lie anywhere.
        if os.path.isdir(path) and not os.path.islink(path):
            return path
    return None


def _snapshots(repository: Path) -> list[str]:
    return [
        name
        for name in _names(repository / "snapshots")[:SNAPSHOTS_MAX]
        if not os.path.islink(repository / "snapshots" / name)
    ]


def _commit(repository: Path, revision: str) -> str | None:
    """The commit that a branch or tag is, or of which the revision is the beginning."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open(repository / "refs" / revision, "rb") as file:
            commit = file.read(128).decode("ascii").strip()
        if _COMMIT.fullmatch(commit):
            return commit
    return revision if _COMMIT.fullmatch(revision) else None


def _format_revisions(wanted: RepositoryId, repository: Path, snapshots: list[str]) -> str:
    refs = [name for name in _names(repository / "refs") if _commit(repository, name)]
    known = [clean(name) for name in (*refs, *(one[:_COMMIT_SHOWN] for one in snapshots))]
    missing = f"no revision {wanted.revision!r} of it" if wanted.revision else "no files of it"
    return f"{missing}, only {', '.join(known)}" if wanted.revision and known else missing


def _names(directory: Path, ending: str = "") -> list[str]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        found = [entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False)]
        return sorted(name for name in found if name.endswith(ending))
    return []


def _is_locked(locks: Path) -> bool:
    """Whether a download holds one of its locks; huggingface_hub leaves the files behind."""
    for name in _names(locks, ".lock"):
        with contextlib.suppress(OSError):
            descriptor = os.open(locks / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(descriptor)
    return False


def is_made_of(files: Mapping[str, object], snapshot: Path) -> bool:
    """Whether the files that a manifest records of its source are those of a snapshot, by SHA-256.

    The cache calls large files by their hash, so only small ones are read.
    """
    return bool(files) and all(
        isinstance(record, dict) and record.get("sha256") == _sha256(snapshot / name)
        for name, record in files.items()
    )


def _sha256(path: Path) -> str | None:
    name = os.path.basename(os.path.realpath(path))
    if _SHA256.fullmatch(name):
        return name
    with contextlib.suppress(OSError):
        if path.stat().st_size <= SMALL_BYTES_MAX:
            return hashlib.sha256(path.read_bytes()).hexdigest()
    return None
