"""The command palette: the table of slash commands, searched by what they do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from textual.app import ComposeResult
from textual.command import (
    CommandInput,
    CommandPalette,
    DiscoveryHit,
    Hit,
    Hits,
    Provider,
)
from textual.content import Content

from flashllm.ui.chat.messages import CommandChosen
from flashllm.ui.commands.table import COMMANDS, SlashCommand, example_lines
from flashllm.ui.widgets.line_input import LineInput


class _PaletteInput(CommandInput, LineInput):
    """Styles follow the first of the two."""


class Palette(CommandPalette):
    """Textual's, with a line into which anything can be pasted."""

    def compose(self) -> ComposeResult:
        """The same parts."""
        for part in super().compose():
            if isinstance(part, CommandInput):
                yield _PaletteInput(placeholder=self._placeholder, select_on_focus=False)
            else:
                yield part


class CommandPaletteProvider(Provider):
    """Every command; one that needs arguments is begun in the prompt."""

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for command in COMMANDS:
            shown = Content(command.usage)
            yield DiscoveryHit(shown, self._choose(command), command.usage, command.help)

    async def search(self, query: str) -> Hits:
        """Those whose names or words fit, and lines with arguments already."""
        matcher = self.matcher(query)
        for command in COMMANDS:
            score = max(matcher.match(command.usage), 0.9 * matcher.match(command.help))
            if score > 0:
                shown = matcher.highlight(command.usage)
                yield Hit(score, shown, self._choose(command), command.usage, command.help)
        for line, explained in example_lines(sorted(self.app.available_themes)):
            if (score := matcher.match(line)) > 0:
                run = partial(self._post, CommandChosen(line))
                yield Hit(score, matcher.highlight(line), run, line, explained)

    def _choose(self, command: SlashCommand) -> Callable[[], None]:
        if command.needed:
            return partial(self._post, CommandChosen(f"/{command.name} ", only_begun=True))
        return partial(self._post, CommandChosen(f"/{command.name}"))

    def _post(self, message: CommandChosen) -> None:
        self.screen.post_message(message)
