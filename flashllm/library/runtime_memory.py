"""Memory of a process that runs models, before one is loaded: a part of every ceiling.

Measured in a process of its own, since callers here have loaded other things; kept in the user's
cache directory as long as versions are the same.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import flashllm
from flashllm.errors import LayoutError
from flashllm.system.atomic_file import write_whole
from flashllm.system.paths import cache_dir
from flashllm.untrusted.strict_json import parse_object

KEPT_FILE = "interpreter.json"
FILE_BYTES_MAX = 4096
SECONDS_MAX = 120.0
BYTES_MIN, BYTES_MAX = 1 << 20, 8 << 30
"""A value outside of these is no valid measurement."""
PACKAGE_PARENT = Path(flashllm.__file__).resolve().parent.parent
"""Working directory of child processes, so that they import nothing from the user's."""
_MEASURE = (
    "import flashllm.engine.local; from flashllm.engine import loading;"
    " print(loading.interpreter_bytes())"
)


def interpreter_bytes() -> int | None:
    """Resident memory of such a process; None if it could not be measured."""
    found = kept_bytes()
    if found is None:
        found = _measure()
        if found is not None:
            _keep(found)
    return found


def kept_bytes() -> int | None:
    """The value that was measured earlier; None if there is none."""
    file = cache_dir() / KEPT_FILE
    try:
        with open(file, "rb") as opened:
            values = parse_object(opened.read(FILE_BYTES_MAX), file, LayoutError)
    except (OSError, LayoutError):
        return None
    return _sensible(values.get("bytes")) if values.get("key") == _key() else None


def _key() -> str:
    import importlib.metadata  # brings much, and the chat loads this file before its first frame

    numpy_version = "unknown"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        numpy_version = importlib.metadata.version("numpy")
    versions = f"flashllm {flashllm.__version__}, numpy {numpy_version}, {sys.version}"
    return f"{versions}, without pages that only imports needed"


def _sensible(value: object) -> int | None:
    return value if type(value) is int and BYTES_MIN <= value <= BYTES_MAX else None


def _measure() -> int | None:
    try:
        finished = subprocess.run(
            [sys.executable, "-c", _MEASURE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=PACKAGE_PARENT,
            timeout=SECONDS_MAX,
            check=True,
        )
        return _sensible(int(finished.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _keep(found: int) -> None:
    file = cache_dir() / KEPT_FILE
    # Only saves time: where it cannot be kept, it is measured again.
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"key": _key(), "bytes": found}).encode())
