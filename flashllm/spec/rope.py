"""Rotary positions, as a feature of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from flashllm.errors import LayoutError
from flashllm.spec.checks import MAX_POSITIONS, MAX_WIDTH, check_number

RopeScaling = Literal["none", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions over the first `dims` of each head, halves rotated against each other.

    Sources: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071) for `scaling` of that name.
    """

    theta: float
    dims: int
    scaling: RopeScaling = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 0
    """Positions that the model was first trained for; of use with llama3 and yarn only."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    """Factor of sines and cosines."""
    truncate: bool = True
    """Whether yarn's range of dimensions is rounded to whole numbers."""

    def __post_init__(self) -> None:
        if self.scaling not in get_args(RopeScaling):
            raise LayoutError(f"spec: rope scaling is {self.scaling!r}")
        for name in (
            "theta",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "beta_fast",
            "beta_slow",
            "attention_factor",
        ):
            check_number(f"rope {name}", getattr(self, name), 1e12)
        if type(self.dims) is not int or not 2 <= self.dims <= MAX_WIDTH or self.dims % 2:
            raise LayoutError(f"spec: rope dims is {self.dims!r}; expected an even number")
        least = 1 if self.scaling in ("llama3", "yarn") else 0
        if (
            type(self.original_positions) is not int
            or not least <= self.original_positions <= MAX_POSITIONS
        ):
            raise LayoutError(f"spec: rope original_positions is {self.original_positions!r}")
        if self.scaling == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise LayoutError("spec: rope high_freq_factor is not above low_freq_factor")
        if self.scaling == "yarn" and self.theta <= 1.0:
            raise LayoutError(f"spec: rope theta is {self.theta!r}; yarn needs more than 1")
        if type(self.truncate) is not bool:
            raise LayoutError(f"spec: rope truncate is {self.truncate!r}")
