"""Checks of arguments, as the binding of the native core makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def require_array(
    name: str,
    array: NDArray[Any],
    dtype: type[np.generic],
    writable: bool = False,
    dimensions: int = 1,
) -> None:
    """TypeError unless the array has so many dimensions, is contiguous and of that type."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != dimensions:
        of = "a one-dimensional" if dimensions == 1 else "a two-dimensional"
        raise TypeError(f"{name} must be {of} array of {np.dtype(dtype).name}")
    if not array.flags.c_contiguous or (writable and not array.flags.writeable):
        raise TypeError(f"{name} must be contiguous{' and writable' if writable else ''}")
