"""Shares of weights, keys and values, and activations on device, DRAM and flash.

A cost or a size is an affine function of these nine shares, written once as an `Affine`: with a
placement it gives a number, and a linear programme takes its coefficients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SHARES: Final = ("wg", "wc", "wd", "cg", "cc", "cd", "hg", "hc", "hd")
"""FlexGen's names: weights (w), cache of keys and values (c), activations (h) on device (g), DRAM
(c) and flash (d)."""
GROUPS: Final = (SHARES[0:3], SHARES[3:6], SHARES[6:9])
"""Shares that add up to 1."""
TIERS: Final = ("device", "dram", "flash")
DECIMALS: Final = 6
"""A placement that was searched for is rounded to so many decimals: what is printed is what was
computed."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The nine shares, each from 0 to 1."""

    wg: float
    wc: float
    wd: float
    cg: float
    cc: float
    cd: float
    hg: float
    hc: float
    hd: float

    @classmethod
    def rounded(cls, values: Iterable[float]) -> Placement:
        """The placement nearest to nine numbers, each group of which adds up to 1 exactly.

        The largest share of a group takes what rounding leaves.
        """
        numbers = list(values)
        shares: list[float] = []
        for start in range(0, len(SHARES), 3):
            group = [min(max(round(number, DECIMALS), 0.0), 1.0) for number in numbers[start:][:3]]
            largest = max(range(3), key=lambda at: group[at])
            others = sum(share for at, share in enumerate(group) if at != largest)
            group[largest] = round(1.0 - others, DECIMALS) + 0.0  # never -0
            shares += group
        return cls(*shares)

    @property
    def values(self) -> tuple[float, ...]:
        """The shares in the order of `SHARES`."""
        return (
            *(self.wg, self.wc, self.wd),
            *(self.cg, self.cc, self.cd),
            *(self.hg, self.hc, self.hd),
        )


@dataclass(frozen=True, slots=True)
class Affine:
    """A constant plus a factor times each share."""

    factors: tuple[float, ...]
    """Of each share, in the order of `SHARES`."""
    constant: float = 0.0

    def __add__(self, other: Affine | float) -> Affine:
        other = affine(other)
        factors = tuple(a + b for a, b in zip(self.factors, other.factors, strict=True))
        return Affine(factors, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, factor: float) -> Affine:
        return Affine(tuple(factor * own for own in self.factors), factor * self.constant)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Affine:
        return self * (1 / divisor)

    def __neg__(self) -> Affine:
        return self * -1.0

    def __rsub__(self, other: float) -> Affine:
        return -self + other

    def at(self, placement: Placement) -> float:
        """Its value for a placement."""
        shares = placement.values
        return self.constant + sum(a * b for a, b in zip(self.factors, shares, strict=True))

    @property
    def scale(self) -> float:
        """The largest number in it, for a solver's tolerances."""
        return max(abs(self.constant), *map(abs, self.factors))


NOTHING: Final = Affine((0.0,) * len(SHARES))


def affine(value: Affine | float) -> Affine:
    """A number as a function of the shares that is the same everywhere."""
    return value if isinstance(value, Affine) else Affine(NOTHING.factors, value)


def shares() -> tuple[Affine, ...]:
    """The nine shares as functions of themselves, to write formulas with."""
    return tuple(
        Affine(tuple(float(at == own) for at in range(len(SHARES)))) for own in range(len(SHARES))
    )
