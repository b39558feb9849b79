"""A faulty back-end: the numpy twin's reader, whose system call fails by a script.

In this process, the same every time and on every system: one read is made after the other. What it
reads goes through the engine as it is, the native kernels included.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Any

import pytest

from flashllm import core
from flashllm.core.numpy_twin import reader
from tests.support.faults import DELAY, FLIP, REFUSE_DIRECT, SHORT, ZERO

DELAY_SECONDS = 0.005


class FaultyReads:
    """An `Injector` for all readers that are opened while the patch holds."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._code = self._nth = self._times = self._seen = self._failed = 0
        patch.setattr(core, "Reader", self._reader_class())

    def arm(self, code: int, nth: int, *, for_ever: bool) -> None:
        """From the Nth read that follows, one or all fail."""
        self._code, self._nth, self._times = code, nth, 1 << 62 if for_ever else 1
        self._seen = self._failed = 0

    def disarm(self) -> int:
        """None fails any more; how many did."""
        self._times = 0
        return self._failed

    def _strikes(self, is_direct: bool) -> bool:
        if not self._times or (self._code == REFUSE_DIRECT and not is_direct):
            return False
        self._seen += 1
        strikes = self._nth <= self._seen < self._nth + self._times
        self._failed += strikes
        return strikes

    def _reader_class(self) -> type[reader.Reader]:
        faults = self

        class FaultyReader(reader.Reader):
            def _read_at(self, view: memoryview, offset: int) -> int:
                if not faults._strikes(self.direct):
                    return super()._read_at(view, offset)
                return faults._read(self, super()._read_at, view, offset)

        return FaultyReader

    def _read(self, one: reader.Reader, read: Any, view: memoryview, offset: int) -> int:
        code = errno.EINVAL if self._code == REFUSE_DIRECT else self._code
        if code > 0:
            raise OSError(code, os.strerror(code))
        if code == ZERO:
            return 0
        if code == SHORT:  # but so much that there is progress
            view = view[: max(len(view) // 2 // one.alignment, 1) * one.alignment]
        if code == DELAY:
            time.sleep(DELAY_SECONDS)
        got = int(read(view, offset))
        if code == FLIP:
            view[got // 2] ^= 0x10
        return got
