"""The interpreter's table of names, which a long life makes grow once."""

from __future__ import annotations

import sys

TEMPORARY_NAMES = 22_000
"""More than are free in a table of 32,768 places, of which two thirds are used."""
ARE_FREED = sys.version_info < (3, 12)
"""In later versions a name that was interned stays for ever, and none comes and goes."""


def settle_table_of_names() -> None:
    """Has the table grow now to the size that it has after some time of use.

    The chat's 20 thousand names fill it nearly. Others that come and go use up its last places, and
    then it is made anew with twice as many: 0.9 MiB more at once, after a quarter or half an hour
    (docs/log/). Takes 5 ms.
    """
    if ARE_FREED:
        for number in range(TEMPORARY_NAMES):
            sys.intern(f"a name for a moment, {number}")
