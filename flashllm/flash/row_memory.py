"""How much memory reading rows of a matrix takes that stays on flash. Pure arithmetic."""

from __future__ import annotations

from flashllm.dtypes import row_bytes
from flashllm.flash.layout import round_up
from flashllm.flash.safetensors_file import DATA_ALIGNMENT

ROWS_AT_ONCE = 32
"""Rows of a matrix on flash that are read together, for tokens of a prompt."""
ROW_THREADS = 8
"""Which read them."""
_SUM_BYTES = 4


def row_place_bytes(row: int) -> int:
    """Room for one such row, as far from a page in memory as in the file, for direct reads."""
    return round_up(row + DATA_ALIGNMENT, DATA_ALIGNMENT)


def rows_memory_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Memory of a matrix [rows, columns] that stays on flash: rows that are read, and checksums."""
    return ROWS_AT_ONCE * row_place_bytes(row_bytes(dtype, shape[1])) + _SUM_BYTES * shape[0]
