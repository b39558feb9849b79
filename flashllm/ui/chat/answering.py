"""From a question to its answer: asks the engine, and brings what it says into the conversation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flashllm.conversations.packed_numbers import PackedNumbers
from flashllm.conversations.tree import BROKEN_OFF
from flashllm.engine.answer import Request, kept_numbers
from flashllm.errors import FlashllmError, UsageError
from flashllm.ui.chat import messages
from flashllm.ui.chat.refresh_rate import RefreshRate
from flashllm.ui.chat.status import Phase
from flashllm.ui.closed_widgets import GarbageWatch, collect_closed_widgets

if TYPE_CHECKING:
    from textual.timer import Timer

    from flashllm.conversations.fit import Known
    from flashllm.conversations.tree import Turn
    from flashllm.engine.sampling import Sampling
    from flashllm.tokenizer.chat_template import Message
    from flashllm.ui.chat.answer_settings import AnswerSettings
    from flashllm.ui.chat.conversation_view import ConversationView
    from flashllm.ui.chat.engine_thread import EngineThread
    from flashllm.ui.chat.status import Activity
    from flashllm.ui.transcript.answer import Answer
    from flashllm.ui.widgets.owner import Owner

AT_ONCE_SECONDS = 0.001
QUIET_SECONDS = 1.0
"""Without an answer and without a key: nobody waits for the screen."""
DRAW_TEMPERATURE = 0.7
"""At which another answer is drawn, where the settings would give the same one again."""
_ENDED_BY_ITSELF = ("stop", "length", "context")
SAME_AGAIN = "the same text came again, as it does at temperature 0; once more offers to draw"


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
        self._one_of_each_id: dict[int, int] = {}
        """Ids come as numbers of their own each time, of 32 bytes; a long conversation has many."""
        self._begun_characters = 0
        """Of the answer's text, what was there before."""
        self._request: Request | None = None
        """Of the answer that is being written, or was last."""
        self._answered: tuple[int, Request, object] | None = None
        """The last answer that ended by itself: its turn, its request, and by which model."""
        self._saving_later = False
        self._due: Timer | None = None
        """Shows the progress that has come."""
        self._collecting: Timer | None = None
        self.garbage = GarbageWatch(self._collect_garbage)
        """Where nobody is quiet: widgets that have gone are garbage that only a full collection
        finds, and the ceiling holds for them too."""

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
        await self._begin(self._asked, conversation.begin_answer())

    async def regenerate(self, *, draw: bool = False) -> None:
        """Answers the last question once more; `draw`: at a temperature, whatever is set.

        What is drawn is drawn with a seed of its own, or the same text would come again.
        """
        conversation = self._shown.conversation
        self._before, self._asked = conversation.leaf, None
        turn = conversation.regenerate()
        if self._before == turn.parent:
            self._before = None
        sampling = self._settings.sampling
        if draw:
            sampling = replace(sampling, temperature=DRAW_TEMPERATURE)
        if sampling.temperature > 0:
            versions = len(conversation.siblings(turn.id)) - 1
            sampling = replace(sampling, seed=(sampling.seed + versions) % (1 << 64))
        request = replace(self._next_request(), sampling=sampling)
        await self._begin(turn, request=request)

    def would_repeat(self) -> bool:
        """Whether it is known that answering the last question again would give the same text."""
        conversation = self._shown.conversation
        if self._answered is None or self._settings.sampling.temperature > 0:
            return False
        turn_id, request, model = self._answered
        if turn_id != conversation.leaf or model != self._activity.identity:
            return False
        place = len(conversation.messages()) - 1
        known = {number: ids for number, ids in conversation.known().items() if number < place}
        return request == self._make_request(conversation.messages()[:place], known)

    async def answer_aside(self, question: Turn, said: Sequence[Message], known: Known) -> None:
        """Answers the messages `said`, in place of the path, whose last question is `question`.

        `known` has ids of the answers among them. What was shown before is not come back to.
        """
        self._before = self._asked = None
        turn = self._shown.conversation.begin_answer()
        request = self._make_request(said, known)
        await self._begin(question, turn, request=request)

    async def go_on(self, turn: Turn) -> None:
        """Continues the last answer, which was stopped."""
        self._before, self._asked = None, None
        self._enter(Phase.READING)  # at once: the palette and keys do not wait for each other
        shown = self._shown
        shown.writing, turn.finish_reason = turn.id, None
        await shown.transcript.go_to_end()
        view = shown.answer(turn.id)
        view.show_note(shown.note(turn))
        sampling = _sampling_of(turn, self._settings.sampling)
        request = replace(self._next_request(), sampling=sampling, continues=True)
        self._start(turn, view, request)

    async def _begin(self, *turns: Turn, request: Request | None = None) -> None:
        """Shows turns, and answers into the last one: `request`, or else the conversation."""
        turn = turns[-1]
        self._enter(Phase.READING)  # at once: the palette and keys do not wait for each other
        self._shown.writing = turn.id
        await self._shown.add(*turns)
        view = self._shown.answer(turn.id)
        self._start(turn, view, request or self._next_request())
        await view.expect()

    def _next_request(self) -> Request:
        """The conversation as it is, to be answered with the settings."""
        conversation = self._shown.conversation
        return self._make_request(conversation.messages(), conversation.known())

    def _make_request(self, said: Sequence[Message], known: Known) -> Request:
        settings, system = self._settings, self._shown.conversation.system
        return Request(
            said,
            system,
            known,
            settings.max_tokens,
            settings.sampling,
            reasoning=settings.reasoning,
        )

    def _start(self, turn: Turn, view: Answer, request: Request) -> None:
        self._turn, self._view, self._request = turn, view, request
        self._begun_characters = len(turn.text)
        self._ids_known = bool(turn.ids) or not turn.text
        self._enter(Phase.READING)
        self._activity.statistics.go_on(turn.text)
        self._engine.ask(request)

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
                one = self._one_of_each_id
                turn.ids += tuple([one.setdefault(token.id, token.id) for token in tokens])
            await view.add(text)
            self._save()
        self._rate.shown()
        self._owner.post_message(messages.ProgressShown(turn.id, tokens))

    async def finish(self, event: messages.Answered) -> Unanswered | None:
        """The answer is complete, or as complete as it will be; what is returned has no text."""
        await self.show_progress()
        if event.report is not None and self._turn is not None and self._view is not None:
            self._turn.numbers = PackedNumbers(kept_numbers(event.report) | self._drawn())
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
        self.collect_later()
        self._enter(Phase.READY)
        if turn is None or view is None:
            return None
        await view.finish()
        if not turn.text.strip():
            return Unanswered(turn, self._asked, self._before, reason)
        turn.finish_reason = reason
        self._answered = None
        if reason in _ENDED_BY_ITSELF and self._request is not None:
            self._answered = turn.id, self._request, self._activity.identity
        shown.saving.turn(shown.conversation, turn)
        view.show_note(shown.note(turn))
        return None

    def _drawn(self) -> dict[str, Any]:
        """How an answer was sampled, where that was not as the settings say."""
        sampling = None if self._request is None else self._request.sampling
        if sampling is None or sampling == self._settings.sampling:
            return {}
        return {"temp": sampling.temperature, "seed": sampling.seed}

    def came_again(self) -> bool:
        """Whether the answer that is shown last has the text of another version of it."""
        conversation = self._shown.conversation
        turn = conversation.turns.get(conversation.leaf or 0)
        if turn is None or self._answered is None or self._answered[0] != turn.id:
            return False
        sampling = self._answered[1].sampling
        others = (one for one in conversation.siblings(turn.id) if one != turn.id)
        return (
            sampling is not None
            and sampling.temperature == 0
            and any(conversation.turns[one].text == turn.text for one in others)
        )

    def collect_later(self) -> None:
        """What an answer or a closed page left is collected when nobody waits."""
        if self._collecting is not None:
            self._collecting.stop()  # several short answers are followed by one collection
        self._collecting = self._owner.set_timer(QUIET_SECONDS, self._collect_when_quiet)

    def _collect_when_quiet(self) -> None:
        if self._turn is not None:
            return  # the end of that answer asks for it again
        if self._rate.seconds_since_typed() < QUIET_SECONDS:
            self.collect_later()
        else:
            self._collect_garbage()

    def _collect_garbage(self) -> None:
        collect_closed_widgets(self._owner.app)

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


def _sampling_of(turn: Turn, usual: Sampling) -> Sampling:
    """How an answer was sampled, if that was kept with it; a file may say anything."""
    temperature, seed = turn.numbers.get("temp"), turn.numbers.get("seed")
    if not isinstance(temperature, int | float) or not isinstance(seed, int):
        return usual
    with contextlib.suppress(UsageError):
        return replace(usual, temperature=float(temperature), seed=seed)
    return usual


def explain(error: BaseException) -> str:
    """An error as a sentence for users."""
    if isinstance(error, FlashllmError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory; less for the model may help, by --memory or /set memory"
    return f"unexpected: {type(error).__name__}: {error}"
