"""What is said of what was found: short, clean, on one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.errors import FlashllmError
from flashllm.sanitize import sanitize_line

if TYPE_CHECKING:
    from flashllm.spec import ModelSpec

CHARACTERS_MAX = 500


def clean(text: str) -> str:
    """Text of unknown origin, harmless, on one line, and no longer than a screen."""
    line = sanitize_line(text)
    return line if len(line) <= CHARACTERS_MAX else f"{line[: CHARACTERS_MAX - 1]}…"


def shape_words(spec: ModelSpec) -> str:
    """The shape of a model by its features."""
    return f"{spec.n_layers} layers of {spec.d_ffn} neurons, {spec.activation_words}"


def error_words(problem: BaseException, where: Path) -> str:
    """What is wrong, without the path that is told beside it."""
    if isinstance(problem, FlashllmError):
        text = str(problem)
    elif isinstance(problem, OSError):
        text = f"cannot be read: {problem.strerror or problem}"
    else:
        text = f"cannot be read: {type(problem).__name__}"
    # Messages begin with the path that is shown anyhow.
    return clean(text.removeprefix(f"{where}: ").replace(f"{where}/", ""))
