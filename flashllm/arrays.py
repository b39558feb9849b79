"""Types of the arrays that pass between rooms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Index = NDArray[np.intp]
"""Ids in the integer type that numpy indexes fastest; others it converts first, slowly."""
Values = NDArray[np.float64]
States = NDArray[np.uint8]

NO_IDS: Ids = np.zeros(0, dtype=np.int32)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def unwarned(compute: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorates what computes: damaged weights give damaged numbers, and numpy says nothing of it.

    They are refused in the end, whatever a caller wants to know of its own numbers.
    """

    @functools.wraps(compute)
    def run(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        with np.errstate(all="ignore"):
            return compute(*arguments, **named)

    return run
