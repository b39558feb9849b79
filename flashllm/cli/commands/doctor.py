"""`flashllm doctor`: what this machine can do, what will be slow, and what to do about it.

Gathers facts, then derives lines from them (`doctor_checks`). Imports no torch: versions come from
the packages' metadata, and a model is planned from its headers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import psutil

from flashllm.cli.commands.doctor_checks import find_checks, format_checks, warning_texts
from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.output import Output
from flashllm.dtypes import DTYPES
from flashllm.errors import FlashllmError, ModelNotFound
from flashllm.flash.file_names import BUNDLES_FILE
from flashllm.hardware.device import processor_name
from flashllm.settings.options import MODEL
from flashllm.settings.values import parse_size
from flashllm.system.filesystem import describe_storage, existing_parent
from flashllm.system.paths import cache_dir, config_file

PROBE_BYTES = 64 << 10


def doctor(arguments: argparse.Namespace) -> int:
    """Prints a line for each thing that was looked at; no trouble changes the exit code."""
    facts = examine(_model_asked_for(arguments), arguments.memory)
    output = Output()
    if arguments.json:
        output.json(facts)
    else:
        output.write(format_checks(find_checks(facts)))
    return 0


def _model_asked_for(arguments: argparse.Namespace) -> Path | None:
    """The model of the command line, else that of the settings where these can be read."""
    from flashllm.settings.resolve import load_settings

    model = arguments.model
    if model is None:
        try:
            model = load_settings().value(MODEL.name)
        except FlashllmError:  # told as a line of its own
            return None
    return None if model is None else open_model.model_directory(model)


def examine(model: Path | None, memory: int | None = None) -> dict[str, Any]:
    """All facts, by section, and the lines and warnings that follow from them.

    `memory` is the ceiling for which the model is planned; None is the usual one.
    """
    if model is not None and not model.is_dir():
        raise ModelNotFound(f"{model}: there is no such directory; `flashllm ls` lists models")
    facts: dict[str, Any] = {
        "system": _system(),
        "core": _core(),
        "memory": _memory(),
        "settings": _settings(),
        "cache": _place(cache_dir(), is_model=False),
    }
    if model is not None:
        facts["model"] = _place(model, is_model=True)
        facts["plan"] = _plan(model, memory)
    facts["versions"] = _versions()
    checks = find_checks(facts)
    facts["warnings"] = warning_texts(checks)
    facts["checks"] = [check.to_json() for check in checks]
    return facts


def _settings() -> dict[str, Any]:
    """Whether config.toml and the environment can be read."""
    from flashllm.settings.resolve import load_settings

    try:
        load_settings()
        problem = None
    except FlashllmError as error:
        problem = str(error)
    return {"file": str(config_file()), "problem": problem}


def _plan(model: Path, memory: int | None) -> dict[str, Any]:
    """What the planner says of a model here, as `flashllm ls` shows it."""
    from flashllm.library.runtime_memory import interpreter_bytes
    from flashllm.library.scan import Conditions, examine
    from flashllm.library.verification import last_verified
    from flashllm.options import ModelOptions

    found = examine(model, Conditions(interpreter_bytes(), ModelOptions(memory=memory)))
    return {
        "name": found.name,
        "problem": found.problem or None,
        "is_checkpoint": bool(found.problem) and (model / "config.json").is_file(),
        "features": found.features or None,
        "encoding": found.encoding or None,
        "size_bytes": found.size_bytes,
        "smallest_ceiling_bytes": found.smallest_ceiling_bytes,
        "ceiling_bytes": found.ceiling_bytes,
        "is_ceiling_given": memory is not None,
        "fits": None if found.problem else not found.is_too_large,
        "tokens_per_second": found.tokens_per_second,
        "assumed": found.assumed or None,
        "quick": found.quick,
        "remarks": list(found.remarks),
        "verified": None if found.problem else last_verified(model),
    }


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
    from flashllm.hardware import machine_profile
    from flashllm.hardware.device import describe_device
    from flashllm.hardware.staleness import caution

    parent = existing_parent(directory)
    device, profile = describe_device(parent), machine_profile.find(parent)
    return {
        "directory": str(directory),
        **describe_storage(parent),
        "device_name": device.name,
        "device_kind": device.kind,
        "free_bytes": shutil.disk_usage(parent).free,
        **_probe(parent, is_model),
        "profile": None if profile is None else _profile(profile),
        "profile_problem": caution(parent) or None,
    }


def _profile(profile: Any) -> dict[str, Any]:
    """What is kept of a disk and this machine."""
    return {
        "date": profile.date,
        "quick": profile.quick,
        "complete": profile.complete,
        "sequential_bytes_per_second": profile.sequential_bytes_per_second,
        "has_machine_rates": profile.rates is not None,
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


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `doctor`; it reads settings by itself, since it says what is wrong with them."""
    parser.add_argument(
        MODEL.name, nargs="?", metavar=MODEL.metavar, help="say also whether this model fits here"
    )
    parser.add_argument(
        "--memory",
        type=argument(parse_size),
        metavar="SIZE",
        help="the ceiling to plan the model for (default: what is available)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


DOCTOR_EXAMPLES = """\
examples:
  flashllm doctor                               this machine
  flashllm doctor ~/big.flash --memory 8GiB     and whether that model fits, and how fast it is
"""
