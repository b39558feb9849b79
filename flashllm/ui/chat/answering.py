"""From a question to its answer: asks the engine, and brings what it says into the conversation."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flashllm.conversations.tree import BROKEN_OFF
from flashllm.engine.answer import Request, kept_numbers
from flashllm.errors import EngineLost, FlashllmError
from flashllm.ui.chat.refresh_rate import RefreshRate
from flashllm.ui.chat.status import BUSY_HINT, CLOSED_HINT, OPENING_HINT, Phase

if TYPE_CHECKING:
    from textual.timer import Timer

    from flashllm.conversations.tree import Turn
    from flashllm.planning.plan import Plan
    from flashllm.telemetry.token_record import EngineToken
    from flashllm.ui.app import ChatApp
    from flashllm.ui.chat import messages
    from flashllm.ui.transcript.answer import Answer

QUIET_SECONDS = 1.0
"""Without an answer and without a key: nobody waits for the screen."""
EMPTY_HINT = "the model ended its answer before its first word"
TOKENS_KEPT = 4_000
"""Tokens whose numbers can be looked at; those of the oldest answers go first."""


class Answering:
    """One answer at a time; the engine's thread does the work."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._pace = RefreshRate()
        self._turn: Turn | None = None
        self._view: Answer | None = None
        self._asked: Turn | None = None
        """The question that goes back into the prompt if there is no answer."""
        self._before: int | None = None
        """The version that was shown before, and is again if there is no answer."""
        self._ids_known = True
        """Ids stand for the text only if they are those of all of it."""
        self._begun_characters = 0
        """Of the answer's text, what was there before."""
        self._saving_later = False
        self._due: Timer | None = None
        """Shows the tokens that have come."""
        self._collecting: Timer | None = None
        self.tokens: dict[int, list[EngineToken]] = {}
        """Of the answers of this run to this conversation, by turn; the last written one last."""

    @property
    def turn(self) -> Turn | None:
        """The answer that is being written."""
        return self._turn

    def typed(self) -> None:
        """A key was pressed: its echo should not wait, and behind it is a good time for text."""
        self._pace.typed()
        if self._due is not None and self._pace.fits_behind_key():
            self._app.call_after_refresh(self._show_now)

    def reason_not_ready(self) -> str:
        """Why nothing can be asked now; empty if it can."""
        phase = self._app.activity.phase
        if phase is Phase.READY:
            return ""
        if phase is Phase.OPENING:
            return OPENING_HINT
        return BUSY_HINT if self._app.activity.is_answering else CLOSED_HINT

    async def take_context(self, plan: Plan) -> None:
        """A model is open: a larger context may hold what was left out of the one before."""
        before, conversation = self._app.activity.plan, self._app.conversation
        if before is None or plan.context <= before.context:
            return
        was_left_out = conversation.dropped
        conversation.leave_nothing_out()
        if was_left_out:
            words = "All of the conversation is sent to the model again, as far as it fits."
            await self._app.tell(words)

    async def ask(self, text: str, edited: int | None = None) -> None:
        """Sends a question: at the end, or as another version of an earlier one."""
        shown = self._app.shown
        conversation = shown.conversation
        self._before = edited
        self._asked = conversation.ask(text) if edited is None else conversation.edit(edited, text)
        await self._begin(conversation.begin_answer(), self._asked)

    async def regenerate(self) -> None:
        """Answers the last question once more."""
        conversation = self._app.shown.conversation
        self._before, self._asked = conversation.leaf, None
        turn = conversation.regenerate()
        if self._before == turn.parent:
            self._before = None
        await self._begin(turn)

    async def go_on(self, turn: Turn) -> None:
        """Continues the last answer, which was stopped."""
        self._before, self._asked = None, None
        shown = self._app.shown
        shown.writing, turn.finish_reason = turn.id, None
        view = shown.answer(turn.id)
        view.show_note(shown.note(turn))
        shown.transcript.anchor()
        self._start(turn, view, continues=True)

    async def _begin(self, turn: Turn, *before: Turn) -> None:
        shown = self._app.shown
        self._app.enter(Phase.READING)  # at once: the palette and keys do not wait for each other
        shown.writing = turn.id
        await shown.add(*before, turn)
        view = shown.answer(turn.id)
        self._start(turn, view)
        await view.expect()

    def _start(self, turn: Turn, view: Answer, *, continues: bool = False) -> None:
        app, conversation = self._app, self._app.shown.conversation
        self._turn, self._view = turn, view
        self._begun_characters = len(turn.text)
        self._ids_known = bool(turn.ids) or not turn.text
        app.enter(Phase.READING)
        # A cursor that blinks is a picture twice a second, a quarter of what a slow token costs.
        app.prompt.cursor_blink = False
        app.engine.ask(
            Request(
                conversation.messages(),
                conversation.system,
                conversation.known(),
                app.max_tokens,
                app.sampling,
                continues=continues,
            )
        )

    # What the engine says

    def expect_tokens(self) -> None:
        """Tokens are shown in batches, as often as that is worth what it costs."""
        self._due = self._app.set_timer(self._pace.wait_seconds(), self._show_due)

    async def _show_due(self) -> None:
        self._due = None
        await self.show_tokens()

    def _show_now(self) -> None:
        if self._due is not None:
            self._due.stop()
            self._due = self._app.set_timer(0.001, self._show_due)

    async def show_tokens(self) -> None:
        """Shows the tokens that have come."""
        app, turn, view = self._app, self._turn, self._view
        tokens = app.engine.take()
        if not tokens or turn is None or view is None:
            return
        if app.activity.phase is Phase.READING:
            app.enter(Phase.WRITING)
        app.activity.count(tokens)
        self._keep(turn, tokens)
        text = "".join([token.text for token in tokens])
        turn.text += text
        if self._ids_known:
            turn.ids += tuple(token.id for token in tokens)
        await view.add(text)
        self._pace.shown()
        app.show_numbers(tokens)
        self._save()

    async def finish(self, event: messages.Answered) -> None:
        """The answer is complete, or as complete as it will be."""
        await self.show_tokens()
        if self._turn is not None and self._view is not None:
            self._turn.numbers = kept_numbers(event.report)
            self._app.activity.statistics.end(event.report["decode"])
            # What was held back for a stop string that did not come has no token of its own.
            held = event.report["text"][len(self._turn.text) - self._begun_characters :]
            if held:
                self._turn.text += held
                await self._view.add(held)
        await self._end(event.finish_reason)

    async def fail(self, error: BaseException) -> None:
        """The answer broke off; what was typed comes back if nothing was answered."""
        await self.show_tokens()
        await self._end(BROKEN_OFF)
        await self._app.tell(explain(error), "error")
        if isinstance(error, EngineLost):
            self._app.show_lost()

    async def _end(self, reason: str) -> None:
        app, shown = self._app, self._app.shown
        turn, view = self._turn, self._view
        self._turn = self._view = shown.writing = None
        self._collect_later()
        app.prompt.cursor_blink = True
        app.enter(Phase.READY)
        if turn is None or view is None:
            return
        await view.finish()
        if turn.text.strip():
            turn.finish_reason = reason
            shown.saving.turn(shown.conversation, turn)
            view.show_note(shown.note(turn))
        else:
            await self._take_back(turn)
            if reason not in ("cancelled", BROKEN_OFF):
                app.show_hint(EMPTY_HINT)
        app.check_context()

    async def _take_back(self, turn: Turn) -> None:
        """What was asked in vain can be sent again, unless something else was typed meanwhile."""
        app, shown, asked = self._app, self._app.shown, self._asked
        if asked is None:
            await shown.remove(turn.id, self._before)
        elif app.prompt.text:
            await shown.remove(turn.id)
        else:
            await shown.remove(asked.id, self._before)
            app.prompt.put_text(asked.text)
            if self._before is not None:
                app.turns.begin_edit(self._before, asked.text)

    def _collect_later(self) -> None:
        if self._collecting is not None:
            self._collecting.stop()  # several short answers are followed by one collection
        self._collecting = self._app.set_timer(QUIET_SECONDS, self._collect_garbage)

    def _collect_garbage(self) -> None:
        if self._turn is not None:
            return  # the end of that answer asks for it again
        if self._pace.seconds_since_typed() < QUIET_SECONDS:
            self._collect_later()
        else:
            gc.collect()

    def _keep(self, turn: Turn, tokens: Sequence[EngineToken]) -> None:
        self.tokens[turn.id] = kept = self.tokens.pop(turn.id, [])
        kept.extend(tokens)
        while len(self.tokens) > 1 and sum(map(len, self.tokens.values())) > TOKENS_KEPT:
            del self.tokens[next(iter(self.tokens))]

    def _save(self) -> None:
        turn, shown = self._turn, self._app.shown
        if turn is None or self._saving_later:
            return
        due = shown.saving.growing(shown.conversation, turn)
        if due > 0:
            self._saving_later = True
            self._app.set_timer(due, self._save_now)

    def _save_now(self) -> None:
        self._saving_later = False
        self._save()


def explain(error: BaseException) -> str:
    """An error in words for users."""
    if isinstance(error, FlashllmError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory; leave, and come back with a smaller --memory"
    return f"unexpected: {type(error).__name__}: {error}"
