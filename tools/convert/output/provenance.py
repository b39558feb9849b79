"""What a converted model says of where it comes from: its manifest, and the id of its bundles."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import flashllm
from flashllm.flash.manifest import REQUANTISED_KEY, FileRecord, Manifest, layout_version
from flashllm.progress import SilentProgress

from ..families.config import CONFIG_FILE
from ..source.files import sha256_of, source_file
from .inspection import Job

SYNTHETIC_KEY = "flashllm_synthetic"
NOTE_KEY = "flashllm_synthetic_note"
NOTE_CHARACTERS_MAX = 300


def source_names(job: Job) -> list[str]:
    """The files of the source on which the weights depend."""
    return list(dict.fromkeys([job.config.path.name, *job.checkpoint.files]))


def bundles_id(job: Job, file_bytes: Mapping[str, int], resident: FileRecord) -> bytes:
    """What the checksums of the bundles are seeded with; `file_bytes` is of `source_names`.

    It changes with the settings, with what the source's files are called and where which tensor
    lies in them, and with the resident weights. The hashes of the source are not in it: they are
    known when all of it was read, bundles included.
    """
    identity = {
        "layout_version": layout_version(job.spec),
        "spec": job.spec.to_json(),
        "family": job.family.model_type,
        "overrides": job.overrides.to_json(),
        "files": dict(file_bytes),
        "config": _config_hash(job),
        "tensors": {name: asdict(tensor) for name, tensor in job.checkpoint.tensors.items()},
        "resident": resident.sha256,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).digest()[:16]


def _config_hash(job: Job) -> str:
    """SHA-256 of `config.json`, or of what stands in its place in a larger file."""
    if job.config.path.name == CONFIG_FILE:
        return sha256_of(source_file(job.source, CONFIG_FILE), SilentProgress())
    values = json.dumps(job.config.values, sort_keys=True, default=str)
    return hashlib.sha256(values.encode()).hexdigest()


def make_manifest(
    job: Job, hashed: Mapping[str, FileRecord], files: Mapping[str, FileRecord]
) -> Manifest:
    """The manifest of a model that consists of `files`; `hashed` is of `source_names`."""
    return Manifest(
        layout_version=layout_version(job.spec),
        spec=job.spec,
        name=job.name,
        synthetic=job.config.flag(SYNTHETIC_KEY, False),
        source=_describe_source(job, hashed),
        files=dict(files),
        tool_version=flashllm.__version__,
    )


def _describe_source(job: Job, hashed: Mapping[str, FileRecord]) -> dict[str, Any]:
    """`source` of the manifest: the family, what was asked for, and the hashes of the files."""
    files = {name: asdict(record) for name, record in hashed.items()}
    overrides = job.overrides.to_json()
    source: dict[str, Any] = {
        "family": job.family.model_type, "overrides": overrides, "files": files
    }  # fmt: skip
    if job.requantised:
        source[REQUANTISED_KEY] = list(job.requantised)
    note = job.config.get(NOTE_KEY)
    if job.config.flag(SYNTHETIC_KEY, False) and isinstance(note, str):
        source["synthetic_note"] = note[:NOTE_CHARACTERS_MAX]
    return source
