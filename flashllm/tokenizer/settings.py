"""The settings in the JSON files of a tokenizer: special tokens, template, ends of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from flashllm.errors import ModelError
from flashllm.tokenizer.files import read_limited, read_optional
from flashllm.tokenizer.tokenizer_json import ID_MAX, AddedToken

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
# Others in that folder are for tools and the like.
_TEMPLATE_FILES = ("chat_template.jinja", "additional_chat_templates/default.jinja")


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Settings of one tokenizer; `tokens` are `bos_token`, `eos_token`, ... and their spelling."""

    tokens: dict[str, str] = field(default_factory=dict)
    add_bos: bool | None = None
    """Whether text begins with `bos_token`; None where the files leave it to the vocabulary."""
    template: str = ""
    added: dict[int, AddedToken] = field(default_factory=dict)
    """Added tokens, by id, after the vocabulary's own or among them."""
    specials: tuple[str, ...] = ()
    """More spellings of special tokens."""
    legacy: bool = True
    """Whether a `tokenizer.model` puts a space before every text between markers, like models from
    before this was a setting."""
    eos_ids: tuple[int, ...] = ()


def read_settings(directory: Path) -> TokenizerSettings:
    """Reads the settings in a model's directory; absent files are skipped."""
    config = read_optional(directory / "tokenizer_config.json")
    special = read_optional(directory / "special_tokens_map.json")
    generation = read_optional(directory / "generation_config.json")
    tokens: dict[str, str] = {}
    for source in (special, config):
        for name in _TOKEN_NAMES:
            spelling = _spelling(source.get(name))
            if spelling:
                tokens[name] = spelling
    add_bos = config.get("add_bos_token")
    return TokenizerSettings(
        tokens=tokens,
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        template=_template(directory, config),
        added=_added(directory, config),
        specials=_specials(special) + _specials(config),
        legacy=config.get("legacy") is not False,
        eos_ids=_ids(generation.get("eos_token_id")),
    )


def _spelling(value: object) -> str:
    """The text of a token, which is written as a string or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _template(directory: Path, config: Mapping[str, Any]) -> str:
    """The default template, from the first place that has one."""
    for path in (directory / name for name in _TEMPLATE_FILES):
        if path.is_file():
            try:
                return read_limited(path).decode()
            except UnicodeDecodeError as error:
                raise ModelError(f"{path}: not UTF-8 text ({error.reason})") from error
    other = read_optional(directory / "chat_template.json")
    return _default(config.get("chat_template")) or _default(other.get("chat_template"))


def _default(template: object) -> str:
    """Of several templates the one that is called default, or the only one."""
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        entries = [entry for entry in entries if isinstance(entry.get("name"), str | None)]
        named = {entry.get("name"): entry.get("template") for entry in entries}
        only = next(iter(named.values())) if len(named) == 1 else None
        template = named.get("default", only)
    return template if isinstance(template, str) else ""


def _specials(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Spellings of special tokens that have no role of their own."""
    found = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        entries = values.get(name)
        entries = list(entries.values()) if isinstance(entries, dict) else entries
        found += [_spelling(entry) for entry in entries] if isinstance(entries, list) else []
    return tuple(filter(None, found))


def _added(directory: Path, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    listed = read_optional(directory / "added_tokens.json").items()
    added = {token: AddedToken(spelling) for spelling, token in listed if _is_id(token)}
    entries = config.get("added_tokens_decoder")
    for key, entry in entries.items() if isinstance(entries, dict) else ():
        token = int(key) if key.isascii() and key.isdigit() and len(key) < 9 else -1
        if _is_id(token) and _spelling(entry):
            flags = entry if isinstance(entry, dict) else {}
            added[token] = AddedToken(
                _spelling(entry),
                special=flags.get("special") is not False,
                lstrip=flags.get("lstrip") is True,
                rstrip=flags.get("rstrip") is True,
            )
    return added


def _ids(value: object) -> tuple[int, ...]:
    values: list[object] = value if isinstance(value, list) else [value]
    return tuple(token for token in values if _is_id(token))


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and type(value) is int and 0 <= value <= ID_MAX
