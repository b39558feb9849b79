"""The twin of the native core's choice of what is above its limit, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashllm.core.numpy_twin.arguments import require_array


def ids_above(
    scores: NDArray[np.float32], limits: NDArray[np.float32], ids: NDArray[np.int32]
) -> int:
    """Write the positions of the scores above their limits to the front of `ids`; how many."""
    _check_above(scores, limits, ids, np.int32)
    found = np.flatnonzero(scores > limits)
    ids[: len(found)] = found
    return len(found)


@np.errstate(invalid="ignore", over="ignore")  # damaged weights give damaged scores
def keys_above(
    scores: NDArray[np.float32], limits: NDArray[np.float32], keys: NDArray[np.int64]
) -> int:
    """Write the same positions as keys, which sort by how far the limit is exceeded; how many."""
    _check_above(scores, limits, keys, np.int64)
    excess = scores - limits
    found = np.flatnonzero(excess > 0)
    ranks = np.iinfo(np.int32).max - excess[found].view(np.int32).astype(np.int64)
    keys[: len(found)] = ranks << 32 | found
    return len(found)


def true_columns(
    mask: NDArray[np.bool_], columns: NDArray[np.int32], ends: NDArray[np.int32]
) -> int:
    """Write the columns of what is true in `mask` [rows, n] to the front of `columns`, by row."""
    require_array("columns", columns, np.int32, writable=True)
    require_array("ends", ends, np.int32, writable=True)
    if len(mask) and mask.shape[1] > 1 and mask.strides[1] != 1:
        raise ValueError("the mask's columns must follow one another")
    if len(ends) != len(mask):
        raise ValueError(f"{len(ends)} ends for {len(mask)} rows")
    found = np.nonzero(mask)[1]
    if len(found) > len(columns):
        raise ValueError(f"more is true than columns has room for, {len(columns)}")
    columns[: len(found)] = found
    np.cumsum(np.count_nonzero(mask, axis=1), out=ends)
    return len(found)


def run_ends(
    ids: NDArray[np.int32],
    vector_ends: NDArray[np.int32],
    block_ids: int,
    out: NDArray[np.int32],
) -> int:
    """Write the ends of the runs of `ids` that lie in one block of `block_ids` and one vector."""
    require_array("ids", ids, np.int32)
    require_array("vector_ends", vector_ends, np.int32)
    require_array("out", out, np.int32, writable=True)
    if block_ids < 1:
        raise ValueError(f"blocks of {block_ids}")
    if np.any(np.diff(vector_ends, prepend=0) < 0):
        raise ValueError("vector_ends must not fall")
    if (vector_ends[-1] if len(vector_ends) else 0) != len(ids):
        raise ValueError(f"vector_ends must rise to the number of ids, {len(ids)}")
    if len(out) < len(ids):
        raise ValueError(f"{len(ids)} ids, and room for {len(out)} ends")
    vectors = np.repeat(np.arange(len(vector_ends)), np.diff(vector_ends, prepend=0))
    begins = (np.diff(ids // block_ids) != 0) | (np.diff(vectors) != 0)
    ends = np.append(np.flatnonzero(begins) + 1, len(ids)) if len(ids) else np.empty(0, np.int64)
    out[: len(ends)] = ends
    return len(ends)


def _check_above(
    scores: NDArray[np.float32],
    limits: NDArray[np.float32],
    out: NDArray[np.signedinteger],
    dtype: type[np.signedinteger],
) -> None:
    require_array("scores", scores, np.float32)
    require_array("limits", limits, np.float32)
    require_array("what is found", out, dtype, writable=True)
    if not len(scores) == len(limits) == len(out):
        raise ValueError(f"{len(scores)} scores, {len(limits)} limits, and room for {len(out)}")
