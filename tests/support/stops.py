"""A stop (Ctrl-C) at every call that changes what is on the disk: just before it, or just after."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

WRITING_CALLS = ("mkdir", "rename", "fsync", "ftruncate", "pwrite", "unlink", "rmdir", "close")


@contextmanager
def stop_at(count: int, *, after: bool) -> Iterator[Callable[[], bool]]:
    """Raises KeyboardInterrupt at the `count`-th such call; yields whether it has come to that."""
    left = count

    def stopping(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            stops = left == 0
            if stops and not after and real is not os_close:
                raise KeyboardInterrupt
            result = real(*arguments, **options)
            if stops:
                raise KeyboardInterrupt
            return result

        return call

    os_close = os.close  # never left undone: descriptors would leak
    with pytest.MonkeyPatch.context() as patch:
        for name in WRITING_CALLS:
            patch.setattr(os, name, stopping(getattr(os, name)))
        yield lambda: left <= 0
