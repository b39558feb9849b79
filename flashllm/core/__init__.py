"""The core that moves bytes and multiplies rows: native where it was built, else its numpy twin.

`NAME` is "native" or "numpy"; `FALLBACK` says why the twin was taken, or "". The environment
variable FLASHLLM_CORE=numpy forces the twin, FLASHLLM_CORE=native refuses it.

`IO_BACKEND` is what readers of a model are to be opened with, from FLASHLLM_IO: auto (as threads),
threads, or uring (one thread with as many reads in flight, where the system has io_uring).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flashllm.errors import UsageError

__all__ = [
    "FALLBACK",
    "IO_BACKEND",
    "NAME",
    "Buffer",
    "ChecksumError",
    "Kernels",
    "Reader",
    "SlotTable",
    "available_isas",
    "bundle_checksums",
    "crc32c",
    "expert_weights",
    "gate_rows",
    "gelu",
    "ids_above",
    "keys_above",
    "open_kernels",
    "row_bytes",
    "row_read_ns",
    "run_ends",
    "stream_read_ns",
    "true_columns",
]

_KERNEL_THREADS_MAX = 1024
_NAMES = 1024
"""More than the native core has names of functions, arguments and classes."""


def _make_room_for_names() -> None:
    """Lets the interpreter's table of names grow now, if the core's would not fit any more.

    `MemoryError` where there is no memory for that, which in the core's own beginning would end the
    process without a word.
    """
    holder = type("holder", (), {})
    for number in range(_NAMES):
        setattr(holder, f"room for a name, {number}", None)


def _reason_for_twin() -> str:
    """Why the twin is to be used; "" for the native core."""
    wanted = os.environ.get("FLASHLLM_CORE", "")
    if wanted not in ("", "native", "numpy"):
        raise UsageError(f"FLASHLLM_CORE is {wanted!r}; expected native or numpy")
    if wanted == "numpy":
        return "FLASHLLM_CORE=numpy"
    _make_room_for_names()
    try:
        import flashllm._core  # noqa: F401
    except ImportError as error:
        if wanted == "native":
            raise
        return f"the native core is not there: {error}"
    return ""


def _wanted_backend() -> str:
    """What FLASHLLM_IO asks for."""
    wanted = os.environ.get("FLASHLLM_IO", "") or "auto"
    if wanted not in ("auto", "threads", "uring"):
        raise UsageError(f"FLASHLLM_IO is {wanted!r}; expected auto, threads or uring")
    return wanted


FALLBACK = _reason_for_twin()
IO_BACKEND = _wanted_backend()

if TYPE_CHECKING or not FALLBACK:
    from flashllm._core import (
        NAME,
        Buffer,
        ChecksumError,
        Kernels,
        Reader,
        SlotTable,
        available_isas,
        bundle_checksums,
        crc32c,
        expert_weights,
        gate_rows,
        gelu,
        ids_above,
        keys_above,
        row_bytes,
        row_read_ns,
        run_ends,
        stream_read_ns,
        true_columns,
    )
else:
    from flashllm.core.numpy_twin.bundle_checks import ChecksumError
    from flashllm.core.numpy_twin.kernels import (
        NAME,
        Kernels,
        available_isas,
        bundle_checksums,
        crc32c,
    )
    from flashllm.core.numpy_twin.memory import row_read_ns, stream_read_ns
    from flashllm.core.numpy_twin.reader import Buffer, Reader
    from flashllm.core.numpy_twin.routing import expert_weights
    from flashllm.core.numpy_twin.rows import row_bytes
    from flashllm.core.numpy_twin.selection import ids_above, keys_above, run_ends, true_columns
    from flashllm.core.numpy_twin.slots import SlotTable
    from flashllm.core.numpy_twin.token_rows import gate_rows, gelu


def open_kernels(threads: int, *, fast: bool = False) -> Kernels:
    """Kernels with `threads` threads; `UsageError` if FLASHLLM_ISA names an unavailable set.

    `fast` rounds the vectors that rows of groups are multiplied with to 7 bits instead of 14.
    """
    try:
        return Kernels(threads=min(threads, _KERNEL_THREADS_MAX), fast=fast)
    except ValueError as error:
        raise UsageError(f"FLASHLLM_ISA: {error}; unset it for the best one") from error
