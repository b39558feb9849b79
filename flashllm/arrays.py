"""Types of the arrays that pass between rooms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Index = NDArray[np.intp]
"""Ids in the integer type that numpy indexes fastest; others it converts first, slowly."""
Values = NDArray[np.float64]
States = NDArray[np.uint8]

unwarned = np.errstate(invalid="ignore", over="ignore")
"""Decorates what computes: damaged weights give damaged numbers, which are refused in the end, and
nobody reads numpy's warnings of them."""
NO_IDS: Ids = np.zeros(0, dtype=np.int32)
