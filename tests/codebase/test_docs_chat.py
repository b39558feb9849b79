"""docs/chat.md names every key and every command of the chat, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from textual.binding import Binding, BindingType

from flashllm.settings.options import OPTIONS
from flashllm.ui.commands.bindings import (
    EVERYWHERE_BINDINGS,
    PLACES,
    PROMPT_BINDINGS,
    TRANSCRIPT_BINDINGS,
)
from flashllm.ui.commands.keys import bindings_in, format_key
from flashllm.ui.commands.table import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "chat.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = PAGE.split(f"\n{heading}\n")[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    lines = table[0].splitlines()[2:]
    return [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
    ]


def keys_of(bindings: list[BindingType]) -> set[tuple[str, str]]:
    """Keys as they are called, and the id that config.toml knows."""
    return {(format_key(binding.key), str(binding.id)) for binding in bindings_in(bindings)}


def keys_told(heading: str) -> list[tuple[str, str]]:
    """What the page says of them."""
    return [(cells[0], cells[1].strip("`")) for cells in rows(heading)]


def test_keys_are_those_of_the_chat() -> None:
    for heading, bindings in (
        ("### In the prompt", PROMPT_BINDINGS),
        ("### Everywhere", EVERYWHERE_BINDINGS),
        ("### With a message selected", TRANSCRIPT_BINDINGS),
    ):
        assert all(isinstance(binding, Binding) and binding.id for binding in bindings)
        told = keys_told(heading)
        assert len(told) == len(set(told))
        assert set(told) == keys_of(bindings), heading


def test_names_of_the_keys_of_pages_are_told() -> None:
    names = {str(binding.id) for place in PLACES for binding in place.bindings}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_commands_are_those_of_the_chat() -> None:
    told = [cells[0].strip("`") for cells in rows("## Commands")]
    assert told == [command.usage for command in COMMANDS]


def test_the_example_of_settings_can_be_read(tmp_path: Path) -> None:
    from flashllm.settings.file import read_config
    from flashllm.ui.commands.keys import read_keymap

    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    file = tmp_path / "config.toml"
    file.write_text(example[1], "utf-8")
    config = read_config(file)
    chat = {option.name for option in OPTIONS if option.in_file and option.table == "chat"}
    assert chat <= config.values.keys(), "every setting of the chat is in the example"
    keymap = read_keymap(config.keys, PLACES)
    assert keymap
