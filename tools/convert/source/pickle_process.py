"""The child process that looks into one pickle of torch; run as a script, imports nothing of ours.

A pickle is a program. torch's `weights_only` runs none of it but what makes tensors, and had holes
twice (CVE-2025-32434, CVE-2026-24747); and a pickle that is only large can cost any time and
memory. Hence a process of its own, in which the kernel limits processor time and memory, no file
can be written and no process begun. It says what tensors there are and where their bytes lie. The
bytes themselves are read elsewhere, as plain ranges of the file.

Arguments: seconds of processor time, bytes of memory, descriptors of files. Writes one JSON object
to stdout: `files`, an object for each: `tensors`, a list of [name, type, shape, offset, bytes], or
`error`, with `mismatch` true where it is about one tensor. The first error is the last answer.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

_ZIP_START = b"PK\x03\x04"
_LOCAL_HEADER_BYTES = 30
_LENGTHS_AT = 26


class RefusedError(Exception):
    """The file is not a dictionary of plain tensors."""

    def __init__(self, words: str, mismatch: bool = False) -> None:
        super().__init__(words)
        self.mismatch = mismatch


def limit_resources(cpu_seconds: int, memory_bytes: int) -> None:
    """Limit what this process may use from now on, besides what it has used by now."""
    try:
        import resource
    except ImportError:  # not on this platform: the parent's time limit remains
        return
    seconds = math.ceil(time.process_time()) + cpu_seconds
    limits = [
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_NPROC, 0, 0),
    ]
    with contextlib.suppress(OSError):  # not on macOS, which has no limit on address space either
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + memory_bytes
        limits.append((resource.RLIMIT_AS, most, most))
    for kind, soft, hard in limits:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (soft, hard))


def describe(path: str) -> list[list[Any]]:
    """[name, type, shape, offset in the file, bytes] of each tensor in the pickle at `path`."""
    import torch

    ends = _stored_records(path)
    # On no device: then torch reads no data, and says where a storage begins in the file.
    values = torch.load(path, map_location="meta", weights_only=True)
    if not isinstance(values, dict):
        raise RefusedError(f"expected a dictionary, found {type(values).__name__}")
    return [_describe_tensor(key, value, ends) for key, value in values.items()]


def _stored_records(path: str) -> dict[int, int]:
    """Where the records of the archive begin -> where they end; all are stored as they are."""
    ends = {}
    with open(path, "rb") as file:
        if file.read(len(_ZIP_START)) != _ZIP_START:
            raise RefusedError("torch refuses to map it: it is in the format before torch 1.6")
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if info.compress_type != zipfile.ZIP_STORED:
                    raise RefusedError(f"{info.filename[:200]} in it is compressed")
                if info.filename.endswith("/byteorder") and archive.read(info) != b"little":
                    raise RefusedError("its numbers have their bytes in the other order")
                file.seek(info.header_offset + _LENGTHS_AT)
                name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
                start = info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
                ends[start] = start + info.file_size
    return ends


def _describe_tensor(key: object, value: object, ends: dict[int, int]) -> list[Any]:
    import torch

    where = str(key)[:200]
    if not isinstance(key, str) or not isinstance(value, torch.Tensor):
        raise RefusedError(f"{where}: expected a tensor, found {type(value).__name__}")
    if value.layout != torch.strided or not value.is_contiguous():
        raise RefusedError(
            f"{where}: not a dense, contiguous tensor; save it again as one", mismatch=True
        )
    names = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
    dtype = names.get(value.dtype, str(value.dtype).removeprefix("torch."))
    nbytes = value.numel() * value.element_size()
    storage: Any = value.untyped_storage()
    start = getattr(storage, "_checkpoint_offset", None)
    if start is None:
        raise RefusedError(f"{where}: torch does not say where its bytes are")
    offset = start + value.storage_offset() * value.element_size()
    if nbytes and offset + nbytes > ends.get(start, 0):
        raise RefusedError(f"{where}: reaches beyond its place in the file", mismatch=True)
    return [key, dtype, list(value.shape), offset if nbytes else 0, nbytes]


def answer_about(path: str, memory_bytes: int) -> dict[str, object]:
    """What is said of one file."""
    try:
        return {"tensors": describe(path)}
    except RefusedError as error:
        return {"error": str(error), "mismatch": error.mismatch}
    except MemoryError:
        return {"error": f"looking into it takes more than {memory_bytes >> 20} MiB"}
    except Exception as error:  # noqa: BLE001  torch raises many kinds, all of them about the file
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return {"error": f"torch refuses to read it as plain tensors: {lines[0][:300]}"}


def main() -> None:
    """Answers about files."""
    cpu_seconds, memory_bytes, *descriptors = map(int, sys.argv[1:])
    import torch  # before the limits: its libraries are large

    torch.set_num_threads(1)
    limit_resources(cpu_seconds, memory_bytes)
    answers: list[dict[str, object]] = []
    for descriptor in descriptors:
        answers.append(answer_about(f"/dev/fd/{descriptor}", memory_bytes))
        if "error" in answers[-1]:
            break
    sys.stdout.buffer.write(json.dumps({"files": answers}).encode())


if __name__ == "__main__":
    main()
