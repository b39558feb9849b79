"""Times, sizes, rates and counts as text, in a few characters."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30
NEAR = 0.99
"""From this share of a ceiling on, its difference to what is taken has to show."""


def format_number(number: float, digits: int = 3) -> str:
    """A number in so many digits; one that has more is whole, not `1.7e+03`: `8.72`, `1,710`."""
    return f"{number:,.0f}" if abs(number) >= 10**digits - 0.5 else f"{number:.{digits}g}"


def format_seconds(nanoseconds: float) -> str:
    """A time in three digits: `182 ms`, `2.1 s`."""
    if nanoseconds >= 999.5e6:
        return f"{format_number(nanoseconds / 1e9)} s"
    if nanoseconds >= 999.5e3:
        return f"{format_number(nanoseconds / 1e6)} ms"
    return f"{format_number(nanoseconds / 1e3)} us"


def format_duration(seconds: float) -> str:
    """`12 s`, `3 min`, `1 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_bytes_moved(nbytes: float) -> str:
    """Bytes moved, in three digits and powers of ten: `11.8 MB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * factor:
            return f"{format_number(nbytes / factor)} {unit}"
    return f"{nbytes:.0f} B"


def format_bytes(nbytes: float) -> str:
    """A size for people: `310 MiB`, `1.5 GiB`."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", 1 << 10)):
        if nbytes >= factor:
            number = nbytes / factor
            return f"{number:.0f} {unit}" if number >= 100 else f"{number:.1f} {unit}"
    return f"{nbytes:.0f} B"


def format_ceiling(nbytes: int) -> str:
    """A memory ceiling, rounded up, so that the figure is accepted when it is typed in."""
    if nbytes >= 10 * GIB:
        return f"{-(-10 * nbytes // GIB) / 10:.1f} GiB"
    return f"{-(-nbytes // MIB)} MiB"


def format_speed(tokens_per_second: float) -> str:
    """Tokens a second that are expected, in two digits: `2.3`, `410`."""
    return format_number(tokens_per_second, digits=2)


def format_rate(bytes_per_second: float) -> str:
    """`2.91 GB/s`."""
    return f"{format_bytes_moved(bytes_per_second)}/s"


def format_count(count: float) -> str:
    """`16,384`."""
    return f"{count:,.0f}"


def format_token_count(count: int) -> str:
    """`1 token`, `16,384 tokens`."""
    return f"{format_count(count)} token{'' if count == 1 else 's'}"


def format_memory(rss_bytes: float, ceiling_bytes: float) -> str:
    """`310 of 512 MiB`, `310 MiB of 15.2 GiB` or `5.8 of 16.0 GiB`.

    In MiB where they are near each other: in GiB both would look the same.
    """
    if ceiling_bytes < 10 * GIB or rss_bytes > NEAR * ceiling_bytes:
        return f"{rss_bytes / MIB:.0f} of {ceiling_bytes / MIB:.0f} MiB"
    ceiling = f"{ceiling_bytes / GIB:.1f} GiB"
    if rss_bytes < GIB:
        return f"{rss_bytes / MIB:.0f} MiB of {ceiling}"
    return f"{rss_bytes / GIB:.1f} of {ceiling}"
