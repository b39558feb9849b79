"""The numbers of a turn, packed: a conversation has many turns, and few of them are looked at."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any


class PackedNumbers(Mapping[str, Any]):
    """Reads like the mapping of plain values that it was made of; each look unpacks all of it.

    Those of an answer take 6 KB as they come from the engine, and 0.5 KB here.
    """

    __slots__ = ("_packed",)

    def __init__(self, numbers: Mapping[str, Any]) -> None:
        self._packed = zlib.compress(json.dumps(dict(numbers), default=str).encode(), 1)

    def __getitem__(self, name: str) -> Any:
        return self._unpacked()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._unpacked())

    def __len__(self) -> int:
        return len(self._unpacked())

    def __repr__(self) -> str:
        return repr(self._unpacked())

    def _unpacked(self) -> dict[str, Any]:
        numbers: dict[str, Any] = json.loads(zlib.decompress(self._packed))
        return numbers
