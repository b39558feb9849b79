"""The whole conversion, in order: inspect, refuse early, write to a partial directory, publish."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flashllm.errors import CannotCreate
from flashllm.flash.file_names import RESIDENT_FILE
from flashllm.flash.layout import BundleHeader
from flashllm.flash.manifest import Manifest, read_manifest
from flashllm.planning.shape_estimate import predictor_bytes
from flashllm.progress import Progress, SilentProgress

from .families.families import family_of
from .families.opening import open_source, source_config
from .families.spec_from_config import (
    Overrides,
    check_source,
    doubtful_activation,
    model_name,
    spec_of,
)
from .output.destination import (
    check_space,
    check_writable,
    partial_directory,
    whole_or_absent,
)
from .output.inspection import Job, check_copies, converted_bytes, look
from .output.provenance import bundles_id, make_manifest, source_names
from .output.reorder import model_bytes, write_reordered
from .output.tokenizer_files import write_tokenizer
from .output.writing import resident_bytes, write_bundles, write_manifest, write_resident
from .phases import BUNDLES, RESIDENT, ConversionPlan, Learning, conversion_phases
from .predictors import train_or_import
from .source.files import source_file
from .source.hashing import Hashing

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
    allow_pickle: bool = False,
    requantise: bool = False,
    progress: Progress | None = None,
    on_plan: Callable[[ConversionPlan], None] | None = None,
    dry_run: bool = False,
) -> None:
    """Turn the checkpoint in `source`, a directory or a .gguf, into a converted model.

    `dtype` is f32, f16, bf16, int8, int4 or mxfp4 (the source's by default), `resident_dtype` that
    of the weights that stay in memory (as `dtype` by default), `predictor_dtype` f16, int8 or int4
    (f16 by default where they are trained; others are taken over as they are). `act` and
    `fatrelu_threshold` override the configuration's activation. `predictors` is "none", "train" (on
    the text `calibration`, or the one that lies with the checkpoint), "checkpoint" (those inside
    it), or the path of a predictors.safetensors or of a folder of model_0.pt, model_1.pt, ...
    `order` is how neurons lie on flash: "none" as in the checkpoint, "coactivation" so that those
    that `calibration` needs together lie together. Weights and predictors in pickles are refused
    unless `allow_pickle` is set, and then read in a process with limits. Weights of a .gguf that
    would be rounded a second time are refused unless `requantise` is set. `on_plan` gets what will
    be done once all is checked, before anything is written; with `dry_run` nothing is. The
    destination is complete afterwards, or absent: any of the errors in `flashllm.errors`,
    `Interrupted` on Ctrl-C.
    """
    progress = SilentProgress() if progress is None else progress
    source, destination = Path(source), Path(destination).absolute()
    overrides = Overrides(
        dtype, act, fatrelu_threshold, resident_dtype, predictor_dtype, requantise or None
    )
    check_source(source)
    if destination.resolve().is_relative_to(source.resolve()) and not destination.exists():
        raise CannotCreate(f"{destination}: inside the checkpoint; choose a place outside it")
    with whole_or_absent(source, destination, progress):
        config = source_config(source)
        family = family_of(config)
        spec = spec_of(config, family, overrides, predicted=train_or_import.imports(predictors))
        train_or_import.check_origin(predictors, spec, calibration, predictor_dtype, allow_pickle)
        train_or_import.check_order(order, spec, predictors, calibration)
        name = model_name(source)
        if (warning := doubtful_activation(name, spec, overrides)) is not None:
            progress.warn(warning)
        with open_source(source, allow_pickle) as checkpoint:
            job = look(name, config, family, spec, checkpoint, overrides)
            tokens = 0
            if predictors == train_or_import.TRAIN or calibration is not None:
                # Before the long work: a text that will not do should be refused now.
                from flashllm.predictors import check_calibration, find_calibration

                calibration = find_calibration(job.source, calibration)
                tokens = check_calibration(calibration, spec.vocab_size, job.has_tokenizer)
            ordered = order == train_or_import.COACTIVATION
            needed = converted_bytes(job)
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
            check_copies(job)
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
    source_bytes = sum(source_file(job.source, name).stat().st_size for name in source_names(job))
    predictors = min(learnt, predictor_bytes(job.spec)) if learnt else 0
    status = os.statvfs(destination.parent)
    return ConversionPlan(
        source=job.source if job.checkpoint.metadata is None else job.config.path,
        destination=destination,
        spec=job.spec,
        requantised=job.requantised,
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


def _write(
    job: Job, directory: Path, predictors: train_or_import.PredictorOrigin, progress: Progress
) -> Manifest:
    """All files of the converted model, its manifest last."""
    files = write_tokenizer(job.source, job.tokenizer_files, job.made_files, directory, progress)
    if train_or_import.imports(predictors):
        files |= train_or_import.take_predictors(job, predictors, directory)
    assignment = job.assignment
    paths = {name: source_file(job.source, name) for name in source_names(job)}
    with Hashing(paths, assignment.tensors()) as hashing:
        progress.start(RESIDENT, resident_bytes(job.spec))
        files |= write_resident(
            directory, job.spec, job.checkpoint, assignment.resident, hashing.used, progress
        )
        file_bytes = {name: path.stat().st_size for name, path in paths.items()}
        file_id = bundles_id(job, file_bytes, files[RESIDENT_FILE])
        header = BundleHeader.for_spec(job.spec, file_id)
        progress.start(BUNDLES, header.file_bytes)
        files |= write_bundles(
            directory, header, job.checkpoint, assignment, hashing.used, progress
        )
        hashed = hashing.records(progress)
    progress.finish()
    job.checkpoint.check_unchanged()
    manifest = make_manifest(job, hashed, files)
    write_manifest(directory, manifest)
    return manifest
