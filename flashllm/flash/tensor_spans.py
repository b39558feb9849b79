"""Where some tensors of a file come to lie in memory, when nothing else of it is read."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from flashllm.flash.layout import round_up
from flashllm.flash.safetensors_file import DATA_ALIGNMENT, TensorRecord


def some_tensors_bytes(index: dict[str, TensorRecord]) -> int:
    """Memory that some tensors of a file take when nothing else of it is read."""
    spans = spans_of(index)
    return spans[-1].place_end if spans else 0


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tensors: where they are in the file, and how much farther on in memory."""

    start: int
    end: int
    shift: int

    @property
    def place_end(self) -> int:
        """Where its last byte is in memory, and one more."""
        return self.end + self.shift


def spans_of(index: dict[str, TensorRecord]) -> list[Span]:
    """The spans of tensors, each as far from a page in memory as in the file, for direct reads."""
    spans: list[Span] = []
    place = 0
    for record in sorted(index.values(), key=lambda each: each.offset):
        end = record.offset + record.nbytes
        if spans and spans[-1].end == record.offset:
            spans[-1] = dataclasses.replace(spans[-1], end=end)
        else:
            page = round_up(place, DATA_ALIGNMENT)
            first = page + record.offset % DATA_ALIGNMENT
            spans.append(Span(record.offset, end, first - record.offset))
        place = spans[-1].place_end
    return spans
