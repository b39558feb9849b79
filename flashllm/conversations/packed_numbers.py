"""The numbers of a turn, packed: a conversation has many turns, and few of them are looked at."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

_USUAL = (
    b', "temp": 0.7, "seed": , "sums_up": {"prompt_tokens": , "prefill": {"tokens": '
    b', "reused_tokens": 0, "wall_ns": , "bytes_read": 0}, "decode": {"tokens": , "wall_ns": '
    b', "tokens_per_second": , "parts_ns": {"predict": , "plan": , "io_exposed": , "manage": '
    b', "attention": , "ffn": , "head": , "sample": , "other": }, "bytes_read": 0'
    b', "bytes_useful": 0, "reads": 0, "hit_rate": 1.0, "hits": , "misses": 0, "passes": 0'
    b', "spilled": 0, "guessed": 0, "guesses_used": 0, "neurons": 0, "neurons_silent": 0'
    b', "io_busy_ns": 0, "io_bytes_per_second": 0.0, "queue_depth_mean": 0.0'
    b', "queue_depth_max": , "read_sizes": {}, "kv_tokens": 0, "kv_seen": 0, "kv_share": 1.0'
    b', "kv_recalls": 0, "kv_recall": 1.0}, "tokens": '
)
"""Names as an answer's numbers have them, for zlib to refer to (RFC 1950, preset dictionary).

Only packed and unpacked in one process, so other names than these take more and harm nothing.
"""
_WINDOW_BITS, _MEMORY_LEVEL = 12, 4
"""What zlib packs with takes 30 KB, not the usual 270: an answer's numbers have less than 1 KB. The
heap grows by as much at once, and other things come to lie above it."""


class PackedNumbers(Mapping[str, Any]):
    """Reads like the mapping of plain values that it was made of; each look unpacks all of it.

    Those of an answer take 6 KB as they come from the engine, and 0.2 KB here.
    """

    __slots__ = ("_packed",)

    def __init__(self, numbers: Mapping[str, Any]) -> None:
        packer = zlib.compressobj(wbits=_WINDOW_BITS, memLevel=_MEMORY_LEVEL, zdict=_USUAL)
        text = json.dumps(dict(numbers), default=str)
        self._packed = packer.compress(text.encode()) + packer.flush()

    def __getitem__(self, name: str) -> Any:
        return self._unpacked()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._unpacked())

    def __len__(self) -> int:
        return len(self._unpacked())

    def __repr__(self) -> str:
        return repr(self._unpacked())

    def _unpacked(self) -> dict[str, Any]:
        numbers: dict[str, Any] = json.loads(
            zlib.decompressobj(zdict=_USUAL).decompress(self._packed)
        )
        return numbers
