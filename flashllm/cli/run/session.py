"""The conversation that `flashllm run` continues or begins, and saves like the chat."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.cli.run.prompt import wants_saving
from flashllm.cli.shared.conversation_choice import asked_session, model_of
from flashllm.cli.shared.open_model import reasoning_of, sampling_of
from flashllm.cli.shared.output import remark
from flashllm.conversations.store import BUSY_SECONDS, SessionStore
from flashllm.conversations.tree import UNFINISHED, Conversation, Turn
from flashllm.conversations.writer import NewSession, SessionWriter
from flashllm.engine.answer import Request, kept_numbers
from flashllm.errors import FlashllmError, SessionError, SessionNotFound, UsageError
from flashllm.library.directories import name_of
from flashllm.settings.options import ANSWER_OPTIONS
from flashllm.system.demos import DEMO_NAME, DEMO_NAMES
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.conversations.records import Session
    from flashllm.conversations.writer import SessionKey
    from flashllm.engine.sampling import Sampling
    from flashllm.telemetry.token_record import EngineToken

FLUSH_SECONDS = 10.0


class SavedExchange:
    """A question and its answer in a conversation, which is saved if `keeps` is True.

    If an existing conversation gets no question, its last answer continues (`UsageError` if it is
    complete).
    """

    def __init__(self, text: str, system: str, session: Session | None, keeps: bool) -> None:
        self.conversation = session.conversation if session else Conversation()
        self.session_id: int | None = session.meta.id if session else None
        self._meta = session.meta if session else None
        self._changes_system = bool(system) and system != self.conversation.system
        self.conversation.system = system or self.conversation.system
        if session is None or text:
            self.conversation.ask(text)
            self._answer = self.conversation.begin_answer()
        else:
            self._answer = _unfinished(self.conversation)
        self._begun, self._begun_ids = self._answer.text, self._answer.ids
        self._keeps = keeps
        self._writer: SessionWriter | None = None
        self._key: SessionKey | None = self.session_id
        self.error: FlashllmError | None = None
        """Why something is not saved."""

    def model(self, arguments: argparse.Namespace) -> str | None:
        """The model's path: from the command line, else the conversation's model.

        If the conversation's model no longer exists, prints that and uses the usual one.
        """
        chosen = model_of(arguments, self._meta)
        before = self._meta.model if self._meta else ""
        name = name_of(before)
        same = name in DEMO_NAMES and name == (chosen or DEMO_NAME)
        if (
            not same
            and before not in ("", chosen)
            and (arguments.settings.origin("model") != "flag")
        ):
            remark(f"{before}, the model of this conversation, is gone; going on without it")
        return chosen

    def begin(self, directory: Path, arguments: argparse.Namespace) -> None:
        """Saves the question; the model is open and about to read it."""
        if not self._keeps:
            return
        model = str(directory.absolute())
        writer = self._writer = SessionWriter(
            None, self._failed, self._recovered, busy_seconds=BUSY_SECONDS
        )
        if self._key is None:
            settings = {option.name: getattr(arguments, option.name) for option in ANSWER_OPTIONS}
            self._key = writer.create(
                model=model, system=self.conversation.system, settings=settings
            )
        elif self._meta is not None:
            writer.reopened(self._key, self._meta.created)
            if self._changes_system or self._meta.model != model:
                writer.save_head(self._key, model=model, system=self.conversation.system)
        writer.save_turn(self._key, self.conversation.turns[self._answer.parent or 0])
        self._save()

    def request(
        self, directory: Path, arguments: argparse.Namespace, sampling: Sampling
    ) -> Request:
        """The request to the model; has ids of earlier answers only if they are this model's."""
        same = self._meta is None or self._meta.model == str(directory.absolute())
        if not same:
            self._begun_ids = self._answer.ids = ()
        return Request(
            self.conversation.messages(),
            self.conversation.system,
            self.conversation.known() if same else {},
            arguments.max_tokens,
            sampling,
            tuple(arguments.stop),
            continues=bool(self._begun),
            reasoning=reasoning_of(arguments),
        )

    def add(self, token: EngineToken) -> None:
        """Adds a token to the answer and saves it."""
        if self._writer is not None:
            self._answer.text += token.text
            if self._knows_ids:
                self._answer.ids += (token.id,)
            self._save()

    def end(self, report: dict[str, Any]) -> None:
        """Saves the whole answer; `error` says whether that worked."""
        if self._writer is None:
            return
        self._answer.text = self._begun + report["text"]
        self._answer.ids = (*self._begun_ids, *report["tokens"]) if self._knows_ids else ()
        self._answer.finish_reason = report["finish_reason"]
        self._answer.numbers = kept_numbers(report)
        self.close()

    def close(self) -> None:
        """Saves the answer so far and waits for that, for a limited time; may be called again.

        `error` and `session_id` have the result.
        """
        if self._writer is None:
            return
        self._save()
        writer, self._writer = self._writer, None
        if not writer.close(FLUSH_SECONDS) and self.error is None:
            self.error = SessionError("the conversation could not be saved in time; try again")
        self.session_id = self._key.id if isinstance(self._key, NewSession) else self._key

    @property
    def _knows_ids(self) -> bool:
        """Whether the ids of the whole answer are known; otherwise none are saved."""
        return bool(self._begun_ids) or not self._begun

    def _save(self) -> None:
        assert self._writer is not None
        assert self._key is not None
        self._writer.save_turn(self._key, self._answer)

    def _failed(self, error: FlashllmError) -> None:
        self.error = error

    def _recovered(self) -> None:
        self.error = None


def open_saved(text: str, arguments: argparse.Namespace) -> SavedExchange:
    """The question in the conversation that the arguments name; nothing is saved yet.

    The arguments get the conversation's settings.
    """
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
        _adopt(arguments, session.settings)
        if latest:
            title = sanitize_line(session.meta.name or session.meta.preview)
            remark(f"going on with conversation {chosen}: {title}")
    return SavedExchange(text, arguments.system, session, wants_saving(arguments))


def _unfinished(conversation: Conversation) -> Turn:
    """The last answer, if it was stopped; an empty one, if it had not begun."""
    last = conversation.turns[conversation.leaf] if conversation.leaf is not None else None
    if last is not None and last.role == "user":
        return conversation.begin_answer()
    if last is None or last.finish_reason not in (None, *UNFINISHED):
        raise UsageError(
            'there is no answer to go on with, and no prompt; give -p "TEXT", -f FILE, or pipe '
            "text in"
        )
    last.finish_reason = None
    if not last.text.strip():
        last.text, last.ids = "", ()
    return last


def _adopt(arguments: argparse.Namespace, kept: Mapping[str, Any]) -> None:
    """Takes over a conversation's settings, except for those that a flag or a variable sets.

    Invalid ones are skipped: an imported file may contain anything.
    """
    for option in ANSWER_OPTIONS:
        given = arguments.settings.origin(option.name) in ("flag", "env")
        if given or option.name not in kept:
            continue
        with contextlib.suppress(UsageError):
            value = option.parse(str(kept[option.name]))
            sampling_of(argparse.Namespace(**{**vars(arguments), option.name: value}))
            setattr(arguments, option.name, value)
