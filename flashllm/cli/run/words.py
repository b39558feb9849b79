"""The words of `flashllm run`: a model and a prompt, or a prompt alone.

As with ollama the first word is the model and the rest the prompt; as with llm a prompt may stand
alone. A word that looks like a model and names none is an error, never a prompt: otherwise a
mistyped model would have another one answer.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from flashllm.cli.shared.unknown_command import quoted
from flashllm.errors import ModelNotFound, UsageError
from flashllm.library.names import ModelNames, usual_names
from flashllm.settings.nearest import nearest
from flashllm.settings.options import MODEL

_MODEL_LIKE = re.compile(r"[-_.:]\d|\d+(?:\.\d+)?[bm]\b|:\w|\.(?:flash|gguf|ggml|bin|pt)$", re.I)
"""In names of models, and hardly in words: `name-3`, `name125m`, `name:latest`."""
_MISTYPED = 0.66
"""Share of letters from which on a first word is a mistyped name rather than a word."""
_MISTYPED_LETTERS_MIN = 3


def take_words(arguments: argparse.Namespace) -> None:
    """Makes model and prompt of the words; `UsageError` for two prompts, `ModelNotFound`."""
    is_asked = (arguments.prompt, arguments.file, arguments.ids) != (None, None, None)
    model, text = split_words(arguments.words, usual_names(), is_asked=is_asked)
    if model is not None:
        arguments.settings = arguments.settings.with_flags({MODEL.name: model})
    arguments.model = arguments.settings.value(MODEL.name)
    if text is None:
        return
    if arguments.prompt is not None:
        whole = f"{arguments.prompt} {text}"
        raise UsageError(
            f"there are two prompts, {arguments.prompt!r} and {text!r}; put all of it in quotes:"
            f" -p {quoted(whole)}"
        )
    arguments.prompt = text


def split_words(
    words: Sequence[str], names: ModelNames, *, is_asked: bool = False
) -> tuple[str | None, str | None]:
    """(model, prompt) of the words, None for what is not among them.

    `is_asked`: a prompt was given elsewhere, so that a single word is meant as a model.
    """
    if not words:
        return None, None
    first, rest = words[0], words[1:]
    try:
        names.find(first)
    except ModelNotFound as error:
        whole = " ".join(words)
        if _is_prompt(first, rest, names):
            return None, whole
        if is_asked or os.sep in first:
            raise
        raise ModelNotFound(f"{error}. To ask that: flashllm run -p {quoted(whole)}") from error
    return first, " ".join(rest) if rest else None


def _is_prompt(first: str, rest: Sequence[str], names: ModelNames) -> bool:
    """Whether words of which the first names no model are all the prompt."""
    if _has_spaces(first):
        return True
    looks_like_model = (
        any(map(_has_spaces, rest))  # what is in quotes is the prompt, so this is a model
        or os.sep in first
        or first.startswith("~")
        or os.path.lexists(Path(first))
        or _MODEL_LIKE.search(first) is not None
        or _is_mistyped(first, names)
    )
    return bool(rest) and not looks_like_model


def _is_mistyped(word: str, names: ModelNames) -> bool:
    if len(word) < _MISTYPED_LETTERS_MIN:
        return False
    return bool(nearest(word, names.names(), cutoff=_MISTYPED))


def _has_spaces(text: str) -> bool:
    return any(character.isspace() for character in text)
