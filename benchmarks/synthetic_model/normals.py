"""Normal random numbers at the speed of a disk: a table of quantiles, indexed by random words.

65,536 quantiles reach to 4.3 deviations and repeat; as weights, nobody can tell. Streams are named
by numbers, so that blocks made by several threads are the same as those made by one.
"""

from __future__ import annotations

import functools
from statistics import NormalDist

import numpy as np
from numpy.typing import DTypeLike, NDArray

_WORDS = 1 << 16
_ALL_BITS = (1 << 64) - 1


def generator(*stream: int) -> np.random.Generator:
    """The random numbers of a stream."""
    return np.random.Generator(np.random.SFC64(stream))


def normals(
    random: np.random.Generator,
    shape: tuple[int, ...],
    deviation: float = 1.0,
    dtype: DTypeLike = np.float32,
) -> NDArray[np.float32]:
    """Random values of `shape`, float32 or float16."""
    count = int(np.prod(shape))
    words = random.integers(0, _ALL_BITS, -(-count // 4), np.uint64, endpoint=True)
    table = _table(deviation, np.dtype(dtype).name)
    return table.take(words.view(np.uint16)[:count]).reshape(shape)


@functools.lru_cache(maxsize=64)
def _table(deviation: float, dtype: str) -> NDArray[np.float32]:
    return (deviation * _quantiles()).astype(dtype)


@functools.lru_cache(maxsize=1)
def _quantiles() -> NDArray[np.float64]:
    normal = NormalDist()
    values = np.array([normal.inv_cdf((word + 0.5) / _WORDS) for word in range(_WORDS)])
    return np.asarray(values / values.std())
