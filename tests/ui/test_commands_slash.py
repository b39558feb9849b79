"""The table of slash commands: reading a line, the nearest name, completion."""

from __future__ import annotations

import re

import pytest

from flashllm.errors import UsageError
from flashllm.ui.commands.table import (
    COMMANDS,
    completed,
    find_command,
    is_command,
    parse,
    suggest,
    unescaped,
)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("/help", "help", ()),
        ("/?", "help", ()),
        ("/HELP", "help", ()),
        ("/exit", "quit", ()),
        ("/edit", "edit", ()),
        ("/edit 2", "edit", (2,)),
        ("/branch prev", "branch", (-1,)),
        ("/set temp 0.7", "set", ("temp", "0.7")),
        ('/export md "a b.md"', "export", ("md", "a b.md")),
        ("/convert a 'b c'", "convert", ("a", "b c")),
        ('/system Don\'t "quote"\nme.', "system", ('Don\'t "quote"\nme.',)),
        ("/rename  two words ", "rename", ("two words",)),
        ("/session Bob's", "session", ("Bob's",)),
    ],
)
def test_a_line_is_read(text: str, name: str, arguments: tuple[str | int, ...]) -> None:
    assert is_command(text)
    invocation = parse(text)
    assert invocation.command.name == name
    assert invocation.arguments == arguments


@pytest.mark.parametrize("text", ["/usr/bin is what?", "//help", "1/2", "/5 of it", "", " /help"])
def test_a_message_is_no_command(text: str) -> None:
    assert not is_command(text)


def test_two_slashes_send_one() -> None:
    assert unescaped("//help me") == "/help me"
    assert unescaped("/usr/bin") == "/usr/bin"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/hepl", "there is no command /hepl; did you mean '/help'?"),
        ("/xyzzyx", "there is no command /xyzzyx; /help lists them"),
        ("/", "a command is a slash and a name, like /help"),
        ("/set", "/set needs more: /set NAME VALUE"),
        ("/set temp", "/set needs more: /set NAME VALUE"),
        ("/export", "/export needs more: /export md|json [file]"),
        ("/edit 1 2", "/edit takes less: /edit [n]"),
        ("/stop now", "/stop takes less: /stop"),
        ("/import 'a", "/import: a quote is not closed"),
        ("/edit two", "'two' is no number of a message; 1 is the last one"),
        ("/branch up", "/branch: 'up' is neither next nor prev"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value) == words


def test_names_are_different_and_everything_has_words() -> None:
    names = [name for command in COMMANDS for name in (command.name, *command.others)]
    assert len(set(names)) == len(names)
    for command in COMMANDS:
        assert find_command(command.name) is command
        assert command.help
        line = re.sub(r"\bn\b", "1", command.usage.translate({91: None, 93: None}))
        assert parse(line.replace("next|prev", "next")).command is command


def test_completion_of_names() -> None:
    assert [s.shown for s in suggest("/se")] == [
        "/set NAME VALUE", "/settings", "/sessions", "/session ID|name",
    ]  # fmt: skip
    assert len(suggest("/")) == len(COMMANDS)
    assert completed("/se", suggest("/se")) == "/set "
    assert completed("/exp", suggest("/exp")) == "/export "
    assert completed("/sess", suggest("/sess")) == "/session"
    assert completed("/zzz", suggest("/zzz")) == "/zzz"
    assert suggest("no command") == []


def test_completion_of_arguments() -> None:
    choices = {"theme": lambda: ["nord", "textual-dark", "textual-light"]}
    assert [s.line for s in suggest("/theme te", choices)] == [
        "/theme textual-dark", "/theme textual-light",
    ]  # fmt: skip
    assert completed("/theme t", suggest("/theme t", choices)) == "/theme textual-"
    assert suggest("/theme nord", choices) == []
    assert [s.line for s in suggest("/branch ")] == ["/branch next", "/branch prev"]
    assert [s.shown for s in suggest("/export j")] == ["json"]
    assert "top_k" in [s.shown.strip() for s in suggest("/set t")]
    assert suggest("/nothing x") == []
