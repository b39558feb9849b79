"""What a slash command that is being typed could become, shown above the prompt."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from flashllm.ui.commands.table import SUGGESTIONS_MOST, Choices, Suggestion, completed, suggest
from flashllm.untrusted.terminal import sanitize_line

HINT = "Tab completes"


class Suggestions(Widget):
    """A few lines; none where nothing is being completed."""

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

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self._choices = choices

    def follow(self, text: str) -> None:
        """Shows what a text that is being typed could become, if it is a command."""
        is_line = text.startswith("/") and "\n" not in text
        self.suggestions = tuple(suggest(text, self._choices)) if is_line else ()

    def completed(self, text: str) -> str:
        """The text as far as it can be completed."""
        return completed(text, self.suggestions)

    def watch_suggestions(self, suggestions: tuple[Suggestion, ...]) -> None:
        """Takes no room where there is nothing to show."""
        self.set_class(bool(suggestions), "-shown")

    def render(self) -> Content:
        """One a line, with its help where there is room, and how many more there are."""
        most = 2 if self.screen.has_class("-short") else SUGGESTIONS_MOST
        shown = self.suggestions[:most]
        column = max((len(suggestion.shown) for suggestion in shown), default=0) + 2
        lines = [
            Content.assemble(
                (f"{sanitize_line(suggestion.shown):<{column}}", "bold"),
                (sanitize_line(suggestion.help), "dim"),
            )
            for suggestion in shown
        ]
        more = len(self.suggestions) - len(shown)
        if lines:
            words = f"{HINT}; {more} more" if more else HINT
            lines.append(Content.styled(words, "dim"))
        return Content("\n").join([line.truncate(max(1, self.size.width)) for line in lines])
