"""Looks for converted models, one level deep, and says what each would need."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from flashllm.errors import FlashllmError
from flashllm.flash.manifest import format_requantised
from flashllm.flash.model_files import ModelFiles
from flashllm.hardware.staleness import profile_for
from flashllm.library.directories import candidates, looks_converted, shown_name
from flashllm.library.formatting import clean, format_error, format_shape
from flashllm.library.models import FoundModel
from flashllm.options import DEFAULT_OPTIONS, ModelOptions, Select
from flashllm.planning.activation_stats import Activity, assumed
from flashllm.planning.advisor import Scenario
from flashllm.planning.model_facts import (
    choose_selector,
    converted_sizes,
    has_tokenizer,
    recorded_activity,
    usual_ceiling,
)
from flashllm.planning.sizes import Sizes
from flashllm.spec import ModelSpec

SECONDS_MAX = 20.0
_LOG = logging.getLogger("flashllm")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions under which models would run: a process's memory, and options."""

    interpreter_bytes: int | None = None
    """Memory of the process before a model is loaded; None if unknown."""
    options: ModelOptions = DEFAULT_OPTIONS
    """Without a selector, each model runs with the best that it has."""

    @property
    def ceiling_bytes(self) -> int | None:
        """The ceiling for which speeds are expected."""
        if self.options.memory is not None or self.interpreter_bytes is None:
            return self.options.memory
        return usual_ceiling(self.interpreter_bytes, self.options.application_bytes)

    def scenario(
        self,
        spec: ModelSpec,
        sizes: Sizes,
        activity: Activity | None,
        select: Select,
        place: Path,
        *,
        converted: bool = False,
    ) -> Scenario:
        """The scenario of a model at `place`, without a ceiling; `ProfileError`."""
        options = self.options.having(memory=None, select=select)
        return Scenario(
            spec,
            replace(sizes, application=options.application_bytes),
            activity,
            options,
            profile_for(place, options),
            converted=converted,
        )


def find_models(
    directories: Iterable[Path],
    models: Iterable[Path],
    conditions: Conditions,
    *,
    demos: Iterable[Path] = (),
    seconds_max: float = SECONDS_MAX,
) -> Iterator[FoundModel]:
    """The `demos`, the `models`, and those that `directories` are or contain, each once.

    A model that cannot be read, or for which there was no time, is yielded with a problem.
    """
    end = time.monotonic() + seconds_max
    seen: set[str] = set()
    demos = tuple(demos)
    for path, must_be in candidates(directories, models, demos):
        key = os.path.realpath(path)
        if key in seen:
            continue
        if isinstance(must_be, str):
            yield _broken(path, must_be)
            continue
        if not must_be and not looks_converted(path):
            continue
        seen.add(key)
        if time.monotonic() > end:
            yield _broken(path, "not looked at: the search took too long")
            continue
        found = examine(path, conditions)
        yield replace(found, is_demo=path in demos)


def examine(path: Path, conditions: Conditions) -> FoundModel:
    """Describes one model; whatever is wrong with it becomes its `problem`."""
    try:
        files = ModelFiles(path)
        return _planned(_described(files), files, conditions)
    except (FlashllmError, OSError, MemoryError, RecursionError) as problem:
        return _broken(path, format_error(problem, path))
    except Exception as problem:  # noqa: BLE001  one bad directory must not end the list
        _LOG.exception("a model could not be looked at")
        return _broken(path, f"unexpected: {type(problem).__name__}: {problem}")


def _broken(path: Path, problem: str) -> FoundModel:
    return FoundModel(path, shown_name(path) or clean(str(path)), problem=clean(problem))


def _described(files: ModelFiles) -> FoundModel:
    manifest, spec = files.manifest, files.spec
    remarks = []
    if not has_tokenizer(manifest):
        remarks.append("no tokenizer: takes only token ids")
    if manifest.synthetic:
        remarks.append("synthetic: random weights")
    if words := format_requantised(manifest.source):
        remarks.append(f"lossy: {clean(words)}")
    return FoundModel(
        path=files.directory,
        name=shown_name(files.directory) or clean(str(files.directory)),
        source=clean(manifest.name),
        features=format_shape(spec),
        encoding=spec.encoding_label,
        size_bytes=sum(record.bytes for record in manifest.files.values()),
        remarks=tuple(remarks),
        has_tokenizer=has_tokenizer(manifest),
    )


def _planned(found: FoundModel, files: ModelFiles, conditions: Conditions) -> FoundModel:
    """The model with the planner's numbers, as far as rates of this machine are known."""
    select = choose_selector(files, conditions.options.select)
    if select == "predicted":
        found = replace(found, remarks=("lossy: predictors choose neurons", *found.remarks))
    if conditions.interpreter_bytes is None:
        return found
    recording = recorded_activity(files, select)
    scenario = conditions.scenario(
        files.spec,
        converted_sizes(files, select, conditions.interpreter_bytes),
        known_activity(files.spec, select, recording),
        select,
        files.directory,
        converted=True,
    )
    smallest, speed, assumption = expected(scenario, conditions.ceiling_bytes)
    profile = scenario.profile
    return replace(
        found,
        smallest_ceiling_bytes=smallest,
        application_bytes=conditions.options.application_bytes,
        ceiling_bytes=conditions.ceiling_bytes,
        tokens_per_second=speed,
        assumed=assumption,
        quick=speed is not None and profile is not None and profile.quick,
    )


def known_activity(spec: ModelSpec, select: str, recording: Activity | None) -> Activity | None:
    """What tokens use: recorded, else assumed for its kind; None if they use everything."""
    if select == "all" or not spec.selective:
        return None
    return recording or assumed(spec, select)


def expected(scenario: Scenario, ceiling_bytes: int | None) -> tuple[int, float | None, str]:
    """The smallest ceiling, tokens a second in the given one, and what these assume.

    The speed is None without a ceiling, with one that is too small, and if disk and machine were
    not measured.
    """
    smallest = scenario.plan().smallest_bytes
    if ceiling_bytes is None or ceiling_bytes < smallest:
        return smallest, None, ""
    scenario = scenario.having(memory=ceiling_bytes)
    found = scenario.expect(scenario.plan())
    if found.token is None:
        return smallest, None, ""
    return smallest, 1 / found.token.total, found.assumed
