"""From a command's arguments to an open model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.system import paths
from flashllm.system.imports import collecting_nothing
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.convert import Progress, ProgressKind
    from flashllm.engine.local import Model
    from flashllm.engine.process.launcher import EngineLauncher
    from flashllm.engine.sampling import Sampling


class CleanProgress:
    """Progress whose words, which hold names of files, are made harmless first."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, phase: str, total_bytes: int) -> None:
        """A phase begins."""
        self._progress.start(sanitize_line(phase), total_bytes)

    def advance(self, nbytes: int) -> None:
        """So many bytes more are done."""
        self._progress.advance(nbytes)

    def warn(self, text: str) -> None:
        """Something that the user should know."""
        self._progress.warn(sanitize_line(text))

    def finish(self) -> None:
        """Everything is over."""
        self._progress.finish()


def terminal_progress(kind: ProgressKind = "auto") -> Progress:
    """A bar on standard error if that is a terminal, plain lines if it is not, or as asked for."""
    from flashllm.convert import progress_for

    return CleanProgress(progress_for(sys.stderr, kind))


def model_directory(model: str | Path | None, progress: Progress | None) -> Path:
    """Where the model is; without a name, the demo, which is converted at its first use."""
    if model is not None:
        return Path(model)
    from flashllm.convert import demo_model

    directory: Path = demo_model(progress)
    return directory


def open_engine(directory: Path, arguments: argparse.Namespace) -> Model:
    """Opens the model with the options of the command line."""
    with collecting_nothing():
        from flashllm.engine.local import open_model

    return open_model(directory, **_model_settings(arguments))


def start_launcher(arguments: argparse.Namespace) -> EngineLauncher:
    """What opens models in processes of their own, with the options of the command line."""
    from flashllm.engine.process.launcher import EngineLauncher
    from flashllm.options import EngineSettings

    return EngineLauncher(EngineSettings(**_model_settings(arguments)))


def _model_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """How a model is opened, by the names that `local.open_model` has for it."""
    return plan_settings(arguments) | {
        "select": arguments.select,
        "direct": not arguments.no_direct,
        "profile": arguments.profile,
    }


def plan_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a plan is made with, by the names that `flash.advice.Case` has for it."""
    return {
        "memory": arguments.memory,
        "policy": arguments.policy,
        "window": arguments.window,
        "io_threads": arguments.io_threads,
        "overlap": arguments.overlap,
        "context": arguments.ctx_size,
        "kv_dtype": arguments.kv_dtype,
    }


def sampling_of(arguments: argparse.Namespace) -> Sampling:
    """How tokens are drawn; `UsageError` for what makes no sense."""
    from flashllm.engine.sampling import Sampling

    return Sampling(
        temperature=arguments.temp,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        seed=arguments.seed,
    )


def models_of_conversations() -> list[str]:
    """What models conversations were held with, as they name them; errors of the store."""
    if not paths.database_file().exists():
        return []
    from flashllm.conversations.store import SessionStore

    with SessionStore() as store:
        return sorted({session.model for session in store.list() if session.model})
