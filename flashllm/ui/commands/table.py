"""Slash commands: one table for what is typed, the palette, the page of help, and completion."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flashllm.errors import UsageError
from flashllm.ui.commands.setting_values import SETTINGS
from flashllm.ui.widgets.themes import nearest
from flashllm.untrusted.terminal import sanitize_line

_FIRST_WORD = re.compile(r"/(\?|[A-Za-z][A-Za-z_-]*)?(?=\s|$)")
SUGGESTIONS_MOST = 6


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command; `action` names what does it.

    That is an action of the chat's screen, one of the application where it begins with `app.`, or a
    method of `SlashCommands`. `arguments` reads `NAME VALUE`, `[n]` or `md|json [file]`; `whole`
    takes the rest of the line as it stands, without quotes; `others` are further names.
    """

    name: str
    arguments: str
    help: str
    action: str
    whole: bool = False
    others: tuple[str, ...] = ()
    takes_path: bool = False
    """Whether paths are offered for its argument."""

    @property
    def needed(self) -> int:
        """How many arguments it cannot do without."""
        return 0 if self.arguments.startswith("[") else len(self._words) - self._optional

    @property
    def most(self) -> int:
        """How many it takes."""
        return len(self._words)

    @property
    def usage(self) -> str:
        """How it is written."""
        return f"/{self.name} {self.arguments}".rstrip()

    @property
    def _words(self) -> list[str]:
        return self.arguments.replace("[", "").replace("]", "").split()

    @property
    def _optional(self) -> int:
        return self.arguments.count("[")


COMMANDS = (
    SlashCommand("help", "", "keys, commands, and what the numbers mean", "help", others=("?",)),
    SlashCommand("new", "", "begin a new conversation", "new_conversation"),
    SlashCommand("stop", "", "stop the answer; what is there of it stays", "stop"),
    SlashCommand("queue", "edit|send|drop", "the messages that wait: the last one", "queue"),
    SlashCommand("continue", "", "go on with an answer that was stopped", "continue"),
    SlashCommand("regenerate", "", "answer the last question once more", "regenerate"),
    SlashCommand("edit", "[n]", "change a question; n counts back from the last one", "edit"),
    SlashCommand("delete", "[n]", "delete a message and what follows; n counts back", "delete"),
    SlashCommand("copy", "[n]", "copy an answer; n counts back from the last one", "copy"),
    SlashCommand("code", "[n]", "copy code of the last answer; n counts its blocks", "code"),
    SlashCommand("branch", "next|prev", "show another version of a message", "branch"),
    SlashCommand(
        "file", "NAME", "put a text file into the next message", "file", True, takes_path=True
    ),
    SlashCommand("system", "[text]", "what the model is told first; no text: ask", "system", True),
    SlashCommand("think", "on|off|auto", "whether the model thinks before it answers", "think"),
    SlashCommand("effort", "LEVEL", "how much it thinks: low, medium, high, auto", "effort"),
    SlashCommand("set", "NAME VALUE", "change a setting, like /set temp 0.7", "set"),
    SlashCommand("show", "", "the settings as they are", "show"),
    SlashCommand("settings", "", "all settings on one page", "settings"),
    SlashCommand("sessions", "", "conversations that were kept: search, open, delete", "sessions"),
    SlashCommand("session", "ID|name", "open a conversation that was kept", "session", True),
    SlashCommand("rename", "NAME", "name this conversation", "rename", True),
    SlashCommand("export", "md|json [file]", "write this conversation into a file", "export"),
    SlashCommand("import", "FILE", "read a conversation that was exported as JSON", "import"),
    SlashCommand("models", "", "models on this machine", "models"),
    SlashCommand("model", "NAME|PATH", "open another converted model", "model", True),
    SlashCommand("convert", "[SRC DST]", "make a converted model of a checkpoint", "convert"),
    SlashCommand("io", "", "show or hide where time and bytes go", "io_panel"),
    SlashCommand("measure", "", "measure the disk for some seconds: a quick profile", "measure"),
    SlashCommand("map", "", "show or hide the map of neurons", "neuron_map"),
    SlashCommand("thoughts", "", "show or fold what the model thought first", "thoughts"),
    SlashCommand("tokens", "", "each token of an answer with its numbers", "tokens"),
    SlashCommand("theme", "NAME", "other colours", "theme", True),
    SlashCommand("context", "", "how full the context is, and what comes then", "context"),
    SlashCommand("compact", "[drop]", "sum up earlier messages; drop: leave them out", "compact"),
    SlashCommand("log", "", "the program's log: events and errors", "log"),
    SlashCommand("retry", "", "open the model again, or ask again what failed", "retry"),
    SlashCommand("clear", "", "empty the screen of remarks", "clear"),
    SlashCommand("quit", "", "leave; the conversation is kept", "app.quit", others=("exit", "bye")),
)


def _read_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 1 << 31:
        raise UsageError(f"{text!r} is no number of a message; 1 is the last one")
    return int(text)


def _read_step(text: str) -> int:
    if text not in _STEPS:
        raise UsageError(f"/branch: {text!r} is neither next nor prev")
    return _STEPS[text]


_STEPS = {"next": 1, "prev": -1, "previous": -1}
_READERS: dict[str, Callable[[str], str | int]] = {"[n]": _read_count, "next|prev": _read_step}
"""By how a command's arguments are written, what makes values of them."""
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.others)}


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command with its arguments, as the command's action takes them."""

    command: SlashCommand
    arguments: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What a line could become; `line` is it whole."""

    line: str
    shown: str
    help: str
    is_whole: bool = True
    """Whether the line can be run as it is; else something is still to be typed."""


Choices = Mapping[str, Callable[[], Sequence[str]]]
"""What first arguments can be, by the name of the command; themes, as it is."""


def is_command(text: str) -> bool:
    """Whether a text is a command, rather than a message that begins with a slash, like a path."""
    return _FIRST_WORD.match(text) is not None


def unescaped(text: str) -> str:
    """A message: `//` at its start stands for one slash that begins no command."""
    return text[1:] if text.startswith("//") else text


def parse(text: str) -> Invocation:
    """The command that a text is; `UsageError` says what is wrong with it."""
    found = _FIRST_WORD.match(text)
    if found is None or not found[1]:
        raise UsageError("a command is a slash and a name, like /help")
    command = find_command(found[1])
    rest = text[found.end() :].strip()
    try:
        arguments = [rest] * bool(rest) if command.whole else shlex.split(rest)
    except ValueError:
        raise UsageError(f"/{command.name}: a quote is not closed") from None
    if len(arguments) < command.needed:
        raise UsageError(f"/{command.name} needs more: {command.usage}")
    if not command.whole and len(arguments) > command.most:
        raise UsageError(f"/{command.name} takes less: {command.usage}")
    read = _READERS.get(command.arguments, str)
    return Invocation(command, tuple(read(argument) for argument in arguments))


def find_command(name: str) -> SlashCommand:
    """The command of that name; `UsageError` names the nearest one."""
    known = name.lower()
    if known not in _BY_NAME:
        hint = nearest(f"/{known}", [f"/{name}" for name in _BY_NAME]) or "/help lists them"
        raise UsageError(f"there is no command /{sanitize_line(name)}; {hint}")
    return _BY_NAME[known]


Paths = Callable[[str], Sequence[str]]
"""What a path that is begun could become; a slash is at the end of directories."""


def suggest(
    text: str, choices: Choices | None = None, paths: Paths | None = None
) -> list[Suggestion]:
    """What a line that begins with a slash could become, in the order of the table."""
    found = re.fullmatch(r"/(\S*)", text)
    if found:
        wanted = found[1].lower()
        fitting = [c for c in COMMANDS if any(n.startswith(wanted) for n in (c.name, *c.others))]
        return [
            Suggestion(f"/{c.name}{' ' if c.arguments else ''}", c.usage, c.help, not c.needed)
            for c in fitting
        ]
    found = re.fullmatch(r"/(\S+) +(.*)", text)
    if not found or found[1].lower() not in _BY_NAME:
        return []
    command = _BY_NAME[found[1].lower()]
    if command.takes_path:
        found_paths = paths(found[2]) if paths is not None else ()
        return [
            Suggestion(f"/{command.name} {path}", path, "", not path.endswith("/"))
            for path in found_paths
        ]
    begun = found[2].lower()
    return [
        Suggestion(f"/{command.name} {value}", value, explained, not value.endswith(" "))
        for value, explained in _first_arguments(command, choices or {})
        if value.lower().startswith(begun) and value.lower().rstrip() != begun
    ]


def completed(text: str, suggestions: Sequence[Suggestion]) -> str:
    """The line as far as all suggestions agree; the first one where that adds nothing."""
    if not suggestions:
        return text
    common = suggestions[0].line
    for suggestion in suggestions[1:]:
        while not suggestion.line.startswith(common):
            common = common[:-1]
    return common if len(common) > len(text) else suggestions[0].line


def example_lines(themes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Lines with arguments that the palette offers, and what they do."""
    for theme in themes:
        yield f"/theme {theme}", "other colours"
    yield "/export md", "this conversation, to be read"
    yield "/export json", "this conversation, to be imported"
    yield "/branch next", "the next version of a message"
    yield "/branch prev", "the version before"


def _first_arguments(command: SlashCommand, choices: Choices) -> list[tuple[str, str]]:
    if command.name == "set":
        return [(f"{setting.name} ", setting.help) for setting in SETTINGS]
    if command.name in choices:
        return [(sanitize_line(value), "") for value in choices[command.name]()]
    first = command.arguments.split(" ")[0]
    if "|" in first and first.islower():
        return [(value, "") for value in first.split("|")]
    return []
