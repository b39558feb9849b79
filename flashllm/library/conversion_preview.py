"""What a conversion would make: bytes on disk, memory, speed, from config.json alone."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from flashllm.errors import UsageError
from flashllm.library.conversion_options import NO_PREDICTORS, ConvertOptions
from flashllm.library.formatting import format_shape
from flashllm.library.scan import Conditions, expected, known_activity
from flashllm.options import Select
from flashllm.planning.model_facts import check_selector
from flashllm.planning.shape_estimate import Weights, predictor_bytes, sizes_of_shape
from flashllm.spec import ModelSpec
from flashllm.system.filesystem import existing_parent

_CHECKSUM_BYTES = 4
PROCESSOR_SECONDS_PER_GB = 3.4
"""What converting a GB of a source takes: 3.2 to 3.5 s, hashes included, measured on 13.3 GB in f16
(docs/architecture.md)."""
_THREADS_MAX = 4
"""As many threads as a conversion computes in."""


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


def preview(
    source: Path, destination: Path, options: ConvertOptions, conditions: Conditions
) -> Preview:
    """What `options` would make of `source`; the converter's own errors where they make nothing."""
    from flashllm.convert import describe

    return preview_shape(describe(source, dtype=options.dtype), destination, options, conditions)


def preview_shape(
    spec: ModelSpec, destination: Path, options: ConvertOptions, conditions: Conditions
) -> Preview:
    """What `options` would make of a checkpoint of this shape, in the encoding of `spec`."""
    if spec.gate == "resident" and options.predictors != NO_PREDICTORS:
        spec = replace(spec, gate="bundled", rows_per_neuron=3)
    weights = Weights.of(spec)
    predictors = predictor_bytes(spec) if options.predictors != NO_PREDICTORS else 0
    checksums = _CHECKSUM_BYTES * spec.n_layers * spec.bundles_per_layer
    place = existing_parent(destination)
    status = os.statvfs(place)
    smallest, speed, assumed = _expected(spec, options, place, conditions)
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
        sparse=spec.sparse,
    )


def conversion_seconds(source_bytes: int) -> float:
    """About how long an idle machine like this one takes to convert weights of that size."""
    return PROCESSOR_SECONDS_PER_GB * source_bytes / 1e9 / min(os.cpu_count() or 1, _THREADS_MAX)


def _expected(
    spec: ModelSpec, options: ConvertOptions, place: Path, conditions: Conditions
) -> tuple[int | None, float | None, str]:
    """The smallest ceiling, tokens a second in the usual one, and what was assumed for them."""
    if conditions.interpreter_bytes is None:
        return None, None, ""
    select = _selector(spec, options, conditions.options.select)
    scenario = conditions.scenario(
        spec,
        sizes_of_shape(spec, conditions.interpreter_bytes),
        known_activity(spec, select, None),
        select,
        place,
    )
    return expected(scenario, conditions.ceiling_bytes)


def _selector(spec: ModelSpec, options: ConvertOptions, asked: Select | None) -> Select:
    """What the model will be run with: what was asked for, where it can be, or the best."""
    has_predictors = options.predictors != NO_PREDICTORS
    if asked is not None:
        with contextlib.suppress(UsageError):
            check_selector(asked, spec, has_predictors, Path())
            return asked
    if has_predictors:
        return "predicted"
    return "gate" if spec.sparse and spec.gate == "resident" else "all"
