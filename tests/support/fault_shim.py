"""`tests/faults/shim/shim.c`: compiles it, and starts programs under it or arms it in this one."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import EVERY

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "faults" / "shim" / "shim.c"


@functools.cache
def shim() -> Path:
    """The compiled library; skips the test where it cannot be used."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    library = Path(tempfile.mkdtemp(prefix="flashllm-shim-")) / "shim.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", library, SOURCE, "-ldl"], check=True)
    return library


def environment(
    calls: str = "",
    path: str = "",
    code: int = 0,
    *,
    nth: int = 1,
    times: int = 0,
    least_bytes: int = 0,
    **more: str,
) -> dict[str, str]:
    """The environment of a program of which these calls fail: all from the `nth` on by default.

    The threads' back-end reads, since the shim does not see io_uring.
    """
    given = {
        "LD_PRELOAD": str(shim()),
        "FAULT_CALLS": calls,
        "FAULT_PATH": path,
        "FAULT_CODE": str(code),
        "FAULT_NTH": str(nth),
        "FAULT_TIMES": str(times),
        "FAULT_BYTES": str(least_bytes),
    }
    usual = {"FLASHLLM_IO": "threads", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **usual, **given, "FAULTS": "all" if EVERY else "", **more}


def run_under(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a module of the tests under the shim, which it arms itself by `ShimInjector`."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(
        command,
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


def say(**values: Any) -> None:
    """A line of the report of a program that runs under the shim."""
    print(json.dumps(values), flush=True)


class ShimInjector:
    """An `Injector` for calls of this process, which was started under the shim."""

    def __init__(self, calls: str, path: str) -> None:
        self._calls, self._path = calls.encode(), os.fsencode(path)
        self._library: Any = ctypes.CDLL(None)

    def arm(self, code: int, nth: int, *, for_ever: bool) -> None:
        """From the Nth call that follows, one or all fail."""
        times = ctypes.c_long(0 if for_ever else 1)
        self._library.fault_arm(self._calls, self._path, ctypes.c_long(nth), times, code)

    def disarm(self) -> int:
        """None fails any more; how many did."""
        self._library.fault_disarm()
        return int(self._library.fault_failed())
