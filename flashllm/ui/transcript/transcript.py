"""The transcript: what was asked, what was answered, and remarks between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import takewhile
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

MOUNTED_AT_ONCE = 12
"""Turns of a long conversation that are made into widgets: the last ones, others on demand."""
FAR_SCREENS = 1
"""So many screens away from what is seen, widgets may go: each takes some 40 KiB, and a high screen
shows dozens of them."""
NEAR_SCREENS = 0.5
"""More turns get widgets where fewer screens than this are left beyond what is seen."""
LAYOUTS_MAX = 20
"""So many refreshes may come before what was mounted has its place."""
FAR_LEAST = 4
"""Fewer widgets that are far away stay: each time that some go, the rest is laid out anew."""


class Transcript(SingleLayout, VerticalScroll):
    """All of it; stays at the end while answers grow, unless the reader scrolled away.

    `make` gives the widget of a turn, when it is needed: of a path of any length there are those
    near what is seen. What goes above and below comes back where the reader scrolls to it; remarks
    do not, as they are no part of the conversation.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*TRANSCRIPT_BINDINGS]

    def __init__(self, make: Callable[[int], TurnView]) -> None:
        super().__init__()
        self.selected: int | None = None
        """The turn that keys act on."""
        self.holds_end = False
        """Whether the last widgets stay, since an answer is being written there."""
        self.is_covered = False
        """Whether a page lies over it, and what is out of sight is gone until it is left."""
        self._make_view = make
        self.shows_reasoning = False
        """Whether what models thought before their answers is shown, and not folded."""
        self._older: list[int] = []
        """Turns above those that have widgets."""
        self._newer: list[int] = []
        """Turns below them; none while the end is shown."""
        self._changing = asyncio.Lock()
        """Held while widgets come and go, which is asked for here and by the screen."""
        self._is_due = False
        """Whether it will be looked which widgets to add or to remove."""

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
        async with self._changing:
            await self.remove_children(Invitation)
            await self.mount(invitation, before=0 if self.children else None)
        self.anchor()

    async def add(self, *widgets: TurnView | Notice) -> None:
        """Appends, and goes to the end."""
        async with self._changing:
            if any(isinstance(widget, TurnView) for widget in widgets):
                await self.remove_children(Invitation)
            await self._mount_end()
            for widget in widgets:
                if isinstance(widget, TurnView):
                    widget.show_reasoning(self.shows_reasoning)
            await self.mount_all(widgets)
        self.anchor()
        self._adapt_later()

    async def show(self, turns: Sequence[int]) -> None:
        """Shows these turns; the widgets of the first ones that are there already stay."""
        async with self._changing:
            views = self.views()
            there = [*self._older, *(view.turn_id for view in views)]
            same = _common(there, turns)
            kept = max(same - len(self._older), 0)
            if not kept or len(turns) - same > MOUNTED_AT_ONCE:
                kept, self._older = 0, list(turns[:-MOUNTED_AT_ONCE])
                same = len(self._older)
            self._newer = []
            first = self.children.index(views[kept - 1]) + 1 if kept else 0
            self.select(None)
            with self.app.batch_update():
                await self.remove_children(list(self.children[first:]))
                await self.mount_all([self._make(turn) for turn in turns[same:]])
        self.anchor()
        self._adapt_later()

    async def go_to_end(self) -> None:
        """Shows the last turns, wherever the reader was."""
        async with self._changing:
            await self._mount_end()
        self.anchor()

    async def go_to_beginning(self) -> None:
        """Shows the first turns, wherever the reader was."""
        async with self._changing:
            await self._mount_beginning()
        # Once they have places; until then the end of what was there would be gone back to.
        self.release_anchor()
        self.call_after_refresh(self.scroll_home, animate=False, force=True, immediate=True)

    async def empty(self) -> None:
        """Everything goes, also what is not mounted yet."""
        async with self._changing:
            self._older, self._newer = [], []
            await self.remove_children()

    async def clear_notices(self) -> None:
        """Remarks go, the conversation stays."""
        await self.remove_children(Notice)

    def cover(self, is_covered: bool) -> None:
        """Whether a page lies over it: what is out of sight above the end goes meanwhile.

        A page has as many widgets as that, so the two together take what one of them does.
        """
        self.is_covered = is_covered and self._sticks_to_end
        self._adapt_later()

    def toggle_reasoning(self) -> None:
        """Shows what models thought before their answers, or folds it."""
        self.shows_reasoning = not self.shows_reasoning
        for view in self.views():
            view.show_reasoning(self.shows_reasoning)

    def _make(self, turn_id: int) -> TurnView:
        view = self._make_view(turn_id)
        view.show_reasoning(self.shows_reasoning)
        return view

    def select(self, turn_id: int | None) -> None:
        """Marks one turn, and shows it."""
        self.selected = turn_id
        for view in self.views():
            chosen = turn_id is not None and view.turn_id == turn_id
            view.set_class(chosen, "-selected")
            if chosen:
                view.scroll_visible(animate=False)

    async def step(self, step: int) -> None:
        """Selects the turn before or after; those without widgets get them when reached."""
        index, last = self._index(), len(self.views()) - 1
        async with self._changing:
            if step < 0 and index == 0:
                await self._mount_older()
            elif step > 0 and index == last:
                await self._mount_newer()
        views = self.views()
        if views:
            index = min(max(self._index() + step, 0), len(views) - 1)
            self.select(views[index].turn_id)

    def action_scroll_end(self) -> None:
        """Goes to the last turn, which may have no widget yet."""
        if self._newer:
            self.call_later(self.go_to_end)
        else:
            super().action_scroll_end()

    def action_scroll_home(self) -> None:
        """Goes to the first turn, which may have no widget yet."""
        if self._older and not self.holds_end:
            self.call_later(self.go_to_beginning)
        else:
            super().action_scroll_home()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Near the beginning and the end of what is mounted, more is."""
        super().watch_scroll_y(old_value, new_value)
        near = NEAR_SCREENS * self.size.height
        is_up = self._older and new_value < near and new_value < old_value
        is_down = self._newer and new_value > self.max_scroll_y - near and new_value > old_value
        if is_up or is_down:
            self._adapt_later()
        self._lay_out()

    def _check_anchor(self) -> None:
        # The end of what has widgets is not the end where others follow.
        if not self._newer:
            super()._check_anchor()

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

    def _adapt_later(self) -> None:
        """Once all that is there has its place, widgets come and go as that asks for."""
        if not self._is_due:
            self._is_due = True
            self.call_after_refresh(self._adapt)

    async def _adapt(self) -> None:
        if not self.is_attached:  # it comes later than the end of the screen
            return
        async with self._changing:
            self._is_due = False
            if self.is_covered:
                await self._remove_far(0)
                return
            near, top = NEAR_SCREENS * self.size.height, self.scroll_y
            if self._older and top < near:
                await self._mount_older()
                return  # it goes on once that has its place
            if self._newer and top > self.max_scroll_y - near:
                await self._mount_newer()
            else:
                await self._remove_far(FAR_SCREENS)
                return
        self._adapt_later()

    async def _mount_end(self) -> None:
        """The last turns get widgets, in place of what is mounted, unless they have them."""
        if self._newer:
            await self._mount_only(slice(-MOUNTED_AT_ONCE, None))

    async def _mount_beginning(self) -> None:
        """The first turns get widgets, in place of what is mounted, unless they have them."""
        if self._older:
            await self._mount_only(slice(MOUNTED_AT_ONCE))

    async def _mount_only(self, which: slice) -> None:
        """Some of all turns get widgets, and no others keep theirs."""
        turns = [*self._older, *(view.turn_id for view in self.views()), *self._newer]
        first, end, _ = which.indices(len(turns))
        self._older, self._newer = turns[:first], turns[end:]
        with self.app.batch_update():
            await self.remove_children()
            await self.mount_all([self._make(turn) for turn in turns[first:end]])

    async def _mount_older(self) -> None:
        """Turns above get widgets; what is seen stays where it is."""
        turns = self._older[-MOUNTED_AT_ONCE:]
        if not turns:
            return
        del self._older[-MOUNTED_AT_ONCE:]
        first = self.children[0] if self.children else None
        place = first.virtual_region.y if first is not None else 0
        await self.mount_all([self._make(turn) for turn in turns], before=first)
        self._is_due = True  # nothing comes or goes until these have their place
        self.call_after_refresh(self._stay_at, first, place, LAYOUTS_MAX)

    def _stay_at(self, first: Widget | None, place: int, layouts: int) -> None:
        """What is seen moves as far as `first` did, which was at `place`."""
        if not self.is_attached:
            return
        # A refresh may come before the layout that places what was mounted.
        if self.children and not self.children[0].virtual_region.height and layouts:
            self.call_after_refresh(self._stay_at, first, place, layouts - 1)
            return
        self._is_due = False
        if first is not None and first.is_attached and not self._sticks_to_end:
            y = self.scroll_y + first.virtual_region.y - place
            self.scroll_to(y=y, animate=False, force=True, immediate=True)
        self._adapt_later()

    async def _mount_newer(self) -> None:
        """Turns below get widgets."""
        turns = self._newer[:MOUNTED_AT_ONCE]
        if not turns:
            return
        del self._newer[:MOUNTED_AT_ONCE]
        await self.mount_all([self._make(turn) for turn in turns])

    async def _remove_far(self, screens: float) -> None:
        """Widgets so far above and below what is seen go, but not all of a few."""
        children, height, top = list(self.children), self.size.height, self.scroll_y
        spare = len(children) - MOUNTED_AT_ONCE
        if spare < FAR_LEAST or not height:
            return
        begin, end = top - screens * height, top + (1 + screens) * height
        above = list(takewhile(lambda child: child.virtual_region.bottom < begin, children))
        below = list(takewhile(lambda child: child.virtual_region.y > end, reversed(children)))
        above = above[:spare]
        below = [] if self.holds_end else below[: spare - len(above)][::-1]
        if len(above) >= FAR_LEAST:
            await self._remove_above(above, children[len(above)])
        if len(below) >= FAR_LEAST:
            self._newer = [*_turns_of(below), *self._newer]
            await self.remove_children(below)

    async def _remove_above(self, gone: Sequence[Widget], first: Widget) -> None:
        self._older += _turns_of(gone)
        higher = first.virtual_region.y - gone[0].virtual_region.y
        with self.app.batch_update():
            await self.remove_children(gone)
            if not self._sticks_to_end:
                y = self.scroll_y - higher
                self.scroll_to(y=y, animate=False, force=True, immediate=True)

    @property
    def _sticks_to_end(self) -> bool:
        """Whether the end stays in sight by itself, whatever changes."""
        return self.is_anchored and not self._anchor_released


def _turns_of(widgets: Sequence[Widget]) -> list[int]:
    return [widget.turn_id for widget in widgets if isinstance(widget, TurnView)]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    same = 0
    for left, right in zip(one, other):  # noqa: B905  as far as both go
        if left != right:
            break
        same += 1
    return same
