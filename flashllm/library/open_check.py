"""What can be checked of a model before it is opened: nothing is loaded, and no process starts.

The chat closes one model to open another. What would fail is found here, while the first is open.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from flashllm.errors import FlashllmError, UsageError
from flashllm.flash.demo_places import demo_directory, is_made
from flashllm.flash.manifest import read_manifest
from flashllm.flash.model_files import ModelFiles
from flashllm.hardware.staleness import profile_for
from flashllm.library.models import NO_TOKENIZER, ModelChoice
from flashllm.options import ModelOptions
from flashllm.planning.model_facts import choose_selector, converted_sizes, has_tokenizer
from flashllm.planning.plan import make_plan


def check_openable(choice: ModelChoice, options: ModelOptions, interpreter_bytes: int) -> None:
    """Raises what opening the model for a chat would, as far as that can be known.

    Looks at manifest, files, tokenizer, options and the ceiling. Without a ceiling the memory that
    there will be is not known here. `interpreter_bytes` is the memory of the engine's process
    before a model is loaded. Errors: those of `local.open_model`.
    """
    directory = _demo_if_made(choice.demo) if choice.path is None else choice.path
    if directory is None:
        return
    files = ModelFiles(directory)
    if not has_tokenizer(files.manifest):
        raise UsageError(NO_TOKENIZER)
    select = choose_selector(files, options.select)
    sizes = converted_sizes(files, select, interpreter_bytes)
    make_plan(
        files.spec,
        replace(sizes, application=options.application_bytes),
        options.having(select=select),
        profile_for(directory, options),
    )


def can_chat(directory: Path) -> bool:
    """Whether a converted model came with a tokenizer; True where that cannot be read."""
    try:
        return has_tokenizer(read_manifest(directory))
    except FlashllmError:
        return True  # opening it says what is wrong


def _demo_if_made(name: str) -> Path | None:
    """A demo's directory; None while it is yet to be made, which opening does."""
    with contextlib.suppress(FlashllmError, OSError):
        directory = demo_directory(name)
        return directory if is_made(directory) else None
    return None
