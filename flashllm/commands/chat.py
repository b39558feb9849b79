"""`flashllm chat`: the terminal application."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from flashllm.commands import opening
from flashllm.errors import UsageError

if TYPE_CHECKING:
    from flashllm.engine import Model


def chat(arguments: argparse.Namespace) -> int:
    """Opens the chat and stays until it is left; returns the exit code."""
    sampling = opening.sampling_of(arguments)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the chat needs a terminal; `flashllm run -p TEXT` works without one")
    from flashllm.ui.app import ChatApp, run_app

    def open_engine() -> Model:
        return opening.open_engine(opening.model_directory(arguments.model, None), arguments)

    app = ChatApp(
        open_engine,
        sampling=sampling,
        max_tokens=arguments.max_tokens,
        system=arguments.system,
        name=arguments.model or "the demo",
    )
    return run_app(app)
