"""How costs read on a line: times, bytes, rates and shares in a few characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashllm.flash.plan import Plan

PART_WORDS = {
    "io_exposed": "waiting for flash",
    "predict": "predicting",
    "plan": "planning reads",
    "manage": "managing slots",
    "attention": "attention",
    "ffn": "feed-forward",
    "head": "head",
    "sample": "sampling",
    "other": "other",
}
"""What is done in each part of a token's time."""
PART_GROUPS = {
    "compute": ("attention", "ffn", "head"),
    "choose": ("predict", "plan", "manage"),
    "flash": ("io_exposed",),
    "rest": ("sample", "other"),
}
"""Parts put together, where there is room for few."""
_MEBIBYTE = 1 << 20
_GIBIBYTE = 1 << 30


def seconds_words(nanoseconds: float) -> str:
    """A time in three digits: `182 ms`, `2.1 s`."""
    if nanoseconds >= 999.5e6:
        return (
            f"{nanoseconds / 1e9:.3g} s" if nanoseconds < 999.5e9 else f"{nanoseconds / 1e9:.0f} s"
        )
    if nanoseconds >= 999.5e3:
        return f"{nanoseconds / 1e6:.3g} ms"
    return f"{nanoseconds / 1e3:.3g} us"


def bytes_words(nbytes: float) -> str:
    """Bytes moved, in three digits and powers of ten: `11.8 MB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * factor:
            number = nbytes / factor
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"
    return f"{nbytes:.0f} B"


def format_bytes(nbytes: float) -> str:
    """A size for people: `310 MiB`, `1.5 GiB`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", _MEBIBYTE), ("KiB", 1 << 10)):
        if nbytes >= factor:
            number = nbytes / factor
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.1f} {unit}"
    return f"{nbytes:.0f} B"


def ceiling_words(nbytes: int) -> str:
    """A memory ceiling, rounded up, so that the figure is accepted when it is typed in."""
    if nbytes >= 10 * _GIBIBYTE:
        return f"{-(-10 * nbytes // _GIBIBYTE) / 10:.1f} GiB"
    return f"{-(-nbytes // _MEBIBYTE)} MiB"


def speed_words(tokens_per_second: float) -> str:
    """Tokens a second that are expected, in two digits: `2.3`, `410`."""
    if tokens_per_second >= 99.5:
        return f"{tokens_per_second:.0f}"
    return f"{tokens_per_second:.2g}"


def rate_words(bytes_per_second: float) -> str:
    """`2.91 GB/s`."""
    return f"{bytes_words(bytes_per_second)}/s"


def count_words(count: float) -> str:
    """`16,384`."""
    return f"{count:,.0f}"


def tokens_words(count: int) -> str:
    """`1 token`, `16,384 tokens`."""
    return f"{count_words(count)} token{'' if count == 1 else 's'}"


def of_words(rate: float, allowed: float | None) -> str:
    """`83 % of the profile's 3.5 GB/s`; without a profile, how to get one."""
    if not allowed:
        return "what it allows is unknown: run `flashllm bench io FILE`"
    return f"{100 * rate / allowed:.0f} % of the profile's {rate_words(allowed)}"


def part_words(parts: Iterable[tuple[str, float]], least: float = 0.005) -> str:
    """Parts of a time in percent, the largest first, those under `least` left out."""
    shares = sorted(((ns, name) for name, ns in parts), reverse=True)
    total = sum(ns for ns, _ in shares) or 1
    return ", ".join(
        f"{PART_WORDS[name]} {100 * ns / total:.0f} %" for ns, name in shares if ns >= least * total
    )


def memory_words(rss_bytes: float, ceiling_bytes: float) -> str:
    """`310 of 512 MiB`, `310 MiB of 15.2 GiB` or `5.8 of 16.0 GiB`."""
    if ceiling_bytes < 10 * _GIBIBYTE:
        return f"{rss_bytes / _MEBIBYTE:.0f} of {ceiling_bytes / _MEBIBYTE:.0f} MiB"
    ceiling = f"{ceiling_bytes / _GIBIBYTE:.1f} GiB"
    if rss_bytes < _GIBIBYTE:
        return f"{rss_bytes / _MEBIBYTE:.0f} MiB of {ceiling}"
    return f"{rss_bytes / _GIBIBYTE:.1f} of {ceiling}"


def split_words(plan: Plan) -> tuple[list[tuple[str, str]], str]:
    """Components of the ceiling with their sizes, the largest first, and the sizes' unit.

    Components of nothing are left out.
    """
    parts = sorted(plan.split.items(), key=lambda part: -part[1])
    large = parts[0][1] >= 10 * _GIBIBYTE
    unit, factor, digits = ("GiB", _GIBIBYTE, 1) if large else ("MiB", _MEBIBYTE, 0)
    return [(name, f"{size / factor:.{digits}f}") for name, size in parts if size], unit
