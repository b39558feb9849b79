"""Files of text, and how to choose some of their lines evenly."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from flashllm.errors import UsageError
from flashllm.progress import Progress

from ..calibration_texts import read_text

# The fractional parts of its multiples are never close together (H. Weyl).
GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file's text, and the hash of the bytes that it was read from."""

    path: Path
    text: str
    sha256: str

    def lines(self) -> list[tuple[int, str]]:
        """Numbers, counted from 1, and contents of the lines that are not blank."""
        numbered = enumerate(self.text.split("\n"), 1)
        return [(number, line) for number, line in numbered if line.strip()]


def read_text_file(path: Path, progress: Progress) -> TextFile:
    """A file in UTF-8; `UsageError` where it is absent, empty or in another encoding."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    raw, text = read_text(path, progress)
    if not text.strip():
        raise UsageError(f"{path}: the file is empty")
    return TextFile(path, text, hashlib.sha256(raw).hexdigest())


def evenly(count: int) -> list[int]:
    """0 to count - 1, in an order in which every prefix is spread evenly over the whole."""
    return sorted(range(count), key=lambda index: index * GOLDEN % 1.0)
