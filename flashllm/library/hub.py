"""Asks the Hugging Face hub: what a repository holds, and the contents of its files.

This and `hub_errors` are the only modules that import huggingface_hub, once something is asked.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

import flashllm
from flashllm.errors import (
    ChecksumMismatch,
    DownloadFailed,
    NotACheckpoint,
)
from flashllm.library.formatting import clean
from flashllm.library.hub_errors import our_errors
from flashllm.library.hub_names import DEFAULT_REVISION, endpoint, is_name, offline_variable
from flashllm.progress import Progress
from flashllm.system.log import without_secrets

SECONDS_MAX = 30.0
"""How long the hub may take to describe a repository."""
FILES_MAX = 10_000
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Hash(Protocol):
    """What hashlib makes."""

    def update(self, content: bytes | memoryview, /) -> None:
        """More of the content."""

    def hexdigest(self) -> str:
        """The hash of all so far."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: `sha256` of a large one, `git_sha1` of one that lies in git."""

    name: str
    size: int
    sha256: str | None
    git_sha1: str

    @property
    def etag(self) -> str:
        """What caches call its content: its hash."""
        return self.sha256 or self.git_sha1

    def new_hash(self) -> Hash:
        """What gives `etag` once it got all of the content: SHA-256, or git's own hash."""
        if self.sha256 is not None:
            return hashlib.sha256()
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class Repository:
    """One commit of a repository."""

    name: str
    """organisation/name."""
    revision: str
    """The branch, tag or commit that was asked for."""
    commit: str
    files: Mapping[str, RemoteFile]
    made_from: str | None
    """The repository whose weights were requantised or finetuned into these, if it is told."""


def look(name: str, revision: str = DEFAULT_REVISION) -> Repository:
    """What the hub says of a repository; errors where it cannot be asked, or has none."""
    if (variable := offline_variable()) is not None:
        raise DownloadFailed(f"{name}: {variable} is set, so nothing is fetched; unset it to go on")
    with our_errors(name, revision):
        from huggingface_hub import HfApi

        _send_no_telemetry()
        api = HfApi(
            endpoint=endpoint(), library_name="flashllm", library_version=flashllm.__version__
        )
        info = api.model_info(name, revision=revision, files_metadata=True, timeout=SECONDS_MAX)
        found = [_remote_file(sibling) for sibling in (info.siblings or [])[:FILES_MAX]]
        commit = info.sha
        tags = info.tags or []
    if commit is None or not _COMMIT.fullmatch(commit):
        raise DownloadFailed(f"{name}: {endpoint()} names no commit; is that a hub?")
    files = {file.name: file for file in found if file is not None}
    return Repository(name, revision, commit, files, _made_from(tags))


def _send_no_telemetry() -> None:
    """What huggingface_hub would tell of this machine beside what is asked, and ask for that."""
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True


def _remote_file(sibling: Any) -> RemoteFile | None:
    """A file whose size and hash are told; None for anything else."""
    name, size, sha1 = sibling.rfilename, sibling.size, sibling.blob_id
    sha256 = None if sibling.lfs is None else sibling.lfs.sha256
    if not isinstance(name, str) or type(size) is not int or size < 0:
        return None
    if not isinstance(sha1, str) or not _COMMIT.fullmatch(sha1):
        return None
    if sha256 is not None and (not isinstance(sha256, str) or not _SHA256.fullmatch(sha256)):
        return None
    return RemoteFile(name, size, sha256, sha1)


def _made_from(tags: list[str]) -> str | None:
    """The repository that a tag like `base_model:quantized:ORG/NAME` names."""
    for tag in tags:
        if isinstance(tag, str) and tag.startswith("base_model:"):
            name = tag.rpartition(":")[2]
            if "/" in name and is_name(name):
                return name
    return None


class _Start:
    """A file in memory that takes `nbytes` and no more."""

    def __init__(self, nbytes: int, what: str) -> None:
        self._left = nbytes
        self._what = what
        self.content = bytearray()

    def write(self, chunk: bytes) -> None:
        """Append; `DownloadFailed` for more than was asked for."""
        self._left -= len(chunk)
        if self._left < 0:
            raise DownloadFailed(
                f"{self._what}: the server sends all of a file where a part was asked for, so it"
                " cannot be converted piece by piece; use --keep-source"
            )
        self.content += chunk

    def tell(self) -> int:
        """Bytes so far."""
        return len(self.content)

    def seek(self, position: int) -> None:
        """Back to the start; the rest follows by `truncate`."""
        assert position == 0

    def truncate(self) -> None:
        """Begin again."""
        self._left += len(self.content)
        self.content.clear()


class _NoBar:
    """Takes the place of the bar that huggingface_hub would draw."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, nbytes: float | None = 1) -> None:
        """Nothing: what is written is counted there."""


def read_whole(repository: Repository, file: RemoteFile, bytes_max: int) -> bytes:
    """All of a small file, checked; `NotACheckpoint` for one of more than `bytes_max`."""
    check_small(repository, file, bytes_max)
    content = read_start(repository, file, file.size)
    digest = file.new_hash()
    digest.update(content)
    if digest.hexdigest() != file.etag:
        raise wrong_hash(repository, file, digest)
    return content


def check_small(repository: Repository, file: RemoteFile, bytes_max: int) -> None:
    """`NotACheckpoint` for a file of more than `bytes_max`."""
    if file.size > bytes_max:
        raise NotACheckpoint(
            f"{repository.name}: {file.name}: {file.size:,} bytes; at most {bytes_max:,} are"
            " accepted"
        )


def wrong_hash(repository: Repository, file: RemoteFile, digest: Hash) -> ChecksumMismatch:
    """The error for a file that came as another one than the hub told."""
    return ChecksumMismatch(
        f"{repository.name}: {file.name}: what came has the hash {digest.hexdigest()} instead of"
        f" {file.etag}, and is not kept. Run the same command again; if that does not help,"
        f" something between here and {endpoint()} changes files"
    )


def read_start(repository: Repository, file: RemoteFile, nbytes: int) -> bytes:
    """The first `nbytes` of a file, which has as many."""
    start = _Start(nbytes, f"{repository.name}: {file.name}")
    part = {"Range": f"bytes=0-{nbytes - 1}"} if nbytes < file.size else {}
    receive(repository, file, start, nbytes, part)
    return bytes(start.content)


def receive(
    repository: Repository,
    file: RemoteFile,
    into: Any,
    nbytes: int,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Have a file sent, from where `into` stands on, until `nbytes` are there.

    `into` has write, tell, seek and truncate. A connection that breaks off is tried again.
    """
    with our_errors(repository.name, repository.revision, file.name):
        from huggingface_hub.file_download import hf_hub_url, http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        _send_no_telemetry()
        http_get(
            hf_hub_url(repository.name, file.name, revision=repository.commit, endpoint=endpoint()),
            cast("BinaryIO", into),
            resume_size=into.tell(),
            headers=build_hf_headers(
                library_name="flashllm",
                library_version=flashllm.__version__,
                headers=dict(headers or {}),
            ),
            expected_size=nbytes,
            tqdm_class=cast("Any", _NoBar),
        )


@contextlib.contextmanager
def locked(path: str, progress: Progress, what: str) -> Iterator[None]:
    """Holds a lock of the cache, which other programs take too; says where it has to wait."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    with contextlib.ExitStack() as held:
        try:
            held.enter_context(WeakFileLock(path, timeout=WAIT_SECONDS))
        except TimeoutError:
            progress.warn(f"{what}: another program is fetching it; waiting for that")
            held.enter_context(WeakFileLock(path))
        yield


WAIT_SECONDS = 1.0
"""How long a lock may be held before that is told."""


class _Relay(logging.Handler):
    """Passes what huggingface_hub would print on as warnings."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """One line; where it came from is not ours to print as it is."""
        self._progress.warn(clean(without_secrets(record.getMessage().splitlines()[0])))


@contextlib.contextmanager
def warnings_to(progress: Progress) -> Iterator[None]:
    """While the block runs, warnings of huggingface_hub go to `progress` and nowhere else."""
    from huggingface_hub.utils import logging as hub_logging

    logger = hub_logging.get_logger()
    before, logger.handlers = logger.handlers, [_Relay(progress)]
    try:
        yield
    finally:
        logger.handlers = before
