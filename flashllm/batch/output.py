"""Where answers go: into a file that an interrupted batch continues, or to a stream.

A file of answers is locked while a batch writes it. It holds whole lines, and perhaps half a line
at its end after a kill, which is cut off when the batch goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, Self

from flashllm.batch.answer_lines import KeptAnswer, read_answer
from flashllm.batch.answer_order import AnswerOrder
from flashllm.batch.appended_file import AppendedFile
from flashllm.batch.input_rows import InputRows
from flashllm.batch.journal import (
    BatchKey,
    Header,
    finished_header,
    journal_path,
    mark_finished,
    read_header,
    unmark_finished,
)
from flashllm.errors import CannotCreate, DestinationExists
from flashllm.system.atomic_file import sync
from flashllm.system.resumable_file import write_error, write_file

ANSWER_BYTES_MAX = 64 << 20
"""A longer line of a file of answers is none of ours."""


class BatchOutput(Protocol):
    """Where the answers of a batch go; a context manager, which leaves what was written."""

    created: int
    """Seconds since 1970 at which the batch began, perhaps in an earlier run."""
    order: AnswerOrder

    def begin(self) -> None:
        """The first answer is about to come."""

    def finish(self) -> None:
        """The last answer has come."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class StreamOutput:
    """Writes lines as text; nothing can be continued."""

    def __init__(
        self, write: Callable[[str], None], n_rows: int, *, as_finished: bool = False
    ) -> None:
        self.created = int(time.time())
        self.order = AnswerOrder(
            n_rows, lambda line: write(line.decode()), self._open_held, as_finished=as_finished
        )
        self._held: AppendedFile | None = None

    def begin(self) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""

    def _open_held(self) -> AppendedFile:
        path = Path(tempfile.gettempdir()) / "answers that wait"
        try:
            with tempfile.TemporaryFile() as file:
                self._held = AppendedFile(path, os.dup(file.fileno()))
        except OSError as error:
            raise write_error(path, error) from error
        return self._held

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            self._held.close()


class FileOutput:
    """A file of answers; nothing is changed before `begin`."""

    def __init__(
        self,
        path: Path,
        rows: InputRows,
        key: BatchKey,
        *,
        as_finished: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Locks the file and finds what it has; `overwrite` takes it as if it had nothing.

        Errors: `DestinationExists` for a file that is not of this batch, `CannotCreate`.
        """
        self.path = path
        self._rows, self._key = rows, key
        self._journal_path = journal_path(path)
        self._journal: AppendedFile | None = None
        self._has_begun = False
        self._is_finished = False
        """Whether an earlier run of this batch wrote the last answer."""
        self._out, self._is_new = _open_locked(path)
        try:
            self._check_kind()
            header = None if overwrite else self._find_header()
            self._continues = header is not None
            self.created = header.created if header is not None else int(time.time())
            self.order = AnswerOrder(
                len(rows), self._out.append, self._open_journal, as_finished=as_finished
            )
            self._whole_bytes = (0, 0)
            """Bytes of whole lines, of the answers and of the journal."""
            if self._is_finished:
                self._restore()
                if not self.order.is_complete:
                    raise self._exists()
            elif header is not None:
                self._whole_bytes = self._restore(), self._restore_held()
        except BaseException:
            self.__exit__()
            raise

    def begin(self) -> None:
        """Makes the file what it was before the last kill, or empty for a new batch; durably."""
        if self._is_finished:
            return
        if self._continues:
            answers_bytes, journal_bytes = self._whole_bytes
            self._out.cut(answers_bytes)
            self._open_journal().cut(journal_bytes)
            self.order.release()
        else:
            unmark_finished(self.path)
            self._remove_journal()  # first: answers without it are nothing to go on with
            self._out.cut(0)
            write_file(self._journal_path, Header(self._key, self.created).line())
            with contextlib.suppress(OSError):  # not everywhere can a directory be made durable
                sync(self.path.absolute().parent)
        self._has_begun = True

    def finish(self) -> None:
        """Makes the answers durable, and removes what told how to continue."""
        self._out.sync()
        mark_finished(self.path, Header(self._key, self.created))
        self._remove_journal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with contextlib.suppress(OSError, CannotCreate):  # what could not be written was told
                if self._has_begun:
                    self._out.sync()
                elif self._is_new:
                    self.path.unlink()
        finally:
            if self._journal is not None:
                self._journal.close()
            self._out.close()

    def _check_kind(self) -> None:
        status = self._out.status()
        if not stat.S_ISREG(status.st_mode):
            raise CannotCreate(f"{self.path}: is no regular file; `-` is standard output")
        if self._rows.is_file(status):
            raise CannotCreate(f"{self.path}: holds the rows; name another file for the answers")

    def _find_header(self) -> Header | None:
        """The header of the batch that the file is of; None for a file to begin with."""
        header = read_header(self._journal_path)
        if header is None:
            if not self._out.nbytes:
                return None
            header = finished_header(self.path)
            if header is None or self._key.differences(header.key):
                raise self._exists()
            self._is_finished = True
            return header
        differences = self._key.differences(header.key)
        if not differences:
            return header
        if self._out.nbytes or self._journal_path.stat().st_size > len(header.line()):
            raise DestinationExists(
                f"{self.path}: an unfinished batch, and not this one ({'; '.join(differences)})."
                " Run it as before to go on, name another file, or --overwrite it"
            )
        return None  # nothing was answered yet

    def _exists(self) -> DestinationExists:
        return DestinationExists(
            f"{self.path}: exists, and is no unfinished batch; name another file, or --overwrite it"
        )

    def _restore(self) -> int:
        """Takes note of the answers that are there; returns the bytes that are whole."""
        torn: int | None = None
        for line, (offset, raw) in enumerate(self._out.lines(ANSWER_BYTES_MAX), 1):
            number, kept = self._kept(raw)
            if kept is None:
                torn = offset if torn is None else torn
                if b"\0" in raw:  # pages that a loss of power kept from the disk; more may follow
                    break
            elif torn is not None or not self.order.restore(number, is_failure=kept.is_failure):
                raise DestinationExists(
                    f"{self.path}: line {line} is not where this batch writes it, so the file was"
                    " changed; put it back as it was, name another file, or --overwrite it"
                )
        return self._out.nbytes if torn is None else torn

    def _restore_held(self) -> int:
        """The same for answers that wait in the journal."""
        lines: Iterator[tuple[int, bytes]] = self._open_journal().lines(ANSWER_BYTES_MAX)
        end = len(next(lines)[1])
        for offset, raw in lines:
            number, kept = self._kept(raw)
            if kept is None:
                break
            self.order.restore_held(number, (offset, len(raw)), is_failure=kept.is_failure)
            end = offset + len(raw)
        return end

    def _kept(self, raw: bytes) -> tuple[int, KeptAnswer | None]:
        """(number of the row, what the line says of it); None for a line that is no answer."""
        kept = read_answer(raw, self._rows.form)
        number = None if kept is None else self._rows.number_of(kept.line)
        return (0, None) if number is None else (number, kept)

    def _open_journal(self) -> AppendedFile:
        if self._journal is None:
            try:
                descriptor = os.open(self._journal_path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise write_error(self._journal_path, error) from error
            self._journal = AppendedFile(self._journal_path, descriptor)
        return self._journal

    def _remove_journal(self) -> None:
        try:
            self._journal_path.unlink(missing_ok=True)
        except OSError as error:
            raise write_error(self._journal_path, error) from error


def _open_locked(path: Path) -> tuple[AppendedFile, bool]:
    """The file, locked, and whether it was made; `CannotCreate` if another process has the lock."""
    is_new = not os.path.lexists(path)
    try:
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                _lock(descriptor)
                # Whoever had the lock before may have removed the file that it had made.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(path.stat(), os.fstat(descriptor)):
                        return AppendedFile(path, descriptor), is_new
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
    except BlockingIOError as error:
        raise CannotCreate(
            f"{path}: another process writes answers there; wait for it, or name another file"
        ) from error
    except FileNotFoundError as error:
        raise CannotCreate(f"{path.parent}: no such directory; create it first") from error
    except OSError as error:
        raise write_error(path, error) from error


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        pass
