"""What may have been meant by a first word that is no command."""

from __future__ import annotations

from collections.abc import Iterable

from flashllm.cli.shared.foreign_words import COMMANDS
from flashllm.errors import FlashllmError
from flashllm.settings.nearest import nearest


def format_unknown_command(word: str, known: Iterable[str]) -> str:
    """A sentence with what to type instead."""
    if word.lower() in COMMANDS:
        return f"there is no command {word!r}; {COMMANDS[word.lower()]}"
    if any(character.isspace() for character in word):
        return f"a prompt is for `run`: flashllm run {quoted(word)}"
    if word.lower() in ("/bye", "/exit", "/quit"):
        return f"{word} is for inside the chat; you are in the shell"
    near = nearest(word, known)
    if _is_model(word):
        return f"there is no command {word!r}; did you mean `flashllm chat {quoted(word)}`?"
    meant = f"did you mean `flashllm {near[0]}`?" if near else "see `flashllm --help`"
    return f"there is no command {word!r}; {meant}"


def quoted(text: str) -> str:
    """A text as one word of a shell, in double quotes where that reads well."""
    import shlex

    if any(character.isspace() for character in text) and not set(text) & set('"\\$`!'):
        return f'"{text}"'
    return shlex.quote(text)


def _is_model(word: str) -> bool:
    from flashllm.library.names import usual_names

    try:
        usual_names().find(word)
    except FlashllmError:
        return False
    return True
