"""The whole conversion, in order: look, refuse early, write aside, publish."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import flashllm
from flashllm.errors import (
    CannotCreate,
    Interrupted,
    ModelNotFound,
    NotACheckpoint,
    ReadFailed,
    UsageError,
)
from flashllm.flash.layout import BundleHeader, FileRecord, Manifest
from flashllm.flash.manifest import (
    ACTIVITY_FILE,
    LAYOUT_VERSION,
    MANIFEST_FILE,
    MANIFEST_HASH_FILE,
    PREDICTORS_FILE,
    RESIDENT_FILE,
    manifest_hash_line,
)
from flashllm.spec import DTYPE_BYTES, ModelSpec

from .checkpoint import open_checkpoint
from .config import CONFIG_FILE, read_config
from .destination import OutputFile, check_space, partial_directory, sync
from .families import family_of
from .files import read_small, sha256_of, source_file
from .job import Job, look
from .predictor_files import copy_predictors
from .progress import Progress, SilentProgress
from .writing import resident_bytes, write_bundles, write_resident

TOKENIZER_BYTES_MAX = 64 << 20
SYNTHETIC_KEY = "flashllm_synthetic"
# Room kept for predictors that are yet to be trained, as if each were of this rank.
_PREDICTOR_RANK = 256


def convert(
    source: Path,
    destination: Path,
    *,
    dtype: str | None = None,
    predictors: str | Path = "none",
    calibration: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Turn the checkpoint in `source` into a converted model at `destination`.

    `dtype` is f32, f16 or bf16 (the source's by default); `predictors` is "none", "train" (on the
    text `calibration`, or the one that lies with the checkpoint), or the path of a
    predictors.safetensors. The destination is complete afterwards, or absent: any of the errors
    in `flashllm.errors`, `Interrupted` on Ctrl-C.
    """
    progress = SilentProgress() if progress is None else progress
    source, destination = Path(source), Path(destination).absolute()
    if dtype is not None and dtype not in DTYPE_BYTES:
        raise UsageError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPE_BYTES)}")
    if calibration is not None and predictors != "train":
        raise UsageError("a calibration text is of use only when predictors are trained")
    _check_paths(source, destination)
    if predictors == "train":
        # Before the long work: a text that is missing should be missed now.
        from flashllm.predictors import find_calibration

        calibration = find_calibration(source, calibration)
    try:
        config = read_config(source)
        family = family_of(config)
        with open_checkpoint(source) as checkpoint:
            job = look(config, family, checkpoint, dtype)
            with partial_directory(destination) as partial:
                check_space(partial, _needed_bytes(job, predictors))
                _write(job, partial, predictors, calibration, progress)
    except OSError as problem:
        reason = os.strerror(problem.errno) if problem.errno else str(problem)
        raise ReadFailed(f"{problem.filename or source}: cannot be read: {reason}") from problem
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"stopped; nothing is left at {destination}. Run the same command to start again"
        ) from stop
    finally:
        progress.finish()


def _check_paths(source: Path, destination: Path) -> None:
    """Refuses what can be refused by looking at names."""
    if not source.exists():
        raise ModelNotFound(f"{source}: there is no such checkpoint")
    if not source.is_dir():
        raise NotACheckpoint(
            f"{source}: not a directory; give the directory that holds {CONFIG_FILE}"
        )
    if (source / MANIFEST_FILE).exists() and not (source / CONFIG_FILE).exists():
        raise NotACheckpoint(f"{source}: is a converted model already")
    if destination.resolve().is_relative_to(source.resolve()) and not destination.exists():
        raise CannotCreate(f"{destination}: inside the checkpoint; choose a place outside it")


def _needed_bytes(job: Job, predictors: str | Path) -> int:
    """Bytes that the converted model will take."""
    spec = job.spec
    header = BundleHeader.for_spec(spec, bytes(16))
    needed = resident_bytes(spec) + header.file_bytes
    needed += 4 * spec.n_layers * spec.bundles_per_layer
    needed += sum((job.source / name).stat().st_size for name in job.tokenizer_files)
    if predictors == "train":
        needed += 2 * _PREDICTOR_RANK * spec.n_layers * (spec.d_model + spec.d_ffn)
    elif predictors != "none" and Path(predictors).is_file():
        needed += Path(predictors).stat().st_size
    return needed


def _write(
    job: Job,
    directory: Path,
    predictors: str | Path,
    calibration: Path | None,
    progress: Progress,
) -> None:
    """All files of the converted model, its manifest last."""
    files = {name: _copy(job, name, directory) for name in job.tokenizer_files}
    if not {"tokenizer.model", "tokenizer.json", "vocab.json"} & set(files):
        progress.warn(
            f"{job.source}: no tokenizer; the model will run, but only with token ids as input"
        )
    trained = predictors == "train"
    if predictors != "none" and not trained:
        copy_predictors(Path(predictors), directory, job.spec)
        files |= _predictor_records(directory)
    source = _describe_source(job, progress)
    header = BundleHeader.for_spec(job.spec, _file_id(source, job.spec))
    progress.start("resident weights", resident_bytes(job.spec))
    files[RESIDENT_FILE] = write_resident(
        directory, job.spec, job.checkpoint, job.assignment.resident, progress
    )
    progress.start("feed-forward bundles", header.file_bytes)
    files |= write_bundles(directory, header, job.checkpoint, job.assignment, progress)
    progress.finish()
    job.checkpoint.check_unchanged()
    manifest = Manifest(
        layout_version=LAYOUT_VERSION,
        spec=job.spec,
        name=_model_name(job.source),
        synthetic=job.config.flag(SYNTHETIC_KEY, False),
        source=source,
        files=files,
        tool_version=flashllm.__version__,
    )
    write_manifest(directory, manifest)
    if trained:
        _train(directory, calibration, progress)
        files = files | _predictor_records(directory)
        write_manifest(directory, replace(manifest, files=files))


def _train(directory: Path, calibration: Path | None, progress: Progress) -> None:
    """Predictors of the model that is complete in `directory`, written into it."""
    from flashllm.predictors import train_predictors

    train_predictors(directory, directory, calibration, progress)


def _copy(job: Job, name: str, directory: Path) -> FileRecord:
    """One small file of the source as it is."""
    with OutputFile(directory / name) as file:
        file.write(read_small(job.source, name, TOKENIZER_BYTES_MAX))
    return file.record


def _predictor_records(directory: Path) -> dict[str, FileRecord]:
    """Size and hash of the predictor's files, which are made durable."""
    records = {}
    for name in (PREDICTORS_FILE, ACTIVITY_FILE):
        path = directory / name
        sync(path)
        records[name] = FileRecord(path.stat().st_size, sha256_of(path, SilentProgress()))
    return records


def _describe_source(job: Job, progress: Progress) -> dict[str, Any]:
    """`source` of the manifest: the family, what was asked for, and the hashes of the files."""
    names = [CONFIG_FILE, *job.checkpoint.files]
    paths = {name: source_file(job.source, name) for name in names}
    progress.start("hashing the source", sum(path.stat().st_size for path in paths.values()))
    files = {
        name: asdict(FileRecord(path.stat().st_size, sha256_of(path, progress)))
        for name, path in paths.items()
    }
    return {"family": job.family.model_type, "overrides": job.overrides, "files": files}


def _file_id(source: dict[str, Any], spec: ModelSpec) -> bytes:
    """What the checksums of the bundles are seeded with: it changes with the source or settings."""
    identity = json.dumps([LAYOUT_VERSION, spec.to_json(), source], sort_keys=True)
    return hashlib.sha256(identity.encode()).digest()[:16]


def _model_name(source: Path) -> str:
    """The name of the directory, or organisation/name for a snapshot in the Hugging Face cache."""
    home = source.resolve()
    if home.parent.name == "snapshots":
        return home.parent.parent.name.removeprefix("models--").replace("--", "/")
    return home.name


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """`manifest.json` and its hash, in place of those that may be there."""
    raw = manifest.to_bytes()
    for name, content in ((MANIFEST_FILE, raw), (MANIFEST_HASH_FILE, manifest_hash_line(raw))):
        (directory / name).unlink(missing_ok=True)
        with OutputFile(directory / name) as file:
            file.write(content)
