"""Puts files of a repository into a cache laid out as huggingface_hub does it.

    models--ORG--NAME/blobs/ETAG              the content; ETAG.incomplete while it comes
    models--ORG--NAME/snapshots/COMMIT/FILE   a link to it
    models--ORG--NAME/refs/BRANCH             the commit that a branch or a tag was
    .locks/models--ORG--NAME/ETAG.lock        held by whoever fetches it

huggingface_hub itself begins a file again after an interruption of the process, and does not check
what came. Here a file goes on where it ended, and its hash is computed on the way: a blob has its
name only after it was checked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.errors import (
    CannotCreate,
    DownloadFailed,
    NotEnoughSpace,
)
from flashllm.library import hub
from flashllm.library.hf_cache import CACHED_PREFIX
from flashllm.library.hub import RemoteFile, Repository
from flashllm.progress import Progress
from flashllm.system.atomic_file import write_whole
from flashllm.units import format_bytes

if TYPE_CHECKING:
    from typing import Self

READ_BYTES = 4 << 20


class CachedRepository:
    """A repository in a cache: which of its files are there, and how the others come."""

    def __init__(self, repository: Repository, cache: Path) -> None:
        folder = CACHED_PREFIX + repository.name.replace("/", "--")
        self.repository = repository
        self.snapshot = cache / folder / "snapshots" / repository.commit
        self._blobs = cache / folder / "blobs"
        self._refs = cache / folder / "refs"
        self._locks = cache / ".locks" / folder

    def has(self, file: RemoteFile) -> bool:
        """Whether all of a file is there."""
        return _bytes_at(self.snapshot / file.name) == file.size

    def bytes_here(self, file: RemoteFile) -> int:
        """How many bytes of a file need not be fetched any more."""
        if self.has(file) or _bytes_at(self._blobs / file.etag) == file.size:
            return file.size
        return min(_bytes_at(self._incomplete(file)) or 0, file.size)

    def fetch(self, file: RemoteFile, progress: Progress) -> Path:
        """A file, fetched and checked where it is not there; `progress` advances by its size.

        `DownloadFailed`, `ChecksumMismatch`, `NotEnoughSpace`, and what `hub.receive` raises. What
        has come stays, but for what turned out wrong.
        """
        path = self.snapshot / file.name
        if self.has(file):
            progress.advance(file.size)
            return path
        with _our_errors(path):
            for folder in (self.snapshot, self._blobs, self._locks):
                folder.mkdir(parents=True, exist_ok=True)
            what = f"{self.repository.name}: {file.name}"
            with hub.locked(str(self._locks / f"{file.etag}.lock"), progress, what):
                blob = self._blobs / file.etag
                if _bytes_at(blob) == file.size:  # of another name, or come while waiting
                    progress.advance(file.size)
                else:
                    self._receive(file, blob, progress)
                _link(blob, path)
        return path

    def drop(self, file: RemoteFile) -> None:
        """Remove a file and its content."""
        for path in (self.snapshot / file.name, self._blobs / file.etag):
            path.unlink(missing_ok=True)

    def note_revision(self) -> None:
        """Note that the branch or tag that was asked for is this commit."""
        revision, commit = self.repository.revision, self.repository.commit
        path = self._refs / revision
        if revision != commit and not commit.startswith(revision):
            with _our_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, commit.encode())

    def _incomplete(self, file: RemoteFile) -> Path:
        return self._blobs / f"{file.etag}.incomplete"

    def _receive(self, file: RemoteFile, blob: Path, progress: Progress) -> None:
        """Have a file sent, and give it its name once its hash is right.

        Where what was there before turns out wrong, all of it is fetched once more.
        """
        incomplete = self._incomplete(file)
        with ArrivingFile(incomplete, file, progress) as arriving:
            continued = arriving.tell() > 0
            self._receive_all(arriving, file, progress)
            if not arriving.is_right() and continued:
                arriving.begin_again()
                self._receive_all(arriving, file, progress)
            if not arriving.is_right():
                incomplete.unlink()
                raise hub.wrong_hash(self.repository, file, arriving.digest)
            arriving.sync()
        incomplete.replace(blob)

    def _receive_all(self, arriving: ArrivingFile, file: RemoteFile, progress: Progress) -> None:
        """A connection that breaks off is taken up again as long as something comes."""
        while True:
            before = arriving.tell()
            try:
                hub.receive(self.repository, file, arriving, file.size)
                return
            except DownloadFailed:
                if arriving.tell() <= before:
                    raise
                progress.warn(
                    f"{self.repository.name}: {file.name}: the connection broke off after"
                    f" {format_bytes(arriving.tell())}; going on from there"
                )


class ArrivingFile:
    """A file that is being fetched: hashed as it comes, and continued where it ended.

    `progress` advances by the file's size in all, whatever is sent twice.
    """

    def __init__(self, path: Path, file: RemoteFile, progress: Progress) -> None:
        self._path = path
        self._wanted = file
        self._progress = progress
        self._counted = 0
        self.digest = file.new_hash()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self._file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115
        self._take_up()

    def write(self, chunk: bytes) -> None:
        """Append; `NotEnoughSpace` on a full disk, `DownloadFailed` for more than was told."""
        if self.tell() + len(chunk) > self._wanted.size:
            raise DownloadFailed(
                f"{self._wanted.name}: the server sends more than the {self._wanted.size:,} bytes"
                " that it told; try again later"
            )
        with _our_errors(self._path):
            view = memoryview(chunk)
            while view:
                written = self._file.write(view)
                self._count(view[:written])
                view = view[written:]

    def tell(self) -> int:
        """Where the next byte goes."""
        return self._file.tell()

    def seek(self, position: int) -> None:
        """Back to the start, as `truncate` has it: a server may know no parts of files."""
        assert position == 0

    def truncate(self) -> None:
        """Begin again."""
        self.begin_again()

    def begin_again(self) -> None:
        """Forget everything that came."""
        self._file.seek(0)
        self._file.truncate()
        self.digest = self._wanted.new_hash()

    def is_right(self) -> bool:
        """Whether size and hash are what they should be."""
        return self.tell() == self._wanted.size and self.digest.hexdigest() == self._wanted.etag

    def sync(self) -> None:
        """Make it durable."""
        os.fsync(self._file.fileno())

    def _take_up(self) -> None:
        """Hash what came before; more than there should be is of no use."""
        if os.fstat(self._file.fileno()).st_size > self._wanted.size:
            self.begin_again()
        while part := self._file.read(READ_BYTES):
            self._count(memoryview(part))

    def _count(self, part: memoryview) -> None:
        self.digest.update(part)
        if (new := self._file.tell() - self._counted) > 0:
            self._counted += new
            self._progress.advance(new)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _bytes_at(path: Path) -> int | None:
    """The size of a file, links followed; None where there is none."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _link(blob: Path, path: Path) -> None:
    """A link to a blob, as the cache has it; a copy where the file system knows no links."""
    path.unlink(missing_ok=True)
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except OSError as problem:
        if problem.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
        shutil.move(blob, path)


@contextlib.contextmanager
def _our_errors(path: Path) -> Iterator[None]:
    """Errors of the system while something is written, as ours."""
    try:
        yield
    except OSError as problem:
        words = problem.strerror or str(problem)
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NotEnoughSpace(
                f"{path}: {words}; what was fetched stays. Make room on that disk and run the same"
                " command again"
            ) from problem
        raise CannotCreate(f"{path}: cannot be written: {words}") from problem
