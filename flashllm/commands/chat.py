"""`flashllm chat`: the terminal application."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from flashllm.commands import opening
from flashllm.errors import UsageError

if TYPE_CHECKING:
    from flashllm.engine import Model

DEMO_WELCOME = (
    "This small model came with flashllm; it explains English words. "
    "Try: What does ocean mean?\nF1 explains keys and numbers."
)


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
        **({} if arguments.model else {"welcome": DEMO_WELCOME}),
    )
    return run_app(app)
