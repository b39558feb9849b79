"""Types of the arrays that pass between rooms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Index = NDArray[np.intp]
"""Ids of bundles as numpy indexes fastest: of other integers it makes these first, slowly."""
Values = NDArray[np.float64]
States = NDArray[np.uint8]

NO_IDS: Ids = np.zeros(0, dtype=np.int32)
