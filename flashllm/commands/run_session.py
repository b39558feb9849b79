"""The conversation that `flashllm run` goes on with or begins, and keeps as the chat does."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.commands.chat_session import asked_session
from flashllm.commands.output import remark
from flashllm.commands.prompt import asks_to_keep
from flashllm.conversation import Conversation, Turn
from flashllm.errors import FlashllmError, SessionError, SessionNotFound, UsageError
from flashllm.generation import Request
from flashllm.sanitize import sanitize_line
from flashllm.sessions import NewSession, SessionStore, SessionWriter
from flashllm.sessions.store import BUSY_SECONDS
from flashllm.settings.options import SAMPLING_OPTIONS

if TYPE_CHECKING:
    from flashllm.engine_protocol import EngineToken
    from flashllm.sampling import Sampling
    from flashllm.sessions import Session
    from flashllm.sessions.writer import SessionKey

FLUSH_SECONDS = 10.0
_NUMBERS = ("prompt_tokens", "prefill", "decode")


class Kept:
    """A question and its answer in a conversation, which is kept if `keeps` says so."""

    def __init__(self, text: str, system: str, session: Session | None, keeps: bool) -> None:
        self.conversation = session.conversation if session else Conversation()
        self.session_id: int | None = session.meta.id if session else None
        self._meta = session.meta if session else None
        self._changes_system = bool(system) and system != self.conversation.system
        self.conversation.system = system or self.conversation.system
        self._question = self.conversation.ask(text)
        self._answer: Turn = self.conversation.begin_answer()
        self._keeps = keeps
        self._writer: SessionWriter | None = None
        self._key: SessionKey | None = self.session_id
        self.error: FlashllmError | None = None
        """Why something is not saved."""

    def model(self, arguments: argparse.Namespace) -> str | None:
        """Where the model is: what the command line says, else what the conversation was had with.

        A conversation whose model has gone goes on with the usual one, and says so.
        """
        asked: str | None = arguments.model
        before = self._meta.model if self._meta else ""
        if not before or arguments.settings.origin("model") == "flag":
            return asked
        if Path(before).is_dir():
            return before
        remark(f"{before}, with which this conversation was had, is gone; going on without it")
        return asked

    def begin(self, directory: Path, arguments: argparse.Namespace) -> None:
        """Saves the question; the model is open and about to read it."""
        if not self._keeps:
            return
        model = str(directory.absolute())
        writer = self._writer = SessionWriter(
            None, self._failed, self._recovered, busy_seconds=BUSY_SECONDS
        )
        if self._key is None:
            settings = {option.name: getattr(arguments, option.name) for option in SAMPLING_OPTIONS}
            self._key = writer.create(
                model=model, system=self.conversation.system, settings=settings
            )
        elif self._changes_system or (self._meta and self._meta.model != model):
            writer.save_head(self._key, model=model, system=self.conversation.system)
        writer.save_turn(self._key, self._question)
        self._save()

    def request(
        self, directory: Path, arguments: argparse.Namespace, sampling: Sampling
    ) -> Request:
        """What the model is asked; ids of earlier answers only where they are this model's."""
        same = self._meta is None or self._meta.model == str(directory.absolute())
        return Request(
            self.conversation.messages(),
            self.conversation.system,
            self.conversation.known() if same else {},
            arguments.max_tokens,
            sampling,
            tuple(arguments.stop),
        )

    def add(self, token: EngineToken) -> None:
        """The answer grows, and the writer knows it."""
        if self._writer is not None:
            self._answer.text += token.text
            self._answer.ids += (token.id,)
            self._save()

    def end(self, report: dict[str, Any]) -> None:
        """Saves the whole answer; `error` says whether that worked."""
        if self._writer is None:
            return
        self._answer.text = report["text"]
        self._answer.ids = tuple(report["tokens"])
        self._answer.finish_reason = report["finish_reason"]
        numbers = {name: report[name] for name in _NUMBERS if name in report}
        self._answer.numbers = numbers | {"tokens": len(self._answer.ids)}
        self.close()

    def close(self) -> None:
        """Saves what there is of the answer and waits for that, for a while; may be called again.

        `error` and `session_id` say how it went.
        """
        if self._writer is None:
            return
        self._save()
        writer, self._writer = self._writer, None
        if not writer.close(FLUSH_SECONDS) and self.error is None:
            self.error = SessionError("the conversation could not be saved in time; try again")
        self.session_id = self._key.id if isinstance(self._key, NewSession) else self._key

    def _save(self) -> None:
        assert self._writer is not None
        assert self._key is not None
        self._writer.save_turn(self._key, self._answer)

    def _failed(self, error: FlashllmError) -> None:
        self.error = error

    def _recovered(self) -> None:
        self.error = None


def open_kept(text: str, arguments: argparse.Namespace) -> Kept:
    """The question in the conversation that the arguments name; nothing is saved yet."""
    session: Session | None = None
    name, latest = asked_session(arguments)
    if name or latest:
        if arguments.save:
            raise UsageError(
                "--save begins a conversation; with --continue and --session it is one"
            )
        with SessionStore() as store:
            chosen = store.find(name) if name else store.latest()
            if chosen is None:
                raise SessionNotFound(
                    "there is no conversation yet; `flashllm run --save` begins one"
                )
            session = store.load(chosen)
        if latest:
            title = sanitize_line(session.meta.name or session.meta.preview)
            remark(f"going on with conversation {chosen}: {title}")
    return Kept(text, arguments.system, session, asks_to_keep(arguments))
