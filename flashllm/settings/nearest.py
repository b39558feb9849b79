"""The known words that a mistyped one comes nearest to."""

from __future__ import annotations

from collections.abc import Iterable

CUTOFF = 0.6
"""The share of letters that agree, as difflib counts it."""
_BEGINNING_MIN = 3
"""Letters with which another word must begin to be near, however much longer it is."""


def nearest(word: str, known: Iterable[str], most: int = 1, cutoff: float = CUTOFF) -> list[str]:
    """Up to `most` words, the nearest first: those alike by letters, then those that begin alike.

    Case counts for nothing, nor does which of `-`, `_`, `.` and spaces is between words.
    """
    import difflib  # for mistakes only

    plain: dict[str, str] = {}
    for one in known:
        plain.setdefault(_plain(one), one)
    wanted = _plain(word)
    alike = difflib.get_close_matches(wanted, plain, most, cutoff)
    shorter = sorted((one for one in plain if _begins(one, wanted)), key=len)
    return [plain[one] for one in dict.fromkeys([*alike, *shorter])][:most]


def _plain(text: str) -> str:
    return text.lower().translate(str.maketrans("_. ", "---")).strip("-")


def _begins(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return len(short) >= _BEGINNING_MIN and long.startswith(short)
