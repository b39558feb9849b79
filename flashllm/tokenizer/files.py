"""Reads the files of a tokenizer, which strangers made: bounded, and with errors of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flashllm.errors import ModelError

FILE_BYTES_MAX = 64 << 20
_Result = TypeVar("_Result")


def read_limited(path: Path) -> bytes:
    """The bytes of a tokenizer file; `ModelError` beyond the size that any real one has."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ModelError(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB; is it a tokenizer?")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; `ModelError` for anything else."""
    try:
        value = json.loads(read_limited(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return value


def guarded(
    path: Path, use: Callable[[], _Result], what: str = "be loaded as a tokenizer"
) -> _Result:
    """Runs a library on a stranger's file; whatever it dislikes becomes a `ModelError`."""
    try:
        return use()
    except (KeyboardInterrupt, SystemExit, ModelError):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        raise ModelError(f"{path}: cannot {what} ({error})") from error


def read_optional(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file."""
    return read_json(path) if path.is_file() else {}
