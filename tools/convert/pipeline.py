"""The whole conversion, in order: inspect, refuse early, write to a partial directory, publish."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import flashllm
from flashllm.errors import CannotCreate
from flashllm.flash.layout import BundleHeader
from flashllm.flash.manifest import (
    LAYOUT_VERSION,
    RESIDENT_FILE,
    FileRecord,
    Manifest,
    read_manifest,
)
from flashllm.planning.shape_estimate import predictor_bytes
from flashllm.progress import Progress, SilentProgress

from .families.config import CONFIG_FILE, read_config
from .families.families import family_of
from .families.spec_from_config import (
    Overrides,
    check_source,
    doubtful_activation,
    model_name,
    spec_of,
)
from .output.destination import (
    OutputFile,
    check_space,
    check_writable,
    partial_directory,
    whole_or_absent,
)
from .output.inspection import TOKENIZERS, Job, look
from .output.reorder import model_bytes, write_reordered
from .output.writing import resident_bytes, write_bundles, write_manifest, write_resident
from .phases import BUNDLES, RESIDENT, ConversionPlan, Learning, conversion_phases
from .predictors import train_or_import
from .source.checkpoint import open_checkpoint
from .source.files import read_small, sha256_of, source_file
from .source.hashing import Hashing

TOKENIZER_BYTES_MAX = 64 << 20
SYNTHETIC_KEY = "flashllm_synthetic"
NOTE_KEY = "flashllm_synthetic_note"
NOTE_CHARACTERS_MAX = 300
UNORDERED = "unordered"
"""Where the model lies until its neurons are in order."""


def convert(
    source: Path,
    destination: Path,
    *,
    dtype: str | None = None,
    act: str | None = None,
    fatrelu_threshold: float | None = None,
    predictors: str | Path = "none",
    calibration: Path | None = None,
    resident_dtype: str | None = None,
    predictor_dtype: str | None = None,
    order: str = "none",
    progress: Progress | None = None,
    on_plan: Callable[[ConversionPlan], None] | None = None,
    dry_run: bool = False,
) -> None:
    """Turn the checkpoint in `source` into a converted model at `destination`.

    `dtype` is f32, f16, bf16, int8 or int4 (the source's by default), `resident_dtype` that of the
    weights that stay in memory (as `dtype` by default), `predictor_dtype` f16, int8 or int4 (f16 by
    default where they are trained; others are taken over as they are). `act` and
    `fatrelu_threshold` override the configuration's activation. `predictors` is "none", "train" (on
    the text `calibration`, or the one that lies with the checkpoint), "checkpoint" (those inside
    it), or the path of a predictors.safetensors or of a folder of model_0.pt, model_1.pt, ...
    `order` is how neurons lie on flash: "none" as in the checkpoint, "coactivation" so that those
    that `calibration` needs together lie together. `on_plan` gets what will be done once all is
    checked, before anything is written; with `dry_run` nothing is. The destination is complete
    afterwards, or absent: any of the errors in `flashllm.errors`, `Interrupted` on Ctrl-C.
    """
    progress = SilentProgress() if progress is None else progress
    source, destination = Path(source), Path(destination).absolute()
    overrides = Overrides(dtype, act, fatrelu_threshold, resident_dtype, predictor_dtype)
    check_source(source)
    if destination.resolve().is_relative_to(source.resolve()) and not destination.exists():
        raise CannotCreate(f"{destination}: inside the checkpoint; choose a place outside it")
    with whole_or_absent(source, destination, progress):
        config = read_config(source)
        family = family_of(config)
        spec = spec_of(config, family, overrides, predicted=train_or_import.imports(predictors))
        train_or_import.check_origin(predictors, spec, calibration, predictor_dtype)
        train_or_import.check_order(order, spec, predictors, calibration)
        tokens = 0
        if predictors == train_or_import.TRAIN or calibration is not None:
            # Before the long work: a text that will not do should be refused now.
            from flashllm.predictors import check_calibration, find_calibration

            calibration = find_calibration(source, calibration)
            tokens = check_calibration(calibration, spec.vocab_size, _has_tokenizer(source))
        if (warning := doubtful_activation(model_name(source), spec, overrides)) is not None:
            progress.warn(warning)
        with open_checkpoint(source) as checkpoint:
            job = look(config, family, spec, checkpoint, overrides)
            ordered = order == train_or_import.COACTIVATION
            needed = _needed_bytes(job)
            learnt = train_or_import.needed_bytes(job, predictors, destination, tokens)
            whole = (2 if ordered else 1) * needed + learnt
            if on_plan is not None or dry_run:
                check_writable(destination, whole)
                learning = Learning(
                    tokens,
                    trains=predictors == train_or_import.TRAIN,
                    measures=calibration is not None,
                    orders=ordered,
                )
                plan = _plan(job, destination, needed, learnt, learning)
                if on_plan is not None:
                    on_plan(plan)
                if dry_run:
                    return
            with partial_directory(destination) as partial:
                check_space(partial, whole)
                first = partial / UNORDERED if ordered else partial
                first.mkdir(exist_ok=True)
                manifest = _write(job, first, predictors, progress)
                if predictors == train_or_import.TRAIN or calibration is not None:
                    found = train_or_import.learn(
                        predictors, first, destination, calibration, overrides, progress
                    )
                    write_manifest(first, replace(manifest, files=manifest.files | found))
                if ordered:
                    _order(first, partial, calibration, progress)


def _plan(
    job: Job, destination: Path, needed: int, learnt: int, learning: Learning
) -> ConversionPlan:
    """What the conversion of a job that was looked at will do."""
    source_bytes = sum(path.stat().st_size for path in _hashed_files(job).values())
    predictors = min(learnt, predictor_bytes(job.spec)) if learnt else 0
    status = os.statvfs(destination.parent)
    return ConversionPlan(
        source=job.source,
        destination=destination,
        spec=job.spec,
        source_bytes=source_bytes,
        written_bytes=needed + predictors,
        scratch_bytes=(needed if learning.orders else 0) + learnt - predictors,
        free_bytes=status.f_bavail * status.f_frsize,
        phases=conversion_phases(job.spec, source_bytes, needed, learning),
    )


def _order(first: Path, partial: Path, calibration: Path | None, progress: Progress) -> None:
    """The model that is complete in `first`, its neurons in order, into `partial`."""
    from flashllm.predictors import learn_order

    check_space(partial, model_bytes(read_manifest(first)))
    write_reordered(first, partial, learn_order(first, calibration, progress), progress)
    shutil.rmtree(first)


def _needed_bytes(job: Job) -> int:
    """Bytes that the converted model will take, without predictors."""
    spec = job.spec
    header = BundleHeader.for_spec(spec, bytes(16))
    needed = resident_bytes(spec) + header.file_bytes
    needed += 4 * spec.n_layers * spec.bundles_per_layer
    return needed + sum((job.source / name).stat().st_size for name in job.tokenizer_files)


def _write(
    job: Job, directory: Path, predictors: train_or_import.PredictorOrigin, progress: Progress
) -> Manifest:
    """All files of the converted model, its manifest last."""
    files = {name: _copy(job, name, directory) for name in job.tokenizer_files}
    if not _has_tokenizer(directory):
        progress.warn(
            f"{job.source}: no tokenizer; the model will run, but only with token ids as input"
        )
    if train_or_import.imports(predictors):
        files |= train_or_import.take_predictors(job, predictors, directory)
    assignment = job.assignment
    with Hashing(_hashed_files(job), assignment.tensors()) as hashing:
        progress.start(RESIDENT, resident_bytes(job.spec))
        files[RESIDENT_FILE] = write_resident(
            directory, job.spec, job.checkpoint, assignment.resident, hashing.used, progress
        )
        header = BundleHeader.for_spec(job.spec, _file_id(job, files[RESIDENT_FILE]))
        progress.start(BUNDLES, header.file_bytes)
        files |= write_bundles(
            directory, header, job.checkpoint, assignment, hashing.used, progress
        )
        source = _describe_source(job, hashing.records(progress))
    progress.finish()
    job.checkpoint.check_unchanged()
    manifest = Manifest(
        layout_version=LAYOUT_VERSION,
        spec=job.spec,
        name=model_name(job.source),
        synthetic=job.config.flag(SYNTHETIC_KEY, False),
        source=source,
        files=files,
        tool_version=flashllm.__version__,
    )
    write_manifest(directory, manifest)
    return manifest


def _has_tokenizer(directory: Path) -> bool:
    return any((directory / name).exists() for name in TOKENIZERS)


def _copy(job: Job, name: str, directory: Path) -> FileRecord:
    """One small file of the source as it is."""
    with OutputFile(directory / name) as file:
        file.write(read_small(job.source, name, TOKENIZER_BYTES_MAX))
    return file.record


def _hashed_files(job: Job) -> dict[str, Path]:
    """The files of the source on which the weights depend."""
    names = [CONFIG_FILE, *job.checkpoint.files]
    return {name: source_file(job.source, name) for name in names}


def _describe_source(job: Job, hashed: dict[str, FileRecord]) -> dict[str, Any]:
    """`source` of the manifest: the family, what was asked for, and the hashes of the files."""
    files = {name: asdict(record) for name, record in hashed.items()}
    overrides = job.overrides.to_json()
    source: dict[str, Any] = {
        "family": job.family.model_type, "overrides": overrides, "files": files
    }  # fmt: skip
    note = job.config.get(NOTE_KEY)
    if job.config.flag(SYNTHETIC_KEY, False) and isinstance(note, str):
        source["synthetic_note"] = note[:NOTE_CHARACTERS_MAX]
    return source


def _file_id(job: Job, resident: FileRecord) -> bytes:
    """What the checksums of the bundles are seeded with.

    It changes with the settings, with what the source's files are called and where which tensor
    lies in them, and with the resident weights. The hashes of the source are not in it: they are
    known when all of it was read, bundles included.
    """
    paths = _hashed_files(job)
    identity = {
        "layout_version": LAYOUT_VERSION,
        "spec": job.spec.to_json(),
        "family": job.family.model_type,
        "overrides": job.overrides.to_json(),
        "files": {name: path.stat().st_size for name, path in paths.items()},
        "config": sha256_of(paths[CONFIG_FILE], SilentProgress()),
        "tensors": {name: asdict(tensor) for name, tensor in job.checkpoint.tensors.items()},
        "resident": resident.sha256,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).digest()[:16]
