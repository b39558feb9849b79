"""The header of a report: everything that is needed to repeat a measurement, as plain values."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

import flashllm
from flashllm import core
from flashllm.errors import FlashllmError
from flashllm.flash.file_names import MANIFEST_FILE
from flashllm.flash.manifest import Manifest, format_requantised, read_manifest
from flashllm.hardware.device import describe_device, processor_name
from flashllm.settings.file import read_config
from flashllm.settings.options import MODEL, MODEL_OPTIONS, SAMPLING_OPTIONS
from flashllm.system.filesystem import describe_storage, existing_parent
from flashllm.system.memory_limit import container_limit_bytes
from flashllm.system.paths import config_file
from flashllm.system.processors import usable_processors

SCHEMA_VERSION = 1
_LIBRARIES = ("torch", "numpy")
_THERMAL = Path("/sys/class/thermal")
_GIT_SECONDS = 5.0
_RECORDED = (MODEL, *MODEL_OPTIONS, *SAMPLING_OPTIONS)
"""Settings that change what is measured; the chat's settings may be private and are left out."""


def run_header(directory: Path | None, settings: dict[str, Any]) -> dict[str, Any]:
    """What, where, when and how; `directory` is that of a model, or of any file that is read.

    Values that this system does not tell are None. `synthetic` is True for made-up weights.
    """
    model = _model(directory)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": flashllm.__version__,
        "git": git_state(Path(flashllm.__file__).parent.parent),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(_command()),
        "environment": _environment(),
        "config": _config(),
        "settings": settings,
        "synthetic": bool(model and model["synthetic"]),
        "model": model,
        "storage": _storage(directory),
        "machine": machine(),
        "software": _software(),
    }


def _command() -> list[str]:
    """The command to type again; with `-m`, sys.argv has the module's file instead of its name."""
    return sys.orig_argv if "-m" in sys.orig_argv[1:3] else sys.argv


def machine() -> dict[str, Any]:
    """Processor, memory and load of the machine; None for unknown values."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "processor": processor_name(),
        "cpus": os.cpu_count(),
        "cpus_allowed": usable_processors(),
        "isa": _isa(),
        "frequency_mhz": _frequency_mhz(),
        "temperature_celsius": _temperature_celsius(),
        "load_average": _load_average(),
        "memory_total_bytes": int(memory.total),
        "memory_available_bytes": int(memory.available),
        "memory_limit_bytes": container_limit_bytes(),
        "swap_used_bytes": int(swap.used),
    }


def git_state(root: Path) -> dict[str, Any] | None:
    """Commit of a checkout and whether files differ from it; None for an installed package."""
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else {"commit": commit, "modified": bool(changes)}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _model(directory: Path | None) -> dict[str, Any] | None:
    """The model in a directory, or None where it holds none."""
    if directory is None or not (directory / MANIFEST_FILE).is_file():
        return None
    try:
        manifest: Manifest = read_manifest(directory)
    except FlashllmError as error:
        return {"directory": str(directory), "synthetic": False, "problem": str(error)}
    return {
        "name": manifest.name,
        "directory": str(directory.absolute()),
        "synthetic": manifest.synthetic,
        "requantised": format_requantised(manifest.source),
        "hash": hashlib.sha256((directory / MANIFEST_FILE).read_bytes()).hexdigest(),
        "layout_version": manifest.layout_version,
        "converted_by": manifest.tool_version,
        "dtype": manifest.spec.dtype,
        "resident_dtype": manifest.spec.matrix_dtype,
        "spec": manifest.spec.to_json(),
        "file_bytes": {name: record.bytes for name, record in manifest.files.items()},
    }


def _storage(directory: Path | None) -> dict[str, Any] | None:
    if directory is None:
        return None
    return describe_storage(existing_parent(directory)) | asdict(describe_device(directory))


def _environment() -> dict[str, str]:
    """Variables that change what is measured."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX", "LD_PRELOAD")
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in names or name.startswith("FLASHLLM_")
    }


def _config() -> dict[str, Any]:
    """Settings of models and answers in config.toml; flags and variables win over them."""
    try:
        said = read_config(config_file()).values
    except FlashllmError as error:
        return {"problem": str(error)}
    return {option.name: said[option.name].value for option in _RECORDED if option.name in said}


def _software() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "core": core.NAME,
        "core_fallback": core.FALLBACK or None,
        **{name: _version(name) for name in _LIBRARIES},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _isa() -> str | None:
    try:
        kernels = core.Kernels(threads=1)
    except ValueError:  # FLASHLLM_ISA asks for what this processor has not
        return None
    isa = str(kernels.isa)
    kernels.close()
    return isa


def _frequency_mhz() -> float | None:
    try:
        frequency = psutil.cpu_freq()
    except (OSError, RuntimeError, NotImplementedError, AttributeError):
        return None
    return float(frequency.current) if frequency else None


def _temperature_celsius() -> float | None:
    """The hottest zone that the kernel names."""
    found = []
    for path in _THERMAL.glob("thermal_zone*/temp"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int(path.read_text(encoding="ascii")) / 1000)
    return max(found, default=None)


def _load_average() -> list[float] | None:
    return [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None
