"""The initial config.toml: every setting, commented out, with what it does."""

from __future__ import annotations

import json
import os
import textwrap
from typing import Any

from flashllm.settings.options import OPTIONS, Option
from flashllm.settings.values import parse_memory

HEADER = """\
# Settings of flashllm. A flag or a FLASHLLM_ variable beats what is said here.
# `flashllm config show --origin` tells what holds and why. Lines have the default, or
# say that they are an example.
"""
CHAT_HEADER = """
# Settings of the chat alone.
[chat]
"""
KEYS_HEADER = """
# Keys of the chat, by what they do (F1 in the chat names them); several with commas between.
[keys]
# "chat.stop" = "escape,ctrl+x"
"""
_EXAMPLES = {
    "memory": "8GiB", "ctx_size": "4096", "window": "64", "select": "predicted",
    "io_threads": "32", "profile": "~/disk.json", "system": "Answer briefly.", "editor": "vim",
    "model_dirs": "~/models", "kv_memory": "1GiB", "kv_dir": "~/scratch", "keep_kv": "4GiB",
    "device_memory": "8GiB", "overlap": "layer",
}  # fmt: skip
"""Of options whose default is no value of theirs."""


def default_config() -> str:
    """The text of a new config.toml; it sets nothing."""
    parts = [HEADER]
    for table, header in (("", ""), ("chat", CHAT_HEADER)):
        parts.append(header)
        parts += [_remark(option) for option in OPTIONS if option.in_file and option.table == table]
    return "\n".join(part for part in parts if part) + KEYS_HEADER


def _remark(option: Option) -> str:
    value = in_force(option, option.default)
    example = "" if value is not None else ". An example:"
    words = textwrap.wrap(
        f"{option.help}{example}", 96, initial_indent="# ", subsequent_indent="# "
    )
    text = to_toml(option, value) if value is not None else _example(option)
    return "\n".join([*words, f"# {option.name} = {text}", ""])


def in_force(option: Option, value: Any) -> Any:
    """The value that holds where an option has `value`; None where that depends on the model."""
    return option.usual if value in (None, "", ()) else value


def _example(option: Option) -> str:
    text = _EXAMPLES[option.name]
    return to_toml(option, option.parse(text)) if option.is_number else _quoted(option, text)


def _quoted(option: Option, text: str) -> str:
    return f"[{json.dumps(text)}]" if option.is_list else json.dumps(text)


def to_toml(option: Option, value: Any) -> str:
    """A value as config.toml writes it; empty for None."""
    if value is None:
        return ""
    if option.is_flag:
        return "true" if value else "false"
    if option.is_list:
        return json.dumps([os.fspath(part) for part in value], ensure_ascii=False)
    if option.parse is parse_memory:
        return json.dumps(_size(value))
    return json.dumps(value, ensure_ascii=False)


def _size(nbytes: int) -> str:
    """Bytes in the largest unit that gives a whole number."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift}{unit}"
    return str(nbytes)
