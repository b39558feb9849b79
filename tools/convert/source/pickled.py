"""`.bin` and `.pt` files of torch: looked into by a child process with limits, then read as ranges.

This process never unpickles anything. What the child says of a file is as untrusted as the file,
and held against its size. Nothing is tried in another way where torch refuses.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flashllm.dtypes import DTYPE_BYTES
from flashllm.errors import NotACheckpoint, TensorMismatch, UsageError
from flashllm.flash.safetensors_file import (
    DIMENSION_MAX,
    NAME_BYTES_MAX,
    RANK_MAX,
    TENSORS_MAX,
    VALUES_MAX,
)
from flashllm.untrusted.strict_json import parse_object

from .files import RangeFile, source_file
from .tensor import SourceTensor

CPU_SECONDS_MAX = 60
WALL_SECONDS_MAX = 300.0
MEMORY_BYTES_MAX = 1 << 30
"""Of the child, besides what Python and torch take."""
ANSWER_BYTES_MAX = 32 << 20
_PROCESS = Path(__file__).with_name("pickle_process.py")
_ENVIRONMENT = (
    "PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME",
    "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV",
)  # fmt: skip
"""Variables that the child gets. Others may hold tokens and passwords."""
_NOT_PLAIN = "It is damaged, or holds more than tensors"


def check_allowed(path: Path, allow_pickle: bool) -> None:
    """`UsageError` for a pickle that nobody has allowed to be read."""
    if not allow_pickle:
        raise UsageError(
            f"{path}: a pickle, a kind of file that can carry programs, so it is read only where"
            " you say so: --allow-pickle reads its tensors, in a process with limits. Look for the"
            " same weights as safetensors first"
        )


class PickledShard:
    """One file: a dictionary of dense tensors, nothing else."""

    def __init__(self, file: RangeFile, tensors: Iterable[SourceTensor]) -> None:
        self._file = file
        self._tensors = {tensor.name: tensor for tensor in tensors}

    def tensors(self) -> list[SourceTensor]:
        """The entries of the dictionary."""
        return list(self._tensors.values())

    def read_into(self, buffer: memoryview, name: str, start: int) -> None:
        """A positioned read."""
        tensor = self._tensors[name]
        assert start + len(buffer) <= tensor.nbytes
        self._file.read_into(buffer, tensor.offset + start)

    def expect(self, name: str) -> None:
        """Into the page cache."""
        tensor = self._tensors[name]
        self._file.expect(tensor.offset, tensor.nbytes)

    def check_unchanged(self) -> None:
        """By size and time of the last change."""
        self._file.check_unchanged()

    def close(self) -> None:
        """Close the file; what was read ahead of it leaves the page cache, too."""
        self._file.forget(0, self._file.size)
        self._file.close()


def open_pickles(directory: Path, names: Sequence[str]) -> dict[str, PickledShard]:
    """Files of a directory by their names; `NotACheckpoint` where one holds anything else.

    One child looks into all of them. The caller has seen to it that they may be read.
    """
    files: dict[str, RangeFile] = {}
    try:
        for name in names:
            files[name] = RangeFile(source_file(directory, name))
        answers = _ask(list(files.values()))
        found = [
            _read_answer(answer, file, name)
            for answer, (name, file) in zip(answers, files.items(), strict=True)
        ]
    except BaseException:
        for file in files.values():
            file.close()
        raise
    return {
        name: PickledShard(file, tensors)
        for (name, file), tensors in zip(files.items(), found, strict=True)
    }


def _ask(files: Sequence[RangeFile]) -> list[object]:
    """What the child says of each file, unchecked; the first error is raised."""
    first = files[0].path
    code, raw = _run([file.descriptor for file in files])
    if code or len(raw) > ANSWER_BYTES_MAX:
        more = f" (or one of {len(files) - 1} more)" if len(files) > 1 else ""
        raise NotACheckpoint(f"{first}{more}: torch refuses to read it: {_format_end(code)}")
    answers = parse_object(raw, first, NotACheckpoint, values_max=VALUES_MAX).get("files")
    if not isinstance(answers, list) or not 1 <= len(answers) <= len(files):
        raise NotACheckpoint(f"{first}: torch says nothing of it. {_NOT_PLAIN}")
    for answer, file in zip(answers, files, strict=False):
        if isinstance(answer, dict) and isinstance(error := answer.get("error"), str):
            if answer.get("mismatch") is True:
                raise TensorMismatch(f"{file.path}: {error}")
            raise NotACheckpoint(f"{file.path}: {error}. {_NOT_PLAIN}")
    if len(answers) < len(files):
        raise NotACheckpoint(f"{first}: torch says too little of it. {_NOT_PLAIN}")
    return answers


def _read_answer(answer: object, file: RangeFile, name: str) -> list[SourceTensor]:
    """The tensors of a file, as the child has told them; `NotACheckpoint` where that cannot be."""
    entries = answer.get("tensors") if isinstance(answer, dict) else None
    if not isinstance(entries, list) or len(entries) > TENSORS_MAX:
        raise NotACheckpoint(f"{file.path}: torch says nothing of its tensors. {_NOT_PLAIN}")
    tensors = [_checked(entry, name, file) for entry in entries]
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise NotACheckpoint(f"{file.path}: several tensors have one name. {_NOT_PLAIN}")
    return tensors


def _run(descriptors: Sequence[int]) -> tuple[int, bytes]:
    """Exit code and answer of the child that looks into open files."""
    arguments = map(str, (CPU_SECONDS_MAX, MEMORY_BYTES_MAX, *descriptors))
    with subprocess.Popen(
        [sys.executable, "-P", str(_PROCESS), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=descriptors,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    ) as process:
        assert process.stdout is not None
        clock = threading.Timer(WALL_SECONDS_MAX, process.kill)
        clock.daemon = True
        clock.start()
        try:
            raw = process.stdout.read(ANSWER_BYTES_MAX + 1)
            if len(raw) > ANSWER_BYTES_MAX:
                process.kill()
            return process.wait(), raw
        finally:
            process.kill()
            clock.cancel()


def _format_end(code: int) -> str:
    """Why the child gave no answer that can be used."""
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return (
            f"it takes more than {CPU_SECONDS_MAX} s of processor time, {MEMORY_BYTES_MAX >> 20}"
            f" MiB of memory, or {ANSWER_BYTES_MAX >> 20} MiB to name its tensors"
        )
    if code < 0:
        return f"the process that looked into it was ended by signal {-code}"
    return f"the process that looked into it ended with code {code}; is torch installed?"


def _checked(entry: Any, name: str, file: RangeFile) -> SourceTensor:
    """One tensor as the child has told it; `NotACheckpoint` where that cannot be."""
    wrong = NotACheckpoint(f"{file.path}: torch says {str(entry)[:200]!a} of it. {_NOT_PLAIN}")
    if not isinstance(entry, list) or len(entry) != 5:
        raise wrong
    tensor, dtype, shape, offset, nbytes = entry
    if not (isinstance(tensor, str) and isinstance(dtype, str) and isinstance(shape, list)):
        raise wrong
    sizes = [*shape, offset, nbytes]
    if len(shape) > RANK_MAX or not all(type(n) is int and 0 <= n <= DIMENSION_MAX for n in sizes):
        raise wrong
    # What has a surrogate cannot be printed.
    if any("\ud800" <= letter <= "\udfff" for letter in tensor) or (
        len(tensor.encode()) > NAME_BYTES_MAX
    ):
        raise wrong
    is_whole = nbytes == math.prod(shape) * DTYPE_BYTES.get(dtype, 0) or dtype not in DTYPE_BYTES
    if not is_whole or offset + nbytes > file.size:
        raise wrong
    return SourceTensor(tensor, dtype, tuple(shape), name, offset, nbytes)
