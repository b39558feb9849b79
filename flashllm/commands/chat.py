"""`flashllm chat`: the terminal application."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm import paths
from flashllm.commands import opening
from flashllm.errors import UsageError

if TYPE_CHECKING:
    from flashllm.engine import Model

WELCOME = "Ask something below. F1 explains keys and numbers."
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
    from flashllm.ui.model_choice import ModelChoice

    def open_engine(choice: ModelChoice) -> Model:
        return opening.open_engine(opening.model_directory(choice.path, None), arguments)

    model = arguments.model
    app = ChatApp(
        open_engine,
        choice=ModelChoice(Path(model), model) if model else ModelChoice(),
        store=paths.database_file(),
        history=paths.history_file(),
        sampling=sampling,
        max_tokens=arguments.max_tokens,
        system=arguments.system,
        welcome=WELCOME if model else DEMO_WELCOME,
    )
    return run_app(app)
