"""Opens the model in a process of its own, which imports this first."""

from __future__ import annotations

import socket
import sys
import time
from typing import TYPE_CHECKING

from flashllm.engine.local import Model, open_model
from flashllm.engine.protocol import OnOpening, OpeningProgress
from flashllm.errors import UsageError
from flashllm.flash.manifest import manifest_hash
from flashllm.library.open import demo_model_directory, model_directory
from flashllm.options import ModelOptions
from flashllm.system.demos import DEMO_NAMES
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.engine.protocol import Engine

_SEND_SECONDS = 0.1


class _OpeningProgress:
    """Passes progress, of converting a demo and of loading, on as the progress of opening."""

    def __init__(self, on_opening: OnOpening) -> None:
        self._on_opening = on_opening
        self._phase, self._done, self._total = "", 0, 0
        self._sent_at = 0.0

    def start(self, phase: str, total_bytes: int) -> None:
        """A phase begins."""
        self._phase, self._done, self._total = sanitize_line(phase), 0, total_bytes
        self._sent_at = 0.0
        self.advance(0)

    def advance(self, nbytes: int) -> None:
        """`nbytes` more are done."""
        self._done += nbytes
        if time.monotonic() - self._sent_at >= _SEND_SECONDS:
            self._sent_at = time.monotonic()
            self._on_opening(OpeningProgress(self._phase, self._done, self._total))

    def warn(self, text: str) -> None:
        """Writes a warning to the log."""
        print(sanitize_line(text), file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Everything is over."""


def open_engine(path: str | None, options: ModelOptions, on_opening: OnOpening) -> Engine:
    """Opens the model at a path, or the demo of that name, None: the demo; see `ModelChoice`.

    Demos are converted at their first use.
    """
    progress = _OpeningProgress(on_opening)
    if path is not None and path in DEMO_NAMES:
        directory = demo_model_directory(path, progress)
    else:
        directory = model_directory(path, progress)
    on_opening(OpeningProgress("loading"))
    sent_at = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal sent_at
        if time.monotonic() - sent_at >= _SEND_SECONDS or done == total:
            sent_at = time.monotonic()
            on_opening(OpeningProgress("loading", done, total))

    return open_model(directory, options, on_loading=tell)


def open_same_model(path: str | None, options: ModelOptions, model_hash: str) -> Model:
    """Opens the model that a path or a name stands for on this machine, of a given manifest.

    `UsageError` where it is another one than `model_hash` says: its answers would be others.
    """
    directory = model_directory(path)
    found = manifest_hash(directory)
    if found != model_hash:
        raise UsageError(
            f"{socket.gethostname()}: {sanitize_line(str(directory))} is another model than here:"
            f" its manifest is {found[:12]}, and not {model_hash[:12]}. Copy the same model there"
        )
    return open_model(directory, options)
