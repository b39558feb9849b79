"""From a question to its answer: asks the engine, and brings what it says into the conversation."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashllm.conversations.tree import BROKEN_OFF
from flashllm.engine.answer import Request, kept_numbers
from flashllm.errors import FlashllmError
from flashllm.ui.chat import messages
from flashllm.ui.chat.refresh_rate import RefreshRate
from flashllm.ui.chat.status import Phase

if TYPE_CHECKING:
    from textual.timer import Timer

    from flashllm.conversations.tree import Turn
    from flashllm.ui.chat.answer_settings import AnswerSettings
    from flashllm.ui.chat.conversation_view import ConversationView
    from flashllm.ui.chat.engine_thread import EngineThread
    from flashllm.ui.chat.status import Activity
    from flashllm.ui.transcript.answer import Answer
    from flashllm.ui.widgets.owner import Owner

AT_ONCE_SECONDS = 0.001
QUIET_SECONDS = 1.0
"""Without an answer and without a key: nobody waits for the screen."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An answer that ended before its first word; its turn is still shown."""

    turn: Turn
    question: Turn | None
    """What was asked for it, and can be asked again."""
    shown_before: int | None
    """The version that was shown before."""
    reason: str

    @property
    def is_unexpected(self) -> bool:
        """Whether nobody stopped it, and nothing broke."""
        return self.reason not in ("cancelled", BROKEN_OFF)


class Answering:
    """One answer at a time; the engine's thread does the work.

    The one place that decides when what the engine made is shown. `owner` gets `PhaseEntered` and
    `ProgressShown`.
    """

    def __init__(
        self,
        owner: Owner,
        engine: EngineThread,
        view: ConversationView,
        activity: Activity,
        settings: AnswerSettings,
    ) -> None:
        self._owner = owner
        self._engine = engine
        self._shown = view
        self._activity = activity
        self._settings = settings
        self._rate = RefreshRate()
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
        """Shows the progress that has come."""
        self._collecting: Timer | None = None

    @property
    def turn(self) -> Turn | None:
        """The answer that is being written."""
        return self._turn

    def typed(self) -> None:
        """A key was pressed: its echo should not wait, and behind it is a good time for text."""
        self._rate.typed()
        if self._due is not None and self._rate.fits_behind_key():
            self._owner.call_after_refresh(self._show_now)

    async def ask(self, text: str, edited: int | None = None) -> None:
        """Sends a question: at the end, or as another version of an earlier one."""
        conversation = self._shown.conversation
        self._before = edited
        self._asked = conversation.ask(text) if edited is None else conversation.edit(edited, text)
        await self._begin(conversation.begin_answer(), self._asked)

    async def regenerate(self) -> None:
        """Answers the last question once more."""
        conversation = self._shown.conversation
        self._before, self._asked = conversation.leaf, None
        turn = conversation.regenerate()
        if self._before == turn.parent:
            self._before = None
        await self._begin(turn)

    async def go_on(self, turn: Turn) -> None:
        """Continues the last answer, which was stopped."""
        self._before, self._asked = None, None
        shown = self._shown
        shown.writing, turn.finish_reason = turn.id, None
        view = shown.answer(turn.id)
        view.show_note(shown.note(turn))
        shown.transcript.anchor()
        self._start(turn, view, continues=True)

    async def _begin(self, turn: Turn, *before: Turn) -> None:
        self._enter(Phase.READING)  # at once: the palette and keys do not wait for each other
        self._shown.writing = turn.id
        await self._shown.add(*before, turn)
        view = self._shown.answer(turn.id)
        self._start(turn, view)
        await view.expect()

    def _start(self, turn: Turn, view: Answer, *, continues: bool = False) -> None:
        conversation = self._shown.conversation
        self._turn, self._view = turn, view
        self._begun_characters = len(turn.text)
        self._ids_known = bool(turn.ids) or not turn.text
        self._enter(Phase.READING)
        self._engine.ask(
            Request(
                conversation.messages(),
                conversation.system,
                conversation.known(),
                self._settings.max_tokens,
                self._settings.sampling,
                continues=continues,
            )
        )

    def _enter(self, phase: Phase) -> None:
        self._activity.enter(phase)
        self._owner.post_message(messages.PhaseEntered(phase))

    # What the engine says

    def expect_progress(self, *, at_once: bool) -> None:
        """Progress is shown as often as that is worth what it costs."""
        if at_once and self._due is not None:
            self._show_now()
        else:
            seconds = AT_ONCE_SECONDS if at_once else self._rate.wait_seconds()
            self._due = self._owner.set_timer(seconds, self._show_due)

    async def _show_due(self) -> None:
        self._due = None
        await self.show_progress()

    def _show_now(self) -> None:
        if self._due is not None:
            self._due.stop()
            self._due = self._owner.set_timer(AT_ONCE_SECONDS, self._show_due)

    async def show_progress(self) -> None:
        """Shows what has come since it was shown last: the prompt's progress, and tokens."""
        progress, turn, view = self._engine.take(), self._turn, self._view
        if turn is None or view is None:
            return
        if progress.prompt is not None:
            self._activity.prefill(*progress.prompt)
        tokens = progress.tokens
        if tokens:
            if self._activity.phase is Phase.READING:
                self._enter(Phase.WRITING)
            self._activity.count(tokens)
            text = "".join([token.text for token in tokens])
            turn.text += text
            if self._ids_known:
                turn.ids += tuple(token.id for token in tokens)
            await view.add(text)
            self._save()
        self._rate.shown()
        self._owner.post_message(messages.ProgressShown(turn.id, tokens))

    async def finish(self, event: messages.Answered) -> Unanswered | None:
        """The answer is complete, or as complete as it will be; what is returned has no text."""
        await self.show_progress()
        if self._turn is not None and self._view is not None:
            self._turn.numbers = kept_numbers(event.report)
            self._activity.statistics.end(event.report["decode"])
            # What was held back for a stop string that did not come has no token of its own.
            held = event.report["text"][len(self._turn.text) - self._begun_characters :]
            if held:
                self._turn.text += held
                await self._view.add(held)
        return await self._end(event.finish_reason)

    async def break_off(self) -> Unanswered | None:
        """The answer ended in an error; what is returned has no text."""
        await self.show_progress()
        return await self._end(BROKEN_OFF)

    async def take_back(self, unanswered: Unanswered, *, with_question: bool) -> None:
        """Removes an answer without text, and its question if that is asked anew.

        The version that was shown before is shown again.
        """
        if unanswered.question is None:
            await self._shown.remove(unanswered.turn.id, unanswered.shown_before)
        elif with_question:
            await self._shown.remove(unanswered.question.id, unanswered.shown_before)
        else:
            await self._shown.remove(unanswered.turn.id)

    async def _end(self, reason: str) -> Unanswered | None:
        shown, turn, view = self._shown, self._turn, self._view
        self._turn = self._view = shown.writing = None
        self._collect_later()
        self._enter(Phase.READY)
        if turn is None or view is None:
            return None
        await view.finish()
        if not turn.text.strip():
            return Unanswered(turn, self._asked, self._before, reason)
        turn.finish_reason = reason
        shown.saving.turn(shown.conversation, turn)
        view.show_note(shown.note(turn))
        return None

    def _collect_later(self) -> None:
        if self._collecting is not None:
            self._collecting.stop()  # several short answers are followed by one collection
        self._collecting = self._owner.set_timer(QUIET_SECONDS, self._collect_garbage)

    def _collect_garbage(self) -> None:
        if self._turn is not None:
            return  # the end of that answer asks for it again
        if self._rate.seconds_since_typed() < QUIET_SECONDS:
            self._collect_later()
        else:
            gc.collect()

    def _save(self) -> None:
        turn, shown = self._turn, self._shown
        if turn is None or self._saving_later:
            return
        due = shown.saving.growing(shown.conversation, turn)
        if due > 0:
            self._saving_later = True
            self._owner.set_timer(due, self._save_now)

    def _save_now(self) -> None:
        self._saving_later = False
        self._save()


def explain(error: BaseException) -> str:
    """An error as a sentence for users."""
    if isinstance(error, FlashllmError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory; leave, and come back with a smaller --memory"
    return f"unexpected: {type(error).__name__}: {error}"
