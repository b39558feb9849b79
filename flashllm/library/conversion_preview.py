"""What a conversion would make: bytes on disk, memory, speed, from config.json alone."""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from flashllm.errors import FlashllmError, NotACheckpoint, UsageError
from flashllm.library.conversion_options import NO_PREDICTORS, TRAIN, ConvertOptions
from flashllm.library.conversion_speeds import speeds_for
from flashllm.library.formatting import format_shape
from flashllm.library.scan import Conditions, expected, known_activity
from flashllm.options import Select
from flashllm.planning.model_facts import check_selector
from flashllm.planning.shape_estimate import Weights, predictor_bytes, sizes_of_shape
from flashllm.spec import ModelSpec
from flashllm.system.filesystem import existing_parent

_CHECKSUM_BYTES = 4
CALIBRATION_NAMES = ("calibration.jsonl", "calibration.ids")
BYTES_PER_TOKEN_MIN = 3
"""As `flashllm.predictors.calibration_texts` has them, which loads torch: a test compares them."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What to expect of a conversion; None where nobody can know yet."""

    features: str
    encoding: str
    disk_bytes: int
    """Of the converted model, about."""
    free_bytes: int
    """Where it is to be written."""
    smallest_ceiling_bytes: int | None
    application_bytes: int
    """Of the smallest ceiling, what is for the application beside the process that runs it."""
    ceiling_bytes: int | None
    tokens_per_second: float | None
    assumed: str
    sparse: bool
    """Whether neurons are zero at all, so that predictors have something to say."""
    seconds: float | None = None
    """That the conversion will take; None where the weights, or the text to train on, are not
    there."""
    seconds_origin: str = ""
    """Where that is known from; "" where nothing was measured here."""
    quick: bool = False
    """Whether the speed is by a quick profile."""


def preview(
    source: Path, destination: Path, options: ConvertOptions, conditions: Conditions
) -> Preview:
    """What `options` would make of `source`; the converter's own errors where they make nothing."""
    from flashllm.convert import brings_tokenizer, describe

    spec = describe(source, dtype=options.dtype, requantise=options.requantise)
    _check_no_pickle(source)
    has_tokenizer = brings_tokenizer(source)
    found = preview_shape(spec, destination, options, conditions, has_tokenizer=has_tokenizer)
    seconds, origin = _seconds_of_source(source, spec, options, destination, found.disk_bytes)
    return replace(found, seconds=seconds, seconds_origin=origin)


def _check_no_pickle(source: Path) -> None:
    """`UsageError` for weights in pickles, which only the command line may be told to read."""
    from flashllm.convert import weight_files

    with contextlib.suppress(NotACheckpoint):  # weights that are yet to come
        if weight_files(source).pickled:
            raise UsageError(
                f"{source}: its weights are pickles, which can carry programs; `flashllm convert"
                f" {shlex.quote(str(source))} --allow-pickle` reads their tensors, in a process"
                " with limits"
            )


def preview_shape(
    spec: ModelSpec,
    destination: Path,
    options: ConvertOptions,
    conditions: Conditions,
    *,
    has_tokenizer: bool = True,
) -> Preview:
    """What `options` would make of a checkpoint of this shape, in the encoding of `spec`."""
    if spec.gate == "resident" and options.predictors != NO_PREDICTORS:
        spec = replace(spec, gate="bundled", rows_per_neuron=3)
    weights = Weights.of(spec)
    predictors = predictor_bytes(spec) if options.predictors != NO_PREDICTORS else 0
    checksums = _CHECKSUM_BYTES * spec.bundled_layers * spec.bundles_per_layer
    place = existing_parent(destination)
    status = os.statvfs(place)
    smallest, speed, assumed, quick = _expected(
        spec, options, place, conditions, has_tokenizer=has_tokenizer
    )
    return Preview(
        features=format_shape(spec),
        encoding=spec.encoding_label,
        disk_bytes=weights.total + weights.padding + checksums + predictors,
        free_bytes=status.f_bavail * status.f_frsize,
        smallest_ceiling_bytes=smallest,
        application_bytes=conditions.options.application_bytes,
        ceiling_bytes=conditions.ceiling_bytes,
        tokens_per_second=speed,
        assumed=assumed,
        sparse=spec.selective,
        quick=quick,
    )


def _seconds_of_source(
    source: Path, spec: ModelSpec, options: ConvertOptions, destination: Path, disk_bytes: int
) -> tuple[float | None, str]:
    """How long converting a checkpoint takes; None where its weights or texts are not there."""
    from flashllm.convert import source_file, weight_files

    try:
        files = weight_files(source)
        paths = [source_file(files.directory, shard) for shard in files.shards]
        source_bytes = sum(path.stat().st_size for path in paths)
        tokens = 0
        if options.predictors == TRAIN:
            text = options.calibration or next(
                path for name in CALIBRATION_NAMES if (path := source / name).is_file()
            )
            tokens = text.stat().st_size // BYTES_PER_TOKEN_MIN
    except (FlashllmError, OSError, StopIteration):
        return None, ""
    return conversion_seconds(spec, source_bytes, disk_bytes, destination, tokens)


def conversion_seconds(
    spec: ModelSpec,
    source_bytes: int,
    disk_bytes: int,
    destination: Path,
    training_tokens: int = 0,
) -> tuple[float, str]:
    """How long the converter's phases take together, and where that is known from."""
    from flashllm.convert import Learning, conversion_phases

    learning = Learning(training_tokens, trains=training_tokens > 0)
    speeds = speeds_for(existing_parent(destination))
    phases = conversion_phases(spec, source_bytes, disk_bytes, learning)
    return sum(phase.seconds for phase in speeds.expect(phases)), speeds.origin


def _expected(
    spec: ModelSpec,
    options: ConvertOptions,
    place: Path,
    conditions: Conditions,
    *,
    has_tokenizer: bool,
) -> tuple[int | None, float | None, str, bool]:
    """The smallest ceiling; tokens a second in the usual one, what they assume, whether quick."""
    if conditions.interpreter_bytes is None:
        return None, None, "", False
    select = _selector(spec, options, conditions.options.select)
    scenario = conditions.scenario(
        spec,
        sizes_of_shape(spec, conditions.interpreter_bytes, has_tokenizer=has_tokenizer),
        known_activity(spec, select, None),
        select,
        place,
    )
    profile = scenario.profile
    quick = profile is not None and profile.quick
    return *expected(scenario, conditions.ceiling_bytes), quick


def _selector(spec: ModelSpec, options: ConvertOptions, asked: Select | None) -> Select:
    """What the model will be run with: what was asked for, where it can be, or the best."""
    has_predictors = options.predictors != NO_PREDICTORS
    if asked is not None:
        with contextlib.suppress(UsageError):
            check_selector(asked, spec, has_predictors, Path())
            return asked
    if has_predictors:
        return "predicted"
    if spec.experts is not None:
        return "router"
    return "gate" if spec.sparse and spec.gate == "resident" else "all"
