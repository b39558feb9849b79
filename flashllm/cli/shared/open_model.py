"""From a command's arguments to an open model."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.library.directories import name_of
from flashllm.library.names import may_be_name
from flashllm.options import ReasoningOptions
from flashllm.system.demos import DEMO_NAME, DEMO_NAMES, demo_checkpoint
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashllm.convert import Progress, ProgressKind
    from flashllm.engine.local import Model
    from flashllm.engine.process.launcher import EngineLauncher
    from flashllm.engine.sampling import Sampling
    from flashllm.options import ModelOptions
    from flashllm.schedule import Schedule

WORKER_ENTRY = "flashllm.library.worker_entry:open_engine"
"""The module:function with which an engine's process opens models."""


class CleanProgress:
    """Sanitizes texts of progress, which may contain names of files.

    What shows it is made when there is something to show: it comes with the converter.
    """

    def __init__(self, make: Callable[[], Progress]) -> None:
        self._make = make

    @functools.cached_property
    def _progress(self) -> Progress:
        return self._make()

    def start(self, phase: str, total_bytes: int) -> None:
        """A phase begins."""
        self._progress.start(sanitize_line(phase), total_bytes)

    def advance(self, nbytes: int) -> None:
        """`nbytes` more are done."""
        self._progress.advance(nbytes)

    def warn(self, text: str) -> None:
        """A warning to the user."""
        self._progress.warn(sanitize_line(text))

    def finish(self) -> None:
        """Everything is over."""
        self._progress.finish()


def terminal_progress(kind: ProgressKind = "auto", schedule: Schedule | None = None) -> Progress:
    """A bar on standard error if that is a terminal, plain lines if it is not, or as asked for.

    With a `schedule` it also says how far all phases together are.
    """

    def make() -> Progress:
        from flashllm.convert import progress_for

        return progress_for(sys.stderr, kind, schedule)

    return CleanProgress(make)


def model_directory(model: str | Path | None) -> Path:
    """The model's directory; without a name the demo, showing the progress of its conversion."""
    from flashllm.library import open as library_open

    return library_open.model_directory(model, terminal_progress())


def checkpoint_directory(source: str | Path) -> Path:
    """A whole checkpoint's directory or .gguf: a path, or ORG/NAME of the Hugging Face cache."""
    from flashllm.library import open as library_open

    return library_open.checkpoint_directory(str(source))


def file_or_model(target: str | Path) -> Path:
    """A path where something is, else the directory of the model of that name."""
    if os.path.exists(target) or not may_be_name(str(target)):
        return Path(target)
    return model_directory(str(target))


def demo_folder(model: str | None, directory: Path) -> Path | None:
    """What comes with the demo that was asked for, which is in `directory`; None for others."""
    name = DEMO_NAME if model is None else name_of(directory)
    return demo_checkpoint(name) if name in DEMO_NAMES else None


def open_engine(
    directory: Path,
    arguments: argparse.Namespace,
    contexts: int = 1,
    options: ModelOptions | None = None,
) -> Model:
    """Opens the model with so many contexts, and these options or those of the command line."""
    from flashllm.library import open as library_open

    options = options or options_of(arguments)
    return library_open.open_directory(directory, options, contexts=contexts)


def start_launcher(arguments: argparse.Namespace) -> EngineLauncher:
    """A launcher of models in processes of their own, with the options of the command line."""
    from flashllm.engine.process.launcher import EngineLauncher

    return EngineLauncher(options_of(arguments), WORKER_ENTRY)


def options_of(arguments: argparse.Namespace) -> ModelOptions:
    """The options for opening models, from flags, environment and config.toml."""
    options: ModelOptions = arguments.settings.model_options
    return options


def sampling_of(arguments: argparse.Namespace) -> Sampling:
    """How tokens are sampled; `UsageError` for invalid values."""
    from flashllm.engine.sampling import Sampling

    return Sampling(
        temperature=arguments.temp,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        seed=arguments.seed,
    )


def reasoning_of(arguments: argparse.Namespace) -> ReasoningOptions:
    """What the chat template is told of reasoning."""
    return ReasoningOptions(arguments.think, arguments.effort)
