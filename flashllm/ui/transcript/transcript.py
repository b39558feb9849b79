"""The transcript: what was asked, what was answered, and remarks between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from flashllm.ui.commands.bindings import TRANSCRIPT_BINDINGS
from flashllm.ui.transcript.invitation import Invitation
from flashllm.ui.transcript.turn import Notice, TurnView
from flashllm.ui.widgets.single_layout import SingleLayout

if TYPE_CHECKING:
    from flashllm.ui.transcript.markdown import AnswerMarkdown

MOUNTED_AT_ONCE = 20
"""Turns of a long conversation that are made into widgets: the last ones, older ones on demand."""


class Transcript(SingleLayout, VerticalScroll):
    """All of it; stays at the end while answers grow, unless the reader scrolled away.

    `make` gives the widget of a turn, when it is needed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*TRANSCRIPT_BINDINGS]

    def __init__(self, make: Callable[[int], TurnView]) -> None:
        super().__init__()
        self.selected: int | None = None
        """The turn that keys act on."""
        self._make = make
        self._older: list[int] = []
        self._adding_older = False

    def on_mount(self) -> None:
        """Sticks to the end."""
        self.anchor()

    @property
    def invitation(self) -> Invitation | None:
        """What stands there while nothing was asked."""
        return next((child for child in self.children if isinstance(child, Invitation)), None)

    def views(self) -> list[TurnView]:
        """Of the turns that have been mounted, in order."""
        return [child for child in self.children if isinstance(child, TurnView)]

    def view(self, turn_id: int) -> TurnView | None:
        """Of one turn, if it is there."""
        return next((view for view in self.views() if view.turn_id == turn_id), None)

    async def invite(self, invitation: Invitation) -> None:
        """Shows what one could ask, until something is."""
        if self.invitation is not None and self.invitation.says_same(invitation):
            return
        await self.remove_children(Invitation)
        await self.mount(invitation, before=0 if self.children else None)
        self.anchor()

    async def add(self, *widgets: TurnView | Notice) -> None:
        """Appends, and goes to the end."""
        if any(isinstance(widget, TurnView) for widget in widgets):
            await self.remove_children(Invitation)
        await self.mount_all(widgets)
        self.anchor()

    async def show(self, turns: Sequence[int]) -> None:
        """Shows these turns; the widgets of the first ones that are there already stay."""
        views = self.views()
        there = [*self._older, *(view.turn_id for view in views)]
        same = _common(there, turns)
        kept = max(same - len(self._older), 0)
        if not kept or len(turns) - same > MOUNTED_AT_ONCE:
            kept, self._older = 0, list(turns[:-MOUNTED_AT_ONCE])
            same = len(self._older)
        first = self.children.index(views[kept - 1]) + 1 if kept else 0
        self.select(None)
        with self.app.batch_update():
            await self.remove_children(list(self.children[first:]))
            await self.mount_all([self._make(turn) for turn in turns[same:]])
        self.anchor()

    async def empty(self) -> None:
        """Everything goes, also what is not mounted yet."""
        self._older = []
        await self.remove_children()

    async def clear_notices(self) -> None:
        """Remarks go, the conversation stays."""
        await self.remove_children(Notice)

    def select(self, turn_id: int | None) -> None:
        """Marks one turn, and shows it."""
        self.selected = turn_id
        for view in self.views():
            chosen = turn_id is not None and view.turn_id == turn_id
            view.set_class(chosen, "-selected")
            if chosen:
                view.scroll_visible(animate=False)

    async def step(self, step: int) -> None:
        """Selects the turn before or after; older ones are mounted when they are reached."""
        if step < 0 and self._older and self._index() == 0:
            await self._add_older()
        views = self.views()
        if views:
            index = min(max(self._index() + step, 0), len(views) - 1)
            self.select(views[index].turn_id)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Near the beginning of what is mounted, more is."""
        super().watch_scroll_y(old_value, new_value)
        if self._older and new_value < self.size.height and new_value < old_value:
            self.call_later(self._add_older)
        self._lay_out()

    def on_resize(self) -> None:
        """More or fewer lines are near."""
        self.call_after_refresh(self._lay_out)

    def on_answer_markdown_height_kept(self, event: AnswerMarkdown.HeightKept) -> None:
        """An answer grew, or was opened: what is far away now is left out of the layout."""
        event.stop()
        self.call_after_refresh(self._lay_out)

    def _lay_out(self) -> None:
        # What is read next is ready before it is reached; between near and far all stays as it is,
        # so that not every line that is scrolled costs a layout.
        height, top = self.size.height, int(self.scroll_y)
        half = height // 2
        for view in self.views():
            begin = top - view.virtual_region.y
            view.lay_out(
                range(begin - half, begin + height + half),
                range(begin - height, begin + 2 * height),
            )

    def _index(self) -> int:
        # Past the end where nothing is selected, so that the first step back takes the last one.
        ids = [view.turn_id for view in self.views()]
        return ids.index(self.selected) if self.selected in ids else len(ids)

    async def _add_older(self) -> None:
        if self._adding_older or not (self._older and self.children):
            return
        self._adding_older = True
        turns, first = self._older[-MOUNTED_AT_ONCE:], self.children[0]
        del self._older[-MOUNTED_AT_ONCE:]
        await self.mount_all([self._make(turn) for turn in turns], before=first)
        self.call_after_refresh(self._stay_at, first)

    def _stay_at(self, first: Widget) -> None:
        # What was at the top stays at the top.
        self.scroll_to_widget(first, animate=False, top=True, force=True)
        self._adding_older = False


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    same = 0
    for left, right in zip(one, other):  # noqa: B905  as far as both go
        if left != right:
            break
        same += 1
    return same
