"""`flashllm doctor`: what this machine can do, and what will be slow.

Gathers facts first, then derives warnings from them. Imports no torch: versions come from the
packages' metadata.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from flashllm.cli.shared import open_model
from flashllm.cli.shared.output import Output, table
from flashllm.dtypes import DTYPES
from flashllm.errors import ModelNotFound
from flashllm.hardware.device import processor_name
from flashllm.system.filesystem import describe_storage, existing_parent
from flashllm.system.paths import cache_dir
from flashllm.units import GIB, MIB, format_bytes

PROBE_BYTES = 64 << 10
BUNDLES_FILE = "ffn.bundles"


def doctor(arguments: argparse.Namespace) -> int:
    """Prints facts and warnings; warnings do not change the exit code."""
    model = open_model.model_directory(arguments.model) if arguments.model else None
    facts = examine(model)
    output = Output()
    if arguments.json:
        output.json(facts)
        return 0
    rows: list[tuple[str, Any]] = []
    for section, values in facts.items():
        if isinstance(values, dict):
            rows += [(f"{section} {name}", _readable(name, v)) for name, v in values.items()]
    output.write(table([(name.replace("_", " "), value) for name, value in rows]))
    output.write("\n")
    for warning in facts["warnings"] or ["nothing to worry about"]:
        output.write(f"{'warning: ' if facts['warnings'] else ''}{warning}\n")
    return 0


def examine(model: Path | None) -> dict[str, Any]:
    """All facts, by section, and the warnings that follow from them."""
    if model is not None and not model.is_dir():
        raise ModelNotFound(f"{model}: there is no such directory")
    facts: dict[str, Any] = {
        "system": _system(),
        "core": _core(),
        "memory": _memory(),
        "cache": _place(cache_dir(), is_model=False),
    }
    if model is not None:
        facts["model"] = _place(model, is_model=True)
    facts["versions"] = _versions()
    facts["warnings"] = find_warnings(facts)
    return facts


def _system() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "processor": processor_name(),
        "cpus": os.cpu_count() or 1,
        "python": platform.python_version(),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
    }


def _core() -> dict[str, Any]:
    from flashllm import core

    try:
        kernels = core.Kernels(threads=1)
        isa, problem = kernels.isa, ""
        kernels.close()
    except ValueError as error:  # FLASHLLM_ISA asks for what this processor has not
        isa, problem = "", str(error)
    return {
        "name": core.NAME,
        "fallback": core.FALLBACK or None,
        "isa": isa,
        "isas": core.available_isas(),
        "encodings": list(DTYPES),
        "problem": problem or None,
    }


def _memory() -> dict[str, Any]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "swap_used_bytes": swap.used,
    }


def _place(directory: Path, is_model: bool) -> dict[str, Any]:
    """A directory: its file system, device and free space, and whether direct I/O works."""
    from flashllm.hardware.staleness import caution

    parent = existing_parent(directory)
    return {
        "directory": str(directory),
        **describe_storage(parent),
        "free_bytes": shutil.disk_usage(parent).free,
        **_probe(parent, is_model),
        "profile_problem": caution(parent) or None,
    }


def _probe(directory: Path, is_model: bool) -> dict[str, Any]:
    """Tries one direct read, from a model's bundles or else from a temporary file."""
    try:
        if is_model:
            return _probe_file(directory / BUNDLES_FILE)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".flashllm-doctor-") as stream:
            stream.write(bytes(PROBE_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
            return _probe_file(Path(stream.name))
    except OSError as error:
        return {"direct": None, "fallback": f"not probed: {error.strerror}", "alignment": None}


def _probe_file(path: Path) -> dict[str, Any]:
    from flashllm import core

    reader = core.Reader(str(path), "optional", threads=1, backend=core.IO_BACKEND)
    try:
        return {
            "direct": bool(reader.direct),
            "fallback": reader.fallback or None,
            "alignment": int(reader.alignment),
            "io_backend": reader.backend,
            "io_backend_problem": reader.backend_problem or None,
        }
    finally:
        reader.close()


def _versions() -> dict[str, Any]:
    """Installed versions of what the package asks for; None where something is missing.

    What it asks for on some systems only, by a marker, is no trouble where it is absent.
    """
    try:
        required = importlib.metadata.requires("flashllm") or []
    except importlib.metadata.PackageNotFoundError:
        required = []
    versions: dict[str, Any] = {}
    for requirement in required:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        marker = requirement.partition(";")[2]
        if "extra ==" in marker:
            continue
        version = _version(name)
        if version is not None or not marker:
            versions[name] = version
    return versions


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_warnings(facts: dict[str, Any]) -> list[str]:
    """What will be slow or will not work, each with what to do about it."""
    warnings: list[str] = []
    core, memory = facts["core"], facts["memory"]
    if core["name"] != "native":
        warnings.append(f"the native core is not in use ({core['fallback']}): everything is slow")
    if core["isa"] == "scalar":
        warnings.append(
            "the kernels use no vector instructions (scalar): everything is slow; "
            "unset FLASHLLM_ISA if it is set"
        )
    if core["problem"]:
        warnings.append(f"{core['problem']}; unset FLASHLLM_ISA")
    if memory["available_bytes"] < GIB:
        free = format_bytes(memory["available_bytes"])
        warnings.append(f"only {free} of memory are available; close programs, or give --memory")
    for section in ("cache", "model"):
        if section in facts:
            warnings += _place_warnings(facts[section], is_model=section == "model")
    missing = [name for name, version in facts["versions"].items() if version is None]
    if missing:
        warnings.append(f"not installed: {', '.join(missing)}; run `pip install flashllm` again")
    if not facts["versions"]:
        warnings.append("flashllm itself is not installed; run `pip install .` in its folder")
    if sys.maxsize < 1 << 32:
        warnings.append("this Python has 32 bits; large models need one of 64")
    return list(dict.fromkeys(warnings))


def _place_warnings(place: dict[str, Any], is_model: bool) -> list[str]:
    directory, warnings = place["directory"], []
    if place["direct"] is False:
        warnings.append(f"{directory}: no direct I/O ({place['fallback']}); reads fill the cache")
    elif place["direct"] is None:
        hint = "is it a converted model?" if is_model else "set FLASHLLM_HOME to another directory"
        warnings.append(f"{directory}: {place['fallback']}; {hint}")
    if place["network"]:
        warnings.append(f"{directory}: a network file system ({place['filesystem']}); copy it here")
    if place["usb"]:
        warnings.append(f"{directory}: a USB device; an internal one is several times faster")
    if place["rotational"]:
        warnings.append(
            f"{directory}: the device says that it is a spinning disk; if it is, random reads crawl"
        )
    if place["profile_problem"]:
        warnings.append(place["profile_problem"])  # names the device, which both places may share
    if place["free_bytes"] < GIB:
        warnings.append(f"{directory}: only {format_bytes(place['free_bytes'])} are free")
    return warnings


def _readable(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("_bytes") and value >= MIB:
        return format_bytes(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    words = {None: "-", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
