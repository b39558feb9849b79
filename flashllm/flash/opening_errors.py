"""What a file system raises while a model is looked for and opened, as an error of ours."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from flashllm.errors import ReadFailed

_ADVICE = {
    errno.EACCES: "see who owns it and its directory",
    errno.EPERM: "see who owns it and its directory",
    errno.EMFILE: "this process has too many files open (`ulimit -n`); close some",
    errno.ENFILE: "this machine has too many files open; close some programs",
    errno.ENOMEM: "memory is short; close some programs, or give less by --memory",
}
_USUAL_ADVICE = "If it happens again, check the disk, then run `flashllm verify`"


@contextlib.contextmanager
def opening_errors(where: str | os.PathLike[str]) -> Iterator[None]:
    """Turns an `OSError` of the block into `ReadFailed`; names the file, else `where`."""
    try:
        yield
    except BrokenPipeError:  # of whoever is told of the progress, and not of a file
        raise
    except OSError as error:
        raise read_failed(error, where) from error


def read_failed(error: OSError, where: str | os.PathLike[str]) -> ReadFailed:
    """The error of ours for a file that cannot be read: its name, the reason, what to do."""
    # The core's own errors have all of it in their message, and no number that stands for it.
    reason = error.strerror or str(error) or type(error).__name__
    name = os.fspath(where) if error.filename is None else error.filename
    return ReadFailed(f"{name}: {reason}. {_ADVICE.get(error.errno or 0, _USUAL_ADVICE)}")
