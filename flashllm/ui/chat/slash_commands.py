"""What slash commands do: the actions that keys have, and here those that need words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from flashllm.errors import UsageError
from flashllm.ui.chat import messages
from flashllm.ui.commands.setting_values import AUTO, find_setting
from flashllm.ui.prompt.text_file import read_text_file
from flashllm.units import format_ceiling
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.library.names import ModelNames
    from flashllm.ui.chat.answer_settings import AnswerSettings
    from flashllm.ui.chat.compaction import Compaction
    from flashllm.ui.chat.kept_conversations import KeptConversations
    from flashllm.ui.chat.status import Activity
    from flashllm.ui.commands.table import Invocation
    from flashllm.ui.widgets.owner import Owner

RunAction = Callable[[str, tuple[str | int, ...]], Awaitable[bool]]
"""Runs an action by its name; False where there is nothing to be done now."""


class SlashCommands:
    """Runs commands; `UsageError` says what cannot be done.

    `owner` gets `Remarked`, `Hinted`, `SessionChosen`, `ModelChosen` and `FileRead`.
    """

    def __init__(
        self,
        owner: Owner,
        run_action: RunAction,
        activity: Activity,
        settings: AnswerSettings,
        kept: KeptConversations,
        compaction: Compaction,
        themes: Callable[[], Sequence[str]],
        names: ModelNames,
    ) -> None:
        self._owner = owner
        self._run_action = run_action
        self._activity = activity
        self._settings = settings
        self._kept = kept
        self._compaction = compaction
        self._themes = themes
        self._names = names
        self._own: dict[str, Callable[..., Awaitable[None]]] = {
            "set": self._set,
            "show": self._show,
            "queue": self._queue,
            "file": self._file,
            "compact": self._compact,
            "system": self._system,
            "think": self._think,
            "effort": self._effort,
            "theme": self._theme,
            "session": self._session,
            "rename": self._rename,
            "export": self._export,
            "import": self._import,
            "model": self._model,
        }

    async def run(self, invocation: Invocation) -> None:
        """Does what was typed. Errors: `FlashllmError`, with a sentence for the user."""
        command, arguments = invocation.command, invocation.arguments
        if command.action in self._own:
            await self._own[command.action](*arguments)
        elif not await self._run_action(command.action, arguments):
            raise UsageError(f"/{command.name}: there is nothing to {command.name} now")

    async def _set(self, name: str, text: str) -> None:
        setting, before = find_setting(name).name, self._settings.values
        values = before.with_text(name, text, self._themes())
        if setting in ("memory", "ctx_size"):
            self._refuse_while_answering("set")
            is_same = values.limits == before.limits
            when = "already" if is_same else "asked for; the model is opened again"
        else:
            when = "now" if setting == "theme" else "from the next answer on"
        self._settings.apply(values)
        self._hint(f"{name} is {sanitize_line(text)} {when}")

    async def _show(self) -> None:
        rows = [(name, self._in_force(name, text)) for name, text in self._settings.values.rows()]
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {sanitize_line(text) or '(none)'}" for name, text in rows]
        self._remark("\n".join(lines))

    def _in_force(self, name: str, text: str) -> str:
        """A setting with what the plan made of it, where that is left to the plan."""
        plan = self._activity.plan
        if text != AUTO or plan is None or not self._activity.title:
            return text
        now = format_ceiling(plan.ceiling_bytes) if name == "memory" else f"{plan.context} tokens"
        return f"{text}: {now}"

    async def _queue(self, what: str) -> None:
        actions = {"edit": "edit_waiting", "send": "send_waiting", "drop": "drop_waiting"}
        if what not in actions:
            raise UsageError(f"/queue: {what!r} is none of edit, send and drop")
        if not await self._run_action(actions[what], ()):
            raise UsageError(f"/queue {what}: there is nothing to {what} now")

    async def _file(self, path: str) -> None:
        self._owner.post_message(messages.FileRead(*await asyncio.to_thread(read_text_file, path)))

    async def _compact(self, how: str = "") -> None:
        if how not in ("", "drop"):
            raise UsageError(f"/compact: {how!r} is unknown; /compact sums up, /compact drop omits")
        await (self._compaction.leave_out() if how else self._compaction.sum_up())

    async def _system(self, text: str = "") -> None:
        if text:
            self._settings.apply(self._settings.values.with_text("system", text))
            self._hint("the model is told that first, from the next answer on")
        else:
            await self._run_action("settings", ())

    async def _think(self, text: str) -> None:
        await self._set("think", text)

    async def _effort(self, text: str) -> None:
        await self._set("effort", text)

    async def _theme(self, name: str) -> None:
        self._settings.apply(self._settings.values.with_text("theme", name, self._themes()))

    async def _session(self, text: str) -> None:
        self._owner.post_message(messages.SessionChosen(await self._kept.find(text)))

    async def _rename(self, name: str) -> None:
        self._hint(await self._kept.rename(name))

    async def _export(self, kind: str, path: str = "") -> None:
        self._remark(f"Written: {await self._kept.write_file(kind, path)}")

    async def _import(self, path: str) -> None:
        self._refuse_while_answering("import")
        self._owner.post_message(messages.SessionChosen(await self._kept.read_file(path)))

    async def _model(self, text: str) -> None:
        self._refuse_while_answering("model")
        found = await asyncio.to_thread(self._names.find, text)
        self._owner.post_message(messages.ModelChosen(found.choice))

    def _refuse_while_answering(self, name: str) -> None:
        if self._activity.is_answering:
            raise UsageError(f"/{name}: an answer is on its way; /stop first")

    def _hint(self, text: str) -> None:
        self._owner.post_message(messages.Hinted(text))

    def _remark(self, text: str) -> None:
        self._owner.post_message(messages.Remarked(text))
