"""The C library's allocator: large blocks mapped one by one, so that the heap stays flat.

glibc maps blocks from 128 KiB on, and raises this limit to the size of each mapped block that is
freed. So after its first layers the activations of a prompt come from the heap, between small
blocks that live longer, and the heap keeps what they took: 36 to 62 MiB at a width of 4,096, which
no plan knows. A limit that was set stays where it is. Other allocators are left alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable

MMAP_THRESHOLD_BYTES = 1 << 20
"""Blocks from this size on are mapped, and unmapped when they are freed. Smaller ones, such as the
logits of a token, would only cost the kernel's work again and again (docs/log/)."""
TRIM_THRESHOLD_BYTES = 2 << 20
"""Free memory at the end of the heap beyond this goes back to the system."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Numbers of parameters of mallopt(3), the same on all architectures."""
_TUNABLES = "GLIBC_TUNABLES"
_NO_THREAD_CACHES = "glibc.malloc.tcache_count=0"
_SETTINGS_OF_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


@functools.cache
def keep_heap_flat() -> bool:
    """Sets the limits of this process's heap, once; whether they were set.

    They stay as they are where the user has set them (mallopt(3), GLIBC_TUNABLES).
    """
    if _is_set_by_user(*_SETTINGS_OF_USER):
        return False
    mallopt = _of_libc("mallopt")
    if mallopt is None:
        return False
    mapped = mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    trimmed = mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    return bool(mapped and trimmed)


@functools.cache
def share_one_heap() -> bool:
    """Has all threads of this process allocate from one heap, once; whether that was set.

    glibc gives each new thread a heap of its own, up to eight for each processor, and none of them
    uses what another one has free. To be called before threads are started.
    """
    mallopt = None if _is_set_by_user("MALLOC_ARENA_MAX") else _of_libc("mallopt")
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 1))


def restart_without_thread_caches() -> None:
    """Starts this process anew, the same arguments, so that glibc keeps no free pieces by thread.

    glibc keeps up to seven pieces of each small size for each thread, where no other thread finds
    them: 1.1 MiB in an hour of chat. Only the environment that a process starts with turns that off
    (`tcache_count`, "The GNU C Library Reference Manual", "Memory Allocation Tunables"). Processes
    that this one starts get the user's environment. To be called before anything else, as the start
    so far is done twice; nothing happens where the user has set this, or without glibc.
    """
    tunables = os.environ.get(_TUNABLES, "")
    if tunables.startswith(_NO_THREAD_CACHES):  # by us
        _set_tunables(tunables.removeprefix(_NO_THREAD_CACHES).lstrip(":"))
    elif "glibc.malloc.tcache_count=" not in tunables and sys.executable and _has_glibc():
        _set_tunables(f"{_NO_THREAD_CACHES}:{tunables}".rstrip(":"))
        with contextlib.suppress(OSError):  # then with caches
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
        _set_tunables(tunables)


def _set_tunables(tunables: str) -> None:
    if tunables:
        os.environ[_TUNABLES] = tunables
    else:
        os.environ.pop(_TUNABLES, None)


def _has_glibc() -> bool:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # Windows; other libraries
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    return False


def _is_set_by_user(*names: str) -> bool:
    """Whether the allocator is told something by a variable of the environment."""
    tunables = os.environ.get(_TUNABLES, "")
    return "glibc.malloc." in tunables or any(name in os.environ for name in names)


def give_back_free_memory() -> None:
    """Gives the pages of the heap that hold nothing back to the system, where the libc can."""
    trim = _of_libc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_libc(name: str) -> Callable[..., int] | None:
    """A function of the C library that takes and returns ints; None where there is none."""
    import ctypes  # not at each start of a command

    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no library None
        return None
    return function
