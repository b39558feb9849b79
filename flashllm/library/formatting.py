"""What is said of what was found: short, clean, on one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.errors import FlashllmError
from flashllm.units import format_bytes, format_ceiling, format_speed
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.library.models import FoundModel
    from flashllm.spec import ModelSpec

CHARACTERS_MAX = 500
UNKNOWN = "-"
ASSUMED = "~"
"""Before a speed that assumes something of the model."""
QUICK = " quick"
"""Behind a speed that a quick profile leads to."""


def clean(text: str) -> str:
    """Text of unknown origin, harmless, on one line, and no longer than a screen."""
    line = sanitize_line(text)
    return line if len(line) <= CHARACTERS_MAX else f"{line[: CHARACTERS_MAX - 1]}…"


def format_shape(spec: ModelSpec) -> str:
    """The shape of a model by its features."""
    if (experts := spec.experts) is not None:
        return (
            f"{spec.n_layers} layers of {experts.n_experts} experts, {experts.per_token} a token,"
            f" {spec.activation}"
        )
    return f"{spec.n_layers} layers of {spec.d_ffn} neurons, {spec.activation_label}"


def format_error(problem: BaseException, where: Path) -> str:
    """What is wrong, without the path that is told beside it."""
    if isinstance(problem, FlashllmError):
        text = str(problem)
    elif isinstance(problem, OSError):
        text = f"cannot be read: {problem.strerror or problem}"
    else:
        text = f"cannot be read: {type(problem).__name__}"
    # Messages begin with the path that is shown anyhow.
    return clean(text.removeprefix(f"{where}: ").replace(f"{where}/", ""))


def figures(model: FoundModel) -> tuple[str, str, str, str]:
    """Size, precision, least memory and expected speed, for the cells of a table."""
    size, needs, speed = model.size_bytes, model.smallest_ceiling_bytes, model.tokens_per_second
    mark, quick = ASSUMED if model.assumed else "", QUICK if model.quick else ""
    return (
        UNKNOWN if size is None else format_bytes(size),
        model.encoding or UNKNOWN,
        UNKNOWN if needs is None else format_ceiling(needs),
        UNKNOWN if speed is None else f"{mark}{format_speed(speed)}{quick}",
    )


def format_least_memory(needs_bytes: int, application_bytes: int) -> str:
    """`479 MiB of memory at least, 170 MiB of it for the chat itself`."""
    words = f"{format_ceiling(needs_bytes)} of memory at least"
    if not application_bytes:
        return words
    return f"{words}, {format_ceiling(application_bytes)} of it for the chat itself"


def speed_sentence(model: FoundModel) -> str:
    """The speed to expect of a model that can be opened, and where it comes from; or why not."""
    if model.tokens_per_second is not None and model.ceiling_bytes is not None:
        speed = format_speed(model.tokens_per_second)
        words = f"{speed} tokens/s expected in {format_ceiling(model.ceiling_bytes)}"
        words += f", from {format_rates_origin(model.quick)}"
        return f"{words}; assumed: {model.assumed}" if model.assumed else words
    if model.is_too_large:
        return f"Needs more than the {format_ceiling(model.ceiling_bytes or 0)} it would get"
    if model.smallest_ceiling_bytes is None:
        return "Memory and speed are not known yet"
    return "Speed unknown: `flashllm bench io` measures disk and machine, --quick in seconds"


def format_rates_origin(quick: bool) -> str:
    """Where a speed comes from."""
    if quick:
        return "a quick profile of disk and machine (`flashllm bench io` measures them well)"
    return "measured rates of disk and machine"
