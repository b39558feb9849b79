"""`flashllm chat`: the terminal application."""

from __future__ import annotations

import argparse
import contextlib
import sys
from functools import cached_property
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
    from flashllm.ui.chat.screen import ChatScreen


ANSWER_NAMES = [option.name for option in ANSWER_OPTIONS]


class _Models:
    """What the screen asks for, with the command's options: engines, checks, the library."""

    screen: ChatScreen
    """Set once it is made, which needs these methods."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.options = open_model.options_of(arguments)

    @cached_property
    def launcher(self) -> EngineLauncher:
        """Begins the engine's process where it has not begun."""
        return open_model.start_launcher(self._arguments)

    def open(self, request: OpenRequest) -> Engine:
        """The engine of a model, which tells the screen what becomes of it."""
        told = self.screen.engine
        return self.launcher.open(
            request.choice.target,
            told.tell_opening,
            told.tell_lost,
            told.tell_released,
            told.tell_warming,
            memory=request.memory,
            context=request.context,
        )

    def check(self, request: OpenRequest, plan: Plan) -> None:
        """Whether a model can be opened beside the one of `plan`; our errors where it cannot."""
        from flashllm.engine.process.launcher import application_bytes
        from flashllm.library.open_check import check_openable

        wanted = self.options.having(
            memory=request.memory, context=request.context, application_bytes=application_bytes()
        )
        check_openable(request.choice, wanted, plan.split["interpreter"])

    def library(self) -> Library:
        """The models that there are, as they would be opened now."""
        from flashllm.engine.process.launcher import application_bytes
        from flashllm.library.library import usual_library
        from flashllm.ui.chat.status import Phase

        activity, wanted = self.screen.activity, self.screen.answer_settings
        return usual_library(
            self._arguments.settings.with_flags(
                {"memory": wanted.memory, "ctx_size": wanted.context}
            ),
            used=_used_models,
            application_bytes=application_bytes(),
            open_plan=activity.plan if activity.phase is not Phase.CLOSED else None,
        )


def _used_models() -> list[str]:
    with contextlib.suppress(FlashllmError):  # the chat tells of a store that is broken
        return models_of_conversations()
    return []


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
        from flashllm.ui.run import look_around, run_app

        keymap = look_around(arguments.settings)

    names = names_in(arguments.settings)
    model = model_of(arguments, session)
    models = _Models(arguments)
    given = ("flag", "env")
    screen = models.screen = ChatScreen(
        models.open,
        check=models.check,
        memory=models.options.memory,
        context=models.options.context,
        choice=names.find(model).choice if model else ModelChoice(),
        names=names,
        store=None if arguments.no_save else paths.database_file(),
        session=session.id if session else None,
        history=None if arguments.no_save else paths.history_file(),
        library=models.library,
        settings=arguments.settings.chat,
        sampling=sampling,
        reasoning=open_model.reasoning_of(arguments),
        max_tokens=arguments.max_tokens,
        system=arguments.system,
        log_file=paths.log_file(),
        keymap=keymap,
        given=[
            name for name in ("system", *ANSWER_NAMES) if arguments.settings.origin(name) in given
        ],
        quick_profile=not arguments.no_quick_profile,
    )
    screen.engine.abandon = lambda: models.launcher.close()
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
