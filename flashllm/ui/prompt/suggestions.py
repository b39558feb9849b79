"""What a slash command that is being typed could become, shown above the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from flashllm.ui.commands.table import SUGGESTIONS_MOST, Choices, Suggestion, completed, suggest
from flashllm.ui.prompt.paths import completions, folder_of, list_folder
from flashllm.untrusted.terminal import sanitize_line

HINT = "Tab completes, Up and Down choose, Enter takes"
SHORT_HINT = "Tab completes, Enter takes"


class Suggestions(Widget):
    """A few lines, one of which may be marked; none where nothing is being completed.

    Of the names of commands one is marked from the beginning; of arguments, which may be others
    than those offered, one is marked where the arrows go there.
    """

    DEFAULT_CSS = """
    Suggestions {
        height: auto;
        display: none;
        padding: 0 1;
        background: $panel;
        color: $text;
    }
    Suggestions.-shown {
        display: block;
    }
    """
    suggestions: reactive[tuple[Suggestion, ...]] = reactive((), layout=True)
    marked: reactive[int | None] = reactive(None)

    class Clicked(Message):
        """One of them was clicked on."""

        def __init__(self, suggestion: Suggestion) -> None:
            super().__init__()
            self.suggestion = suggestion

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.recalled = ""
        """A text that comes from the history, through which the arrows go on."""
        self._choices = choices
        self._text = ""
        self._closed_for = ""
        """The text for which they were closed."""
        self._is_walked = False
        """Whether arrows have moved the mark."""
        self._folder: tuple[str, list[str]] | None = None
        """A directory as it was typed, and what is in it."""

    @property
    def is_open(self) -> bool:
        """Whether there are any."""
        return bool(self.suggestions)

    def follow(self, text: str) -> None:
        """Shows what a text that is being typed could become, if it is a command."""
        if text == self._text:
            return
        self._text, self._is_walked = text, False
        if text != self._closed_for:
            self._closed_for = ""
        if not text.startswith("/"):
            self._folder = None  # by the next time there may be other files
        self._suggest()

    def renew(self) -> None:
        """What there is to choose from has become other."""
        if self.is_attached:
            self._suggest()

    def close(self) -> None:
        """Shows none until the text is another."""
        self._closed_for = self._text
        self._suggest()

    def step(self, by: int, text: str) -> bool:
        """Moves the mark; False where there is nothing to mark."""
        self.follow(text)
        count = len(self.suggestions)
        if not count or text == self.recalled:
            return False
        here = self.marked if self.marked is not None else -1 if by > 0 else count
        self.marked, self._is_walked = (here + by) % count, True
        return True

    def chosen(self, text: str) -> Suggestion | None:
        """The one that Enter takes; None where the text is to be taken as it is."""
        self.follow(text)
        if self.marked is None or not self.suggestions or text == self.recalled:
            return None
        return self.suggestions[self.marked]

    def completed(self, text: str) -> str:
        """The text as far as it can be completed; the marked one where arrows went there."""
        self.follow(text)
        if self._is_walked and self.marked is not None and self.suggestions:
            return self.suggestions[self.marked].line
        return completed(text, self.suggestions)

    def watch_suggestions(
        self, before: tuple[Suggestion, ...], suggestions: tuple[Suggestion, ...]
    ) -> None:
        """Takes no room where there is nothing to show."""
        self.set_class(bool(suggestions), "-shown")
        if bool(before) != bool(suggestions):
            self.refresh_bindings()  # of the key that closes them

    def on_click(self, event: events.Click) -> None:
        """A line is taken."""
        index = self._first + event.y
        if self._first <= index < min(self._first + self._most, len(self.suggestions)):
            event.stop()
            self.post_message(self.Clicked(self.suggestions[index]))

    def render(self) -> Content:
        """One a line, with its help where there is room, and how many more there are."""
        first = self._first
        shown = self.suggestions[first : first + self._most]
        column = max((len(suggestion.shown) for suggestion in shown), default=0) + 2
        width = max(1, self.size.width)
        lines = []
        for number, suggestion in enumerate(shown, first):
            line = Content.assemble(
                (f"{sanitize_line(suggestion.shown):<{column}}", "bold"),
                (sanitize_line(suggestion.help), "dim"),
            ).truncate(width, pad=True)
            lines.append(line.stylize("reverse") if number == self.marked else line)
        more = len(self.suggestions) - len(shown)
        if lines:
            hint = HINT if width > len(HINT) + len("; 99 more") else SHORT_HINT
            words = f"{hint}; {more} more" if more else hint
            lines.append(Content.styled(words, "dim").truncate(width))
        return Content("\n").join(lines)

    @property
    def _most(self) -> int:
        return 2 if self.screen.has_class("-short") else SUGGESTIONS_MOST

    @property
    def _first(self) -> int:
        """The first one that is shown, so that the marked one is."""
        return max((self.marked or 0) - self._most + 1, 0)

    def _suggest(self) -> None:
        is_line = self._text.startswith("/") and "\n" not in self._text
        found: Sequence[Suggestion] = ()
        if is_line and self._text != self._closed_for:
            found = suggest(self._text, self._choices, self._paths)
        self.suggestions = tuple(found)
        self.marked = _first_mark(self._text, self.suggestions)

    def _paths(self, begun: str) -> list[str]:
        """What is known of the directory; where nothing is, it is looked at."""
        folder = folder_of(begun)
        if self._folder is None or self._folder[0] != folder:
            self.run_worker(self._look(folder), group="paths", exclusive=True, exit_on_error=False)
            return []
        return completions(begun, self._folder[1])

    async def _look(self, folder: str) -> None:
        self._folder = folder, await asyncio.to_thread(list_folder, folder)
        self._suggest()


def _first_mark(text: str, suggestions: Sequence[Suggestion]) -> int | None:
    """The name that was typed, or the first that it could become; None among arguments."""
    if not suggestions or " " in text:
        return None
    lines = [suggestion.line.strip() for suggestion in suggestions]
    return lines.index(text.lower()) if text.lower() in lines else 0
