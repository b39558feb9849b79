"""Keys: which actions have one, and which others the configuration gives them.

A binding that can be given another key has an id: `chat.<action>`, or a page and what it does.
Textual puts the changed keys into every binding with that id, so the footer shows them, and help
asks the same table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.keys import (
    KEY_TO_UNICODE_NAME,
    REPLACED_KEYS,
    Keys,
    _character_to_key,
    key_to_character,
)
from textual.screen import Screen

from flashllm.errors import ConfigError
from flashllm.settings.file import Said
from flashllm.ui.widgets.themes import nearest
from flashllm.untrusted.terminal import sanitize_line

_MODIFIERS = ("ctrl", "shift", "alt", "meta", "super", "hyper")
_BASES = {str(key.value).rpartition("+")[2] for key in Keys if str(key.value)[0] != "<"}
_BASES |= {*KEY_TO_UNICODE_NAME, *REPLACED_KEYS, "comma", "tilde", "space"}
_NOT_TYPED = ("escape", "tab")
"""Keys with a control character of their own, which no text holds."""
_SAME_BYTES = {
    "ctrl+i": "tab",
    "ctrl+m": "enter",
    "ctrl+h": "backspace",
    "ctrl+left_square_bracket": "escape",
}
"""Keys that most terminals do not tell from these."""
_WORDS = {
    "escape": "Esc",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "delete": "Del",
    "ctrl": "Ctrl",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Bindings that are active together; `typed` where letters are written meanwhile."""

    bindings: list[Binding]
    typed: bool
    has_field: bool = True
    """Whether letters may be written there at times: keys that have priority are no letters."""


def bindings_in(*groups: Iterable[BindingType]) -> list[Binding]:
    """All bindings of some `BINDINGS`, those with several keys kept together."""
    return [
        binding if isinstance(binding, Binding) else Binding(*binding)
        for group in groups
        for binding in group
    ]


def with_keys(bindings: Iterable[Binding], keymap: Mapping[str, str]) -> list[Binding]:
    """The bindings with the keys that they have now."""
    return [
        replace(binding, key=keymap[binding.id], key_display=None)
        if binding.id is not None and binding.id in keymap
        else binding
        for binding in bindings
    ]


def read_keymap(changes: Mapping[str, Said], places: Sequence[Place]) -> dict[str, str]:
    """Checked keys by binding id; `ConfigError` names line and key where `[keys]` is wrong.

    Letters are no keys while one types. Two actions of one place cannot share a key.
    """
    known = {binding.id for place in places for binding in place.bindings if binding.id}
    typing = {
        binding.id
        for place in places
        for binding in place.bindings
        if place.typed or (binding.priority and place.has_field)
    }
    keymap = {}
    for name, said in changes.items():
        where = f"{said.place}: [keys] {sanitize_line(name)!r}"
        if name not in known:
            hint = nearest(name, sorted(known)) or f"known are {', '.join(sorted(known))}"
            raise ConfigError(f"{where}: there is no such action; {hint}")
        typed = name in typing
        keymap[name] = ",".join(_read_key(key, where, typed) for key in said.value.split(","))
    for place in places:
        _refuse_clashes(with_keys(place.bindings, keymap), changes)
    return keymap


def give_way(widget: DOMNode, bindings: Iterable[Binding]) -> None:
    """Takes from a widget the keys that these bindings, of something around it, want to have."""
    for binding in bindings:
        for key in binding.key.split(","):
            widget._bindings.key_to_bindings.pop(key.strip(), None)  # noqa: SLF001  no public way


def page_bindings(page: Screen[Any]) -> list[Binding]:
    """A page's bindings, with the keys that they have now."""
    return with_keys(bindings_in(page.BINDINGS), page.app._keymap)  # noqa: SLF001  no public way


def format_page_text(page: Screen[Any], text: str) -> str:
    """A page's sentence, with the keys that it has now."""
    return reworded(text, bindings_in(page.BINDINGS), page.app._keymap)  # noqa: SLF001  as above


def format_key(keys: str) -> str:
    """`Ctrl+Q` for `ctrl+q`, `Esc or F1` for `escape,f1`."""
    return " or ".join(_format_one_key(key.strip()) for key in keys.split(","))


def reworded(text: str, bindings: Iterable[Binding], keymap: Mapping[str, str]) -> str:
    """A sentence that names keys as they are by default, with the keys that there are instead."""
    changed = {
        format_key(key): format_key(keymap[binding.id])
        for binding in bindings
        if binding.id is not None and binding.id in keymap
        for key in binding.key.split(",")
    }
    if not changed:
        return text
    names = "|".join(re.escape(name) for name in changed)
    return re.sub(rf"(?<![\w+])(?:{names})(?![\w+])", lambda found: changed[found[0]], text)


def _format_one_key(key: str) -> str:
    *modifiers, base = key.split("+") if key != "+" else ["+"]
    character = key_to_character(base)
    if base in _WORDS:
        base = _WORDS[base]
    elif character is not None and character.isprintable() and character != " ":
        base = character.upper() if modifiers else character
    else:
        base = base.capitalize()
    return "+".join([*(_WORDS.get(name, name.capitalize()) for name in modifiers), base])


def _read_key(key: str, where: str, typed: bool) -> str:
    key = key.strip() if key.strip() else key
    shown = sanitize_line(key) or "nothing"
    *modifiers, base = key.split("+") if key != "+" else ["+"]
    is_character = len(base) == 1 and base.isprintable()
    if not (is_character or base in _BASES) or any(name not in _MODIFIERS for name in modifiers):
        raise ConfigError(
            f"{where}: {shown!r} is no key; write it like ctrl+x, f9, pageup or alt+enter"
        )
    if modifiers == ["shift"] and is_character:
        raise ConfigError(
            f"{where}: {shown!r} is no key; write the letter itself, like {base.upper()}"
        )
    is_typed = is_character or (base not in _NOT_TYPED and key_to_character(base) is not None)
    if typed and not modifiers and is_typed:
        raise ConfigError(
            f"{where}: {shown!r} is a character that one types; add ctrl+ or alt+, or take an F key"
        )
    reported = _as_reported(modifiers, base)
    if reported in _SAME_BYTES:
        raise ConfigError(
            f"{where}: {shown!r} is no key of its own: a terminal sends the same for"
            f" {format_key(_SAME_BYTES[reported])}; take another"
        )
    return reported


def _as_reported(modifiers: list[str], base: str) -> str:
    """A key as Textual reports it: `ctrl+shift+up` for `shift+ctrl+up`, `slash` for `/`."""
    if len(base) == 1:
        base = _character_to_key(base.lower() if "ctrl" in modifiers else base)
    return "+".join([*sorted(modifiers), base])


def _refuse_clashes(bindings: list[Binding], changes: Mapping[str, Said]) -> None:
    """Textual would drop the action that had the key before."""
    holders: dict[str, Binding] = {}
    for binding in sorted(bindings, key=lambda binding: binding.id in changes):
        for key in (key.strip() for key in binding.key.split(",")):
            other = holders.setdefault(key, binding)
            if other.id != binding.id and binding.id is not None and binding.id in changes:
                raise ConfigError(
                    f"{changes[binding.id].place}: [keys] {binding.id!r}: {key} is the key of"
                    f" {other.id or other.description or other.action} already; give one of them"
                    " another"
                )
