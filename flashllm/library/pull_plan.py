"""What pulling a checkpoint will take and lead to, from its config.json and the sizes of its files.

Memory and speed come from the same planner as those of `flashllm plan`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.errors import NotEnoughSpace, UnsupportedModel
from flashllm.library.conversion_options import NO_PREDICTORS, TRAIN, ConvertOptions
from flashllm.library.conversion_preview import Preview, conversion_seconds, preview_shape
from flashllm.library.hf_cache import cache_directories
from flashllm.library.pull import Making, RemoteCheckpoint, cached
from flashllm.library.scan import Conditions
from flashllm.options import Select
from flashllm.planning.shape_estimate import usual_selector
from flashllm.system.filesystem import existing_parent
from flashllm.units import format_bytes

if TYPE_CHECKING:
    from flashllm.spec import ModelSpec

NARROWER = ("int8", "int4")
"""Encodings that are tried where a model needs more memory than there is."""


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What it takes, before anything large is fetched."""

    repository: str
    revision: str
    commit: str
    pickled: bool
    """Whether its weights are pickles."""
    files: int
    fetch_bytes: int
    """Of all files that a conversion needs."""
    here_bytes: int
    """The part of it that is in the cache already."""
    converted: Preview
    """The model that it becomes."""
    select: Select
    """What should choose its neurons, as it runs best."""
    trains: bool
    """Whether that trains predictors."""
    predicts: bool
    """Whether it has predictors then."""
    convert_seconds: float
    """About how long converting takes here, without fetching and training."""
    at_once_bytes: int
    """The most that is on disk at one time, where it is fetched and converted."""
    narrower: tuple[tuple[str, int], ...]
    """Encodings in which it would fit although it does not now, with the memory they need."""

    @property
    def fits(self) -> bool | None:
        """Whether it runs in the memory that there is; None where nobody knows."""
        needs, ceiling = self.converted.smallest_ceiling_bytes, self.converted.ceiling_bytes
        return None if needs is None or ceiling is None else needs <= ceiling

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        made = self.converted
        return {
            "repository": self.repository,
            "revision": self.revision,
            "commit": self.commit,
            "pickled": self.pickled,
            "files": self.files,
            "fetch_bytes": self.fetch_bytes,
            "here_bytes": self.here_bytes,
            "shape": made.features,
            "precision": made.encoding,
            "sparse": made.sparse,
            "fits": self.fits,
            "smallest_ceiling_bytes": made.smallest_ceiling_bytes,
            "ceiling_bytes": made.ceiling_bytes,
            "tokens_per_second": made.tokens_per_second,
            "assumed": made.assumed,
            "select": self.select,
            "trains_predictors": self.trains,
            "disk_bytes": made.disk_bytes,
            "at_once_bytes": self.at_once_bytes,
            "free_bytes": made.free_bytes,
            "convert_seconds": round(self.convert_seconds, 1),
            "would_fit": dict(self.narrower),
        }


def plan_pull(
    checkpoint: RemoteCheckpoint,
    destination: Path,
    making: Making,
    conditions: Conditions,
    *,
    converts: bool,
    streams: bool,
) -> PullPlan:
    """The plan; `streams` where each shard goes as soon as it is converted.

    Where nothing is converted now, it is planned as it should be later.
    """
    spec = checkpoint.describe(**making.reading)
    options = _options(spec, making, converts=converts)
    made = preview_shape(spec, destination, options, conditions)
    place = cached(checkpoint)
    source_bytes = checkpoint.bytes
    beside = max(file.size for file in checkpoint.shards) if streams else source_bytes
    return PullPlan(
        repository=checkpoint.repository.name,
        revision=checkpoint.repository.revision,
        commit=checkpoint.repository.commit,
        pickled=checkpoint.weights.pickled,
        files=len(checkpoint.files),
        fetch_bytes=source_bytes,
        here_bytes=sum(place.bytes_here(file) for file in checkpoint.files),
        converted=made,
        select=usual_selector(spec),
        trains=options.predictors == TRAIN,
        convert_seconds=conversion_seconds(spec, source_bytes, made.disk_bytes, destination)[0],
        predicts=options.predictors != NO_PREDICTORS,
        at_once_bytes=made.disk_bytes + beside,
        narrower=_narrower(checkpoint, destination, making, options, conditions, made),
    )


def _options(spec: ModelSpec, making: Making, *, converts: bool) -> ConvertOptions:
    """How it is converted, or should be later."""
    if not converts and usual_selector(spec) == "predicted":
        return ConvertOptions(making.dtype, TRAIN)
    return ConvertOptions(making.dtype, making.predictors)


def _narrower(
    checkpoint: RemoteCheckpoint,
    destination: Path,
    making: Making,
    options: ConvertOptions,
    conditions: Conditions,
    made: Preview,
) -> tuple[tuple[str, int], ...]:
    """Encodings that fit where the one asked for does not."""
    ceiling, needs = made.ceiling_bytes, made.smallest_ceiling_bytes
    if ceiling is None or needs is None or needs <= ceiling:
        return ()
    found = []
    for dtype in NARROWER:
        try:
            spec = checkpoint.describe(**making.reading | {"dtype": dtype, "resident_dtype": None})
        except UnsupportedModel:  # weights that would be rounded a second time
            continue
        other = preview_shape(spec, destination, options, conditions)
        if other.smallest_ceiling_bytes is not None and other.smallest_ceiling_bytes <= ceiling:
            found.append((dtype, other.smallest_ceiling_bytes))
    return tuple(found)


def check_room(plan: PullPlan, *, converts: bool, streams: bool) -> None:
    """`NotEnoughSpace` where a disk cannot take what is to come, before anything comes.

    A conversion that `streams` checks that itself, since it knows what an earlier one left.
    """
    if streams:
        return
    missing_bytes = plan.fetch_bytes - plan.here_bytes
    place = existing_parent(cache_directories()[0])
    status = os.statvfs(place)
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes < missing_bytes:
        raise NotEnoughSpace(
            f"{place}: {format_bytes(missing_bytes)} are to come, {format_bytes(free_bytes)} are"
            " free; make room, set HF_HOME to another disk, or convert each file as it comes"
            " (--convert)"
        )
    free_bytes = plan.converted.free_bytes
    if converts and free_bytes < plan.converted.disk_bytes:
        raise NotEnoughSpace(
            f"the converted model takes about {format_bytes(plan.converted.disk_bytes)}, and"
            f" {format_bytes(free_bytes)} are free where it is to go; make room, choose another"
            " place, or fewer bits (--dtype int8 or int4)"
        )
