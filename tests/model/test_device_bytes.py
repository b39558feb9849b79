"""What the reader says it read, against what the kernel says that this process read.

Linux counts in /proc/self/io what really went to the block layer: reads that the page cache
answers are not in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from flashllm.engine.local import open_model

def device_bytes():
    with open("/proc/self/io") as counters:
        return next(int(l.split()[1]) for l in counters if l.startswith("read_bytes"))

def cached_bytes(path):
    import ctypes, mmap, os
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        prot = mmap.PROT_READ | mmap.PROT_WRITE
        view = mmap.mmap(file.fileno(), size, prot=prot, flags=mmap.MAP_PRIVATE)
        pages = (size + 4095) // 4096
        state = (ctypes.c_ubyte * pages)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        libc = ctypes.CDLL(None, use_errno=True)
        result = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), state)
        assert result == 0, ctypes.get_errno()
        return 4096 * sum(s & 1 for s in state)

directory = sys.argv[1]
bundles = directory + "/ffn.bundles"
with open_model(directory, window=1) as model:
    direct = model.io_report()["direct"]
    generation = model.generate([5, 17, 40, 8, 61], max_tokens=150)
    next(generation)
    cached, before = cached_bytes(bundles), device_bytes()
    list(generation)
    print(direct, device_bytes() - before, generation.report()["decode"]["bytes_read"],
          cached_bytes(bundles) - cached)
"""


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_bytes_reported_are_bytes_read(sparse_model: Path) -> None:
    descriptor = os.open(sparse_model / "ffn.bundles", os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(sparse_model)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    if output[0] != "True":
        pytest.skip("the file system of the temporary directory refuses direct reads")
    from_device, reported, cached = map(int, output[1:])
    assert reported > 100_000
    assert from_device == pytest.approx(reported, rel=0.01)
    assert cached == 0
