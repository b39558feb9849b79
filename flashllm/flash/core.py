"""The core that moves bytes and multiplies rows: native where it was built, else its numpy twin.

`NAME` is "native" or "numpy"; `FALLBACK` says why the twin was taken, or "". The environment
variable FLASHLLM_CORE=numpy forces the twin, FLASHLLM_CORE=native refuses it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from flashllm.errors import UsageError

__all__ = [
    "FALLBACK",
    "NAME",
    "Buffer",
    "Kernels",
    "Reader",
    "available_isas",
    "bundle_checksums",
    "crc32c",
    "row_bytes",
    "stream_read_ns",
]


def _reason_for_twin() -> str:
    """Why the twin is to be used; "" for the native core."""
    wanted = os.environ.get("FLASHLLM_CORE", "")
    if wanted not in ("", "native", "numpy"):
        raise UsageError(f"FLASHLLM_CORE is {wanted!r}; expected native or numpy")
    if wanted == "numpy":
        return "FLASHLLM_CORE=numpy"
    try:
        import flashllm._core  # noqa: F401
    except ImportError as error:
        if wanted == "native":
            raise
        return f"the native core is not there: {error}"
    return ""


FALLBACK = _reason_for_twin()

if TYPE_CHECKING or not FALLBACK:
    from flashllm._core import (
        NAME,
        Buffer,
        Kernels,
        Reader,
        available_isas,
        bundle_checksums,
        crc32c,
        row_bytes,
        stream_read_ns,
    )
else:
    from flashllm.flash.numpy_core import (
        NAME,
        Buffer,
        Kernels,
        Reader,
        available_isas,
        bundle_checksums,
        crc32c,
        row_bytes,
        stream_read_ns,
    )
