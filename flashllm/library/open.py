"""Opens a model by its path or name; used by Python code and by commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from flashllm.flash.demo_places import demo_directory, is_made
from flashllm.flash.opening_errors import opening_errors
from flashllm.library.option_keywords import keywords_in_errors
from flashllm.options import DEFAULT_OPTIONS, ModelOptions, OverridesWithoutMemory
from flashllm.settings.values import bytes_of
from flashllm.system.demos import DEMO_NAME
from flashllm.system.imports import gc_paused

if TYPE_CHECKING:
    from flashllm.engine.local import Model
    from flashllm.progress import Progress


def open_model(
    path: str | os.PathLike[str] | None = None,
    options: ModelOptions | None = None,
    *,
    memory: int | str | None = None,
    kv_memory: int | str | None = None,
    device_memory: int | str | None = None,
    **overrides: Unpack[OverridesWithoutMemory],
) -> Model:
    """Open a converted model; without a path, the one that comes with the project.

    `memory` is the ceiling, in bytes or as text like "8GiB", `kv_memory` the part of it for keys
    and values, `device_memory` the most to take of a `device`; they and `overrides`, options by
    their names in `ModelOptions`, take precedence over `options`.
    Errors: `ModelNotFound`, `ModelError`, `MemoryCeilingTooSmall`, `UsageError`, `ReadFailed`.
    """
    options = options or DEFAULT_OPTIONS
    ceiling = options.memory if memory is None else memory
    if ceiling is not None:
        options = options.having(memory=bytes_of(ceiling, "memory"))
    part = options.kv_memory if kv_memory is None else kv_memory
    if part is not None:
        options = options.having(kv_memory=bytes_of(part, "kv_memory"))
    there = options.device_memory if device_memory is None else device_memory
    if there is not None:
        options = options.having(device_memory=bytes_of(there, "device_memory"))
    directory = model_directory(path)
    with keywords_in_errors():
        return open_directory(directory, options, **overrides)


def open_directory(
    directory: Path, options: ModelOptions, **overrides: Unpack[OverridesWithoutMemory]
) -> Model:
    """Open the model in a directory, for a command: errors name options by their flags."""
    with gc_paused(freeze=False):
        from flashllm.engine import local

    return local.open_model(directory, options, **overrides)


def model_directory(model: str | os.PathLike[str] | None, progress: Progress | None = None) -> Path:
    """The directory of a model; None is the demo. Demos are converted at their first use.

    A text may be a name (`flashllm.library.names`), a `Path` is one.
    Errors: `ModelNotFound`, `LayoutError` and `NotACheckpoint` for what is no converted model.
    """
    name = DEMO_NAME
    if isinstance(model, str):
        from flashllm.library.names import usual_names

        with opening_errors(model):
            found = usual_names().find(model)
        if found.path is not None:
            return found.path
        name = found.name
    elif model is not None:
        return Path(model)
    return demo_model_directory(name, progress)


def demo_model_directory(name: str, progress: Progress | None = None) -> Path:
    """The directory of the demo of that name, which is converted at its first use."""
    directory = demo_directory(name)
    if is_made(directory):
        return directory
    from flashllm.convert import demo_model  # not where there is nothing to convert: 2 MiB

    return Path(demo_model(progress, name))


def checkpoint_directory(text: str, *, whole: bool = True) -> Path:
    """A checkpoint's directory or .gguf, which may be `org/name` of the Hugging Face cache.

    With `whole`, its weights must be there. Errors: `ModelNotFound`, `NotACheckpoint`.
    """
    from flashllm.library.names import usual_names

    return usual_names().find_checkpoint(text, whole=whole)


def usual_destination(source: Path) -> Path:
    """Where the model of a checkpoint goes unless something else is said; `CannotCreate`."""
    from flashllm.library.library import Library
    from flashllm.system.paths import models_dir

    library = Library(home=models_dir())
    destination = library.destination(source)
    library.prepare(destination)
    return destination
