"""Allocations that fail, whoever made them: Python, numpy, the core, or torch for a device."""

from __future__ import annotations

import contextlib
import resource
import traceback
from collections.abc import Iterator

from flashllm.errors import OutOfMemory
from flashllm.system.malloc import give_back_free_memory

_WORDS_OF_LIBRARIES = (
    "can't allocate memory",  # torch, DefaultCPUAllocator
    "not enough memory",  # torch, elsewhere
    "bad_alloc",  # C++ behind torch
    "could not create a memory object",  # oneDNN
    "can't start new thread",  # Python: no addresses for its stack
    "Resource temporarily unavailable",  # C++: the same
)


def out_of_memory(error: BaseException, doing: str) -> OutOfMemory | None:
    """Our error for one that says that an allocation failed; None for any other error.

    `doing` is what was being done, for the message.
    """
    is_refusal = isinstance(error, MemoryError)
    if isinstance(error, RuntimeError):  # torch has no class for it
        is_refusal = any(words in str(error) for words in _WORDS_OF_LIBRARIES)
    if not is_refusal:
        return None
    return OutOfMemory(
        f"the system gave no more memory while {doing}{_limit()}. Close other programs, or open the"
        " model with a smaller --memory or --ctx-size"
    )


@contextlib.contextmanager
def allocation_errors(doing: str) -> Iterator[None]:
    """Context manager: `OutOfMemory` instead of the errors of failed allocations within."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        refused = out_of_memory(error, doing)
        if refused is None:
            raise
        # What the functions that failed had taken would else live as long as the error does.
        traceback.clear_frames(error.__traceback__)
        give_back_free_memory()
        raise refused from None


def _limit() -> str:
    """The limit of addresses in words; "" where there is none."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "" if limit == resource.RLIM_INFINITY else f" (`ulimit -v` allows {limit >> 20} MiB)"
