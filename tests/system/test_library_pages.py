"""Clean pages of files are given back, and what was written to is not."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest

from flashllm.system.library_pages import clean_mappings, drop_clean_pages
from flashllm.system.memory import own_bytes, rss_bytes
from flashllm.units import MIB

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
SIZE = 8 * MIB


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "library"
    with open(path, "wb") as opened:
        opened.write(bytes(range(256)) * (SIZE // 256))
        os.fsync(opened.fileno())  # until then its pages are dirty
    return path


def addresses() -> set[int]:
    return {address for address, _, _ in clean_mappings()}


def address_of(mapping: mmap.mmap) -> int:
    return ctypes.addressof((ctypes.c_char * SIZE).from_buffer(mapping))


def read_all(mapping: mmap.mmap) -> bytes:
    return bytes(mapping[:: mmap.PAGESIZE])


def test_pages_of_a_file_are_dropped_and_come_back(file: Path) -> None:
    drop_clean_pages()
    with open(file, "rb") as opened:
        mapping = mmap.mmap(opened.fileno(), SIZE, prot=mmap.PROT_READ)
    expected = read_all(mapping)
    before_bytes, own_before_bytes = rss_bytes(), own_bytes()
    assert drop_clean_pages() >= SIZE
    assert rss_bytes() <= before_bytes - SIZE
    assert abs(own_bytes() - own_before_bytes) < MIB, "pages of files are not the process's own"
    assert read_all(mapping) == expected


def test_what_was_written_to_stays(file: Path) -> None:
    """As code is that was relocated: its pages are no longer those of the file."""
    with open(file, "r+b") as opened:
        mapping = mmap.mmap(
            opened.fileno(), SIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    address = address_of(mapping)
    read_all(mapping)
    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert address not in addresses(), "it may be written to"
    assert libc.mprotect(address, SIZE, mmap.PROT_READ) == 0
    assert address in addresses()
    assert libc.mprotect(address, SIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    mapping[5] = 200
    assert libc.mprotect(address, SIZE, mmap.PROT_READ) == 0
    assert address not in addresses()
    drop_clean_pages()
    assert mapping[5] == 200
    assert libc.mprotect(address, SIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0


def test_without_proc_there_is_nothing(tmp_path: Path) -> None:
    assert drop_clean_pages(tmp_path / "smaps") == 0
