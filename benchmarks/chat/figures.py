"""What `benchmarks.chat` measured, each a row of its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flashllm.bench.steal_time import format_steal_share, most_stolen


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: what was measured, each time, and what is wanted of it."""

    name: str
    unit: str
    values: tuple[float, ...]
    goal: str
    number: float
    """The median, or what the name says."""
    met: bool
    """True too where nothing is wanted."""
    interval: tuple[float, float] | None
    """Where the median lies with 95 %, of rounds that differ more than the goal allows."""
    stolen_shares: tuple[float | None, ...]
    """Of all processors' time in each round; none where the row above is of the same rounds."""

    def row(self) -> list[str]:
        """For a table."""
        spread = f"{min(self.values):.4g} to {max(self.values):.4g}"
        stolen = format_steal_share(most_stolen(self.stolen_shares)) if self.stolen_shares else ""
        number = f"{self.number:.4g} {self.unit}".strip()
        if self.interval is not None:
            number += " (95 %: {:.3g} to {:.3g})".format(*self.interval)
        met = "" if not self.goal else "yes" if self.met else "NO"
        return [self.name, number, spread, str(len(self.values)),
                self.goal, met, stolen]  # fmt: skip


def figure_of(
    name: str,
    unit: str,
    values: tuple[float, ...],
    goal: tuple[Literal["at most", "at least"], float] | None,
    number: float,
    stolen: Sequence[float | None] = (),
    interval: tuple[float, float] | None = None,
) -> Figure:
    """The figure, which meets its goal where `number` does, or where nothing is wanted."""
    if goal is None:
        return Figure(name, unit, values, "", number, True, interval, tuple(stolen))
    word, bound = goal
    met = number <= bound if word == "at most" else number >= bound
    wanted = f"{word} {bound:g} {unit}".strip()
    return Figure(name, unit, values, wanted, number, met, interval, tuple(stolen))
