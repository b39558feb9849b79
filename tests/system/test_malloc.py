"""The heap stays flat, and what fails to be allocated is an error of ours."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from flashllm.errors import OutOfMemory
from flashllm.system import malloc
from flashllm.system.allocation import allocation_errors, out_of_memory

GLIBC = pytest.mark.skipif(
    not sys.platform.startswith("linux") or malloc._of_libc("mallopt") is None, reason="needs glibc"
)
# Blocks of three sizes by turns, and a small one that lives on after each, as activations are.
SCATTER = """
import resource
from flashllm.system import malloc
from flashllm.system.memory import rss_bytes
{first}
kept = []
before = rss_bytes()
for turn in range(40):
    blocks = [bytearray(size << 20) for size in (2, 3, 5, 8)]
    kept.append(bytearray(100_000))
    del blocks
    kept.append(bytearray(900_000))
    big = bytearray(30 << 20)
    kept.append(bytearray(50_000))
    del big
print(rss_bytes() - before - sum(map(len, kept)))
"""

# What the environment was when this process began (glibc ends it after its first setting), and what
# a process that this one starts gets.
RESTARTED = """
import os, subprocess, sys
from flashllm.system import malloc
malloc.restart_without_thread_caches()
began = open("/proc/self/environ").read().split("\\0")
print(*(text for text in began if text.startswith("GLIBC_TUNABLES=")), sys.argv[1:])
print(sys.flags.utf8_mode)
print(subprocess.check_output(["sh", "-c", "echo $GLIBC_TUNABLES"], text=True).strip())
"""
OFF = "glibc.malloc.tcache_count=0"

# As many heaps as glibc makes for a dozen threads that allocate at the same time.
THREADS = """
import ctypes, threading
from flashllm.system import malloc
{first}
barrier = threading.Barrier(12)

def take():
    blocks = [bytearray(60_000) for _ in range(40)]
    barrier.wait()

threads = [threading.Thread(target=take) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
ctypes.CDLL(None).malloc_stats()
"""


def left_bytes(first: str) -> int:
    """What the heap keeps beyond what is in use, after large blocks came and went."""
    done = subprocess.run(
        [sys.executable, "-c", SCATTER.format(first=first)],
        capture_output=True, text=True, check=True, env=_plain(), cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return int(done.stdout)


def heaps(first: str) -> int:
    """How many heaps there are after a dozen threads, as malloc_stats(3) counts them."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS.format(first=first)],
        capture_output=True, text=True, check=True, env=_plain(), cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return done.stderr.count("Arena ")


def _plain(**more: str) -> dict[str, str]:
    without = {name: value for name, value in os.environ.items() if "MALLOC" not in name.upper()}
    without.pop("GLIBC_TUNABLES", None)
    return without | more


@GLIBC
def test_large_blocks_leave_nothing_behind_once_the_limits_are_set() -> None:
    assert left_bytes("malloc.keep_heap_flat()") < 4 << 20


@GLIBC
def test_threads_share_one_heap() -> None:
    assert heaps("malloc.share_one_heap()") == 1
    assert heaps("") > 1


@GLIBC
@pytest.mark.parametrize(
    ("function", "more", "is_set"),
    [
        ("keep_heap_flat", {}, "True"),
        ("keep_heap_flat", {"MALLOC_MMAP_THRESHOLD_": "65536"}, "False"),
        ("keep_heap_flat", {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"}, "False"),
        ("share_one_heap", {}, "True"),
        ("share_one_heap", {"MALLOC_ARENA_MAX": "4"}, "False"),
        ("share_one_heap", {"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, "False"),
    ],
)
def test_what_the_user_has_set_stays(function: str, more: dict[str, str], is_set: str) -> None:
    code = f"from flashllm.system import malloc; print(malloc.{function}())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env=_plain(**more),
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.strip() == is_set


def test_a_library_without_these_functions_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    cached = (malloc.keep_heap_flat, malloc.share_one_heap)
    for function in cached:
        function.cache_clear()
    try:
        assert [function() for function in cached] == [False, False]
        malloc.give_back_free_memory()
    finally:
        for function in cached:
            function.cache_clear()


@GLIBC
@pytest.mark.parametrize(
    ("given", "began"),
    [
        ("", OFF),
        ("glibc.malloc.arena_max=4", OFF),
        ("glibc.malloc.tcache_count=7", "glibc.malloc.tcache_count=7"),
    ],
)
def test_caches_of_threads_are_off_in_this_process_and_not_in_those_it_starts(
    given: str, began: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "utf8=1", "-c", RESTARTED, "a word", "--flag"],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        env=_plain(**{"GLIBC_TUNABLES": given} if given else {}),
    )  # fmt: skip
    output, _ = process.communicate()
    assert process.returncode == 0
    first, *others = output.splitlines()
    assert first == f"GLIBC_TUNABLES={began} ['a word', '--flag']"
    assert others == ["1", given]


@pytest.mark.parametrize("libc", ["glibc 2.36", "", None])
def test_a_process_that_cannot_start_anew_goes_on(
    libc: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file to start, another C library, or none that says what it is."""
    tried = []

    def fail(path: str, arguments: list[str]) -> None:
        tried.append((path, arguments, os.environ["GLIBC_TUNABLES"]))
        raise FileNotFoundError

    monkeypatch.setattr("os.execv", fail)
    monkeypatch.setattr("os.confstr", lambda _: libc)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    malloc.restart_without_thread_caches()
    assert "GLIBC_TUNABLES" not in os.environ
    expected = (sys.executable, [sys.executable, *sys.orig_argv[1:]], OFF)
    assert tried == ([expected] if libc else [])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate"
            " memory: you tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)"
        ),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_failed_allocation_says_what_to_do(error: Exception) -> None:
    with (
        pytest.raises(OutOfMemory, match=r"while opening it.*--memory") as caught,
        allocation_errors("opening it"),
    ):
        raise error
    assert caught.value.exit_code == 71


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2"), ValueError("can't allocate")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert out_of_memory(error, "computing") is None
    with pytest.raises(type(error)), allocation_errors("computing"):
        raise error


def test_a_limit_of_addresses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3 << 30, 3 << 30))
    found = out_of_memory(MemoryError(), "computing")
    assert "`ulimit -v` allows 3072 MiB" in str(found)
