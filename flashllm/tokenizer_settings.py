"""What the JSON files around a vocabulary say: special tokens, template, ends of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from flashllm.errors import ModelError
from flashllm.vocabulary import read_json, read_limited

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_TOKEN_ID_MAX = 1 << 23


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Settings of one tokenizer; `tokens` are `bos_token`, `eos_token`, ... and their spelling."""

    tokens: dict[str, str] = field(default_factory=dict)
    add_bos: bool | None = None
    """Whether text begins with `bos_token`; None where the files leave it to the vocabulary."""
    template: str = ""
    added: dict[int, str] = field(default_factory=dict)
    """Tokens behind the vocabulary's own, or among them, by id."""
    eos_ids: tuple[int, ...] = ()


def read_settings(directory: Path) -> TokenizerSettings:
    """Reads the settings in a model's directory; files that are not there say nothing."""
    config = _read_optional(directory / "tokenizer_config.json")
    special = _read_optional(directory / "special_tokens_map.json")
    generation = _read_optional(directory / "generation_config.json")
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
        eos_ids=_ids(generation.get("eos_token_id")),
    )


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _spelling(value: object) -> str:
    """A token is written as a string, or as an object around it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _template(directory: Path, config: Mapping[str, Any]) -> str:
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return read_limited(path).decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{path}: not UTF-8 text ({error.reason})") from error
    template = _read_optional(directory / "chat_template.json").get("chat_template")
    template = config.get("chat_template", template)
    if isinstance(template, list):  # several, by name
        entries = [entry for entry in template if isinstance(entry, dict)]
        template = next((e.get("template") for e in entries if e.get("name") == "default"), "")
    return template if isinstance(template, str) else ""


def _added(directory: Path, config: Mapping[str, Any]) -> dict[int, str]:
    listed = _read_optional(directory / "added_tokens.json").items()
    added = {token: spelling for spelling, token in listed if _is_id(token)}
    entries = config.get("added_tokens_decoder")
    for key, entry in entries.items() if isinstance(entries, dict) else ():
        token = int(key) if key.isascii() and key.isdigit() and len(key) < 9 else -1
        if _is_id(token) and _spelling(entry):
            added[token] = _spelling(entry)
    return added


def _ids(value: object) -> tuple[int, ...]:
    values: list[object] = value if isinstance(value, list) else [value]
    return tuple(token for token in values if _is_id(token))


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and type(value) is int and 0 <= value < _TOKEN_ID_MAX
