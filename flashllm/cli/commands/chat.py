"""`flashllm chat`: the terminal application."""

from __future__ import annotations

import argparse
import contextlib
import sys
from functools import cache
from typing import TYPE_CHECKING

from flashllm.cli.shared import open_model
from flashllm.cli.shared.conversation_choice import chosen_session, model_of
from flashllm.cli.shared.flags import add_model, add_options
from flashllm.errors import FlashllmError, UsageError
from flashllm.library.names import models_of_conversations, names_in
from flashllm.settings.options import (
    ANSWER_OPTIONS,
    CHAT_OPTIONS,
    MODEL_OPTIONS,
    PROFILE_OPTIONS,
    SESSION_OPTIONS,
)
from flashllm.system import malloc, paths
from flashllm.system.imports import gc_paused
from flashllm.system.log import start_log

if TYPE_CHECKING:
    from flashllm.engine.process.launcher import EngineLauncher
    from flashllm.engine.protocol import Engine
    from flashllm.library.library import Library
    from flashllm.library.models import OpenRequest
    from flashllm.planning.plan import Plan


ANSWER_NAMES = [option.name for option in ANSWER_OPTIONS]


def chat(arguments: argparse.Namespace) -> int:
    """Runs the chat until the user leaves it; returns the exit code."""
    sampling = open_model.sampling_of(arguments)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the chat needs a terminal; `flashllm run -p TEXT` works without one")
    session = chosen_session(arguments)
    start_log(paths.log_file())
    malloc.share_one_heap()  # 16 MiB of heaps for a dozen threads, and more with each hour
    with gc_paused(freeze=True):
        from flashllm.library.models import ModelChoice
        from flashllm.ui.app import ChatApp
        from flashllm.ui.chat.screen import ChatScreen
        from flashllm.ui.chat.status import Phase
        from flashllm.ui.run import look_around, run_app

        keymap = look_around(arguments.settings)

    @cache
    def launcher() -> EngineLauncher:
        return open_model.start_launcher(arguments)

    def open_engine(request: OpenRequest) -> Engine:
        return launcher().open(
            request.choice.target,
            screen.engine.tell_opening,
            screen.engine.tell_lost,
            screen.engine.tell_released,
            screen.engine.tell_warming,
            memory=request.memory,
            context=request.context,
        )

    def check(request: OpenRequest, plan: Plan) -> None:
        from flashllm.engine.process.launcher import application_bytes
        from flashllm.library.open_check import check_openable

        wanted = options.having(
            memory=request.memory, context=request.context, application_bytes=application_bytes()
        )
        check_openable(request.choice, wanted, plan.split["interpreter"])

    def library() -> Library:
        from flashllm.engine.process.launcher import application_bytes
        from flashllm.library.library import usual_library

        plan = screen.activity.plan if screen.activity.phase is not Phase.CLOSED else None
        limits = {
            "memory": screen.answer_settings.memory,
            "ctx_size": screen.answer_settings.context,
        }
        return usual_library(
            arguments.settings.with_flags(limits),
            used=used_models,
            application_bytes=application_bytes(),
            open_plan=plan,
        )

    def used_models() -> list[str]:
        with contextlib.suppress(FlashllmError):  # the chat tells of a store that is broken
            return models_of_conversations()
        return []

    def is_given(name: str) -> bool:
        return arguments.settings.origin(name) in ("flag", "env")

    names = names_in(arguments.settings)
    model = model_of(arguments, session)
    choice = names.find(model).choice if model else ModelChoice()
    options = open_model.options_of(arguments)
    screen = ChatScreen(
        open_engine,
        check=check,
        memory=options.memory,
        context=options.context,
        choice=choice,
        names=names,
        store=None if arguments.no_save else paths.database_file(),
        session=session.id if session else None,
        history=None if arguments.no_save else paths.history_file(),
        library=library,
        settings=arguments.settings.chat,
        sampling=sampling,
        reasoning=open_model.reasoning_of(arguments),
        max_tokens=arguments.max_tokens,
        system=arguments.system,
        log_file=paths.log_file(),
        keymap=keymap,
        given=[name for name in ("system", *ANSWER_NAMES) if is_given(name)],
        quick_profile=not arguments.no_quick_profile,
    )
    screen.engine.abandon = lambda: launcher().close()
    return run_app(ChatApp(screen), inline=arguments.inline, log_file=paths.log_file())


CHAT_EXAMPLES = """\
examples:
  flashllm chat
  flashllm chat big --memory 8GiB --temp 0.7
  flashllm chat --continue                      the latest conversation, where it was left
  flashllm chat --inline --no-save              in a part of the terminal; nothing is kept
"""


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `chat`."""
    add_model(parser)
    add_options(parser, "conversation", (*SESSION_OPTIONS, *CHAT_OPTIONS))
    add_options(parser, "answers", ANSWER_OPTIONS)
    add_options(parser, "model", (*MODEL_OPTIONS, *PROFILE_OPTIONS))
