"""`flashllm chat`: the terminal application."""

from __future__ import annotations

import argparse
import contextlib
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm import paths, resident_memory
from flashllm.commands import opening
from flashllm.commands.chat_session import chosen_session, model_of
from flashllm.errors import FlashllmError, UsageError
from flashllm.importing import collecting_nothing
from flashllm.log import start_log
from flashllm.settings.options import SAMPLING_OPTIONS

if TYPE_CHECKING:
    from flashllm.engine_launcher import EngineLauncher
    from flashllm.engine_protocol import Engine
    from flashllm.library.collection import Library

SAMPLING_NAMES = [option.name for option in SAMPLING_OPTIONS]
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
    session = chosen_session(arguments)
    start_log(paths.log_file())
    with collecting_nothing():
        from flashllm.library import ModelChoice
        from flashllm.ui.activity import Phase
        from flashllm.ui.app import ChatApp
        from flashllm.ui.run_app import look_around, run_app

        keymap = look_around(arguments.settings)

    @cache
    def launcher() -> EngineLauncher:
        return opening.start_launcher(arguments)

    def open_engine(choice: ModelChoice) -> Engine:
        path = None if choice.path is None else str(choice.path)
        return launcher().open(path, app.engine.tell_opening, app.engine.tell_lost)

    def library() -> Library:
        from flashllm.engine_launcher import GROWTH_BYTES
        from flashllm.library.collection import usual_library

        plan = app.activity.plan if app.activity.phase is not Phase.CLOSED else None
        return usual_library(
            arguments.settings,
            used=used_models,
            application_bytes=resident_memory.rss_bytes() + GROWTH_BYTES,
            open_ceiling_bytes=None if plan is None else plan.ceiling_bytes,
        )

    def used_models() -> list[str]:
        with contextlib.suppress(FlashllmError):  # the chat tells of a store that is broken
            return opening.models_of_conversations()
        return []

    def is_given(name: str) -> bool:
        return arguments.settings.origin(name) in ("flag", "env")

    model = model_of(arguments, session)
    app = ChatApp(
        open_engine,
        choice=ModelChoice(Path(model), model) if model else ModelChoice(),
        store=None if arguments.no_save else paths.database_file(),
        session=session.id if session else None,
        history=None if arguments.no_save else paths.history_file(),
        library=library,
        settings=arguments.settings.chat,
        sampling=sampling,
        max_tokens=arguments.max_tokens,
        system=arguments.system,
        welcome=WELCOME if model else DEMO_WELCOME,
        keymap=keymap,
        given=[name for name in ("system", *SAMPLING_NAMES) if is_given(name)],
    )
    app.engine.abandon = lambda: launcher().close()
    return run_app(app, inline=arguments.inline, log_file=paths.log_file())
