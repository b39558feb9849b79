"""What slash commands do: the actions that keys have, and some that need words.

The database of conversations is imported where it is asked: the first frame would wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashllm.engine.sampling import Sampling
from flashllm.errors import FlashllmError, UsageError
from flashllm.library.models import ModelChoice
from flashllm.ui.commands.setting_values import ChatValues, find_setting
from flashllm.ui.commands.table import Invocation, Suggestion, completed, parse, suggest
from flashllm.ui.widgets.themes import find_theme
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.conversations.records import Session
    from flashllm.conversations.store import SessionStore
    from flashllm.ui.app import ChatApp
    from flashllm.ui.screens.sessions import SessionChoice

NOTHING_KEPT = "conversations are not kept in this chat"
_COUNTED = ("edit", "delete", "copy", "code")
_STEPS = {"next": 1, "prev": -1, "previous": -1}


class SlashActions:
    """Runs commands on the chat; what cannot be done is said, and what was typed stays."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._suggestions: list[Suggestion] = []
        app.saving.settings = ChatValues("", app.sampling or Sampling(), app.max_tokens).kept()
        self._own: dict[str, Callable[..., Awaitable[None]]] = {
            "set": self.set,
            "show": self.show,
            "system": self.system,
            "theme": self.theme,
            "session": self.session,
            "rename": self.rename,
            "export": self.export,
            "import": self.import_,
            "model": self.model,
        }

    # What is typed

    async def run(self, line: str) -> None:
        """Runs a line that was typed, and takes it out of the prompt unless it is wrong."""
        app = self._app
        try:
            invocation = parse(line)
            app.prompt.take()
            await self._run(invocation)
        except FlashllmError as error:
            if not app.prompt.text:
                app.prompt.put_text(line)
            await app.tell(str(error), "error")

    def start(self, line: str) -> None:
        """Runs a line that was chosen elsewhere; the prompt stays as it is."""

        async def run() -> None:
            try:
                await self._run(parse(line))
            except FlashllmError as error:
                await self._app.tell(str(error), "error")

        self._app.run_worker(run())

    def begin(self, line: str) -> None:
        """Puts the beginning of a command into the prompt; what was there is in its history."""
        prompt = self._app.prompt
        if prompt.text.strip():
            prompt.take()
        prompt.put_text(line)
        prompt.focus()

    def follow(self, text: str) -> None:
        """Shows what a line that is being typed could become."""
        is_line = text.startswith("/") and "\n" not in text
        self._suggestions = suggest(text, {"theme": self.themes}) if is_line else []
        if self._app.suggestions.is_attached:
            self._app.suggestions.show(self._suggestions)

    def complete(self) -> bool:
        """Completes the line in the prompt; False where there is nothing to complete."""
        prompt = self._app.prompt
        line = completed(prompt.text, self._suggestions)
        if not prompt.has_focus or line == prompt.text:
            return False
        prompt.put_text(line)
        return True

    def lines(self) -> Iterable[tuple[str, str]]:
        """Lines with arguments that the palette offers."""
        for theme in self.themes():
            yield f"/theme {theme}", "other colours"
        yield "/export md", "this conversation, to be read"
        yield "/export json", "this conversation, to be imported"
        yield "/branch next", "the next version of a message"
        yield "/branch prev", "the version before"

    async def _run(self, invocation: Invocation) -> None:
        name, arguments = invocation.command.name, invocation.arguments
        action = invocation.command.action
        if action in self._own:
            await self._own[action](*arguments)
            return
        values: tuple[Any, ...] = ()
        if name in _COUNTED:
            values = tuple(_count(argument) for argument in arguments)
        elif name == "branch":
            values = (_step(arguments[0]),)
        elif name == "convert":
            values = arguments
        if not await self._app.run_action(("app", action, values)):
            raise UsageError(f"/{name}: there is nothing to {name} now")

    # Settings

    def values(self) -> ChatValues:
        """Everything that can be changed, as it is."""
        app = self._app
        return ChatValues(
            app.conversation.system, app.sampling or Sampling(), app.max_tokens, app.theme
        )

    def apply(self, values: ChatValues) -> None:
        """The next answer is made with these; they are kept with the conversation."""
        app = self._app
        app.sampling, app.max_tokens, app.theme = values.sampling, values.max_tokens, values.theme
        app.conversation.system = values.system
        app.saving.settings = values.kept()
        app.saving.head(system=values.system)
        app.check_context()

    def adopt(self) -> None:
        """A conversation that was opened goes on with its own settings, but for those given."""
        app = self._app
        values = self.values().adopting(app.saving.settings, app.given)
        app.sampling, app.max_tokens = values.sampling, values.max_tokens
        app.saving.settings = values.kept()

    def keep_given(self, system: str) -> None:
        """The conversation that was asked for gets the system prompt that was given with it."""
        if "system" in self._app.given:
            self.apply(self.values().with_text("system", system))

    def themes(self) -> list[str]:
        """Names of themes."""
        return sorted(self._app.available_themes)

    def open_settings(self, first: str = "system") -> None:
        """Shows the page of settings."""

        def take(values: ChatValues | None) -> None:
            if values is not None:
                self.apply(values)
                self._app.show_hint("the next answer is made with these settings")

        from flashllm.ui.screens.settings import SettingsScreen  # late: the first frame is earlier

        self._app.push_screen(SettingsScreen(self.values(), self.themes(), first), take)

    async def set(self, name: str, text: str) -> None:
        """A setting is another from now on."""
        values = self.values().with_text(name, text, self.themes())
        self.apply(values)
        when = "now" if find_setting(name).name == "theme" else "from the next answer on"
        self._app.show_hint(f"{name} is {sanitize_line(text)} {when}")

    async def show(self) -> None:
        """Shows the settings."""
        rows = self.values().rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {sanitize_line(text) or '(none)'}" for name, text in rows]
        await self._app.tell("\n".join(lines))

    async def system(self, text: str = "") -> None:
        """Sets the system prompt, or asks for it."""
        if text:
            self.apply(self.values().with_text("system", text))
            self._app.show_hint("the model is told that first, from the next answer on")
        else:
            self.open_settings()

    async def theme(self, name: str) -> None:
        """Other colours."""
        self._app.theme = find_theme(name, self.themes())

    # Conversations

    def open_sessions(self) -> None:
        """Shows the conversations that were kept."""
        app = self._app
        if app.saving.path is None:
            app.show_hint(NOTHING_KEPT)
            return

        def take(choice: SessionChoice | None) -> None:
            if choice is not None:
                app.run_worker(self._take(choice), exit_on_error=False)

        from flashllm.ui.screens.sessions import SessionsScreen  # late, as the settings

        page = SessionsScreen(self._store, app.session_id, began=app.saving.began)
        app.push_screen(page, take)

    async def session(self, text: str) -> None:
        """Opens a conversation that was kept."""
        await self._app.open_session(await self._with_store(lambda store: store.find(text)))

    async def rename(self, name: str) -> None:
        """Names this conversation."""
        app = self._app
        if not app.saving.head(name=sanitize_line(name)):
            raise UsageError("/rename: nothing is kept yet; ask something first")
        if not await asyncio.to_thread(app.saving.flush, 1.0):
            app.show_hint("the name is not kept yet")
        elif app.session_id is None:
            app.show_hint("the name is not kept, nor is this conversation")
        else:
            app.show_hint(f"this conversation is called “{sanitize_line(name)}” now")

    async def export(self, kind: str, path: str = "") -> None:
        """Writes this conversation into a file."""
        from flashllm.conversations.files import export_name, write_session

        if kind not in ("md", "json"):
            raise UsageError(f"/export: {kind!r} is neither md nor json")
        app, session_id = self._app, self._app.session_id
        if not app.conversation.turns:
            raise UsageError("/export: there is nothing to export yet")
        target = path or str(Path.cwd() / export_name(session_id or 0, "", kind))
        session = self._as_shown()
        if session_id is not None:
            # Of the database only what it alone knows: it lacks turns where saving fails.
            with contextlib.suppress(FlashllmError):
                meta = await self._with_store(lambda store: store.summary(session_id))
                model = session.meta.model or meta.model  # none is open yet, perhaps
                session.meta = replace(
                    session.meta, name=meta.name, model=model, created=meta.created
                )
        written = await asyncio.to_thread(write_session, session, target, kind)
        await app.tell(f"Written: {written}")

    async def import_(self, path: str) -> None:
        """Reads an exported conversation, and opens it."""
        from flashllm.conversations.files import import_file

        if self._app.activity.is_answering:
            raise UsageError("/import: an answer is on its way; /stop first")
        await self._app.open_session(await self._with_store(lambda store: import_file(store, path)))

    def _as_shown(self) -> Session:
        """The conversation as it is now, whatever becomes of it while it is written."""
        from flashllm.conversations.records import Session, SessionSummary
        from flashllm.conversations.rows import PREVIEW_CHARACTERS

        now, saving = time.time(), self._app.saving
        conversation = copy.deepcopy(self._app.conversation)
        begin = next((turn.text for turn in conversation.path()), "")
        preview = sanitize_line(begin)[:PREVIEW_CHARACTERS]
        model, turns = saving.model, len(conversation.turns)
        meta = SessionSummary(0, "", model, conversation.system, now, now, turns, preview)
        return Session(meta, conversation, dict(saving.settings))

    async def _take(self, choice: SessionChoice) -> None:
        app = self._app
        try:
            if choice.action == "open" and choice.id is not None:
                await app.open_session(choice.id)
                return
            if app.activity.is_answering:
                app.show_hint(app.answering.reason_not_ready())
                return
            await app.begin_conversation()
            session_id = choice.id
            if choice.action == "delete" and session_id is not None:
                await self._with_store(lambda store: store.delete(session_id, choice.created))
        except FlashllmError as error:
            await app.tell(str(error), "error")

    def _store(self) -> SessionStore:
        from flashllm.conversations.store import SessionStore

        self._app.saving.flush(1.0)
        return SessionStore(self._app.saving.path)

    async def _with_store(self, work: Callable[[SessionStore], Any]) -> Any:
        if self._app.saving.path is None:
            raise UsageError(NOTHING_KEPT)

        def call() -> Any:
            with self._store() as store:
                return work(store)

        return await asyncio.to_thread(call)

    # Models

    async def model(self, path: str) -> None:
        """Opens another model; the conversation goes on with it."""
        app, folder = self._app, Path(os.path.expanduser(path))
        if app.activity.is_answering:
            raise UsageError("/model: an answer is on its way; /stop first")
        if not os.path.isdir(folder):  # Path's raises where a name cannot be looked at
            raise UsageError(f"/model: there is no folder {path!r}; /models lists models")
        app.open_model(ModelChoice(folder, folder.name))


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 1 << 31:
        raise UsageError(f"{text!r} is no number of a message; 1 is the last one")
    return int(text)


def _step(text: str) -> int:
    if text not in _STEPS:
        raise UsageError(f"/branch: {text!r} is neither next nor prev")
    return _STEPS[text]
