"""Rotary positions (RoFormer, arXiv 2104.09864) and their extensions to longer contexts.

Stretched frequencies: linear (kaiokendev's position interpolation), llama3 (low frequencies
divided, high ones kept, a ramp between) and yarn (arXiv 2309.00071, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm.large_arrays import Floats
from flashllm.spec import Rope


@dataclass(frozen=True, slots=True)
class Rotation:
    """Sines and cosines, [tokens, dims / 2] each, of the positions of some tokens."""

    cos: NDArray[np.float32]
    sin: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rotations:
    """The rotation of some tokens in each kind of layer."""

    everywhere: Rotation
    windowed: Rotation

    def of(self, window: int) -> Rotation:
        """That of a layer whose attention sees so many tokens; 0: all of them."""
        return self.windowed if window else self.everywhere


class Positions:
    """Rotary positions of one model; layers with an attention window may have their own."""

    def __init__(self, rope: Rope, window_rope: Rope | None = None) -> None:
        self._everywhere = Rotary(rope)
        self._windowed = None if window_rope is None else Rotary(window_rope)

    def at(self, runs: Sequence[range]) -> Rotations:
        """The rotations of runs of tokens, one run after another, by their positions."""
        positions = np.concatenate([np.arange(run.start, run.stop) for run in runs])
        everywhere = self._everywhere.at(positions)
        windowed = self._windowed
        return Rotations(everywhere, windowed.at(positions) if windowed else everywhere)


class Rotary:
    """One kind of positions, computed as they are needed."""

    def __init__(self, rope: Rope) -> None:
        self._factor = rope.attention_factor
        self._frequencies = frequencies(rope)

    def at(self, positions: NDArray[np.int64]) -> Rotation:
        """The rotation of tokens at these positions [tokens]: each has the bits it has alone."""
        # Angles in f32, as models were trained with them; what is taken of them is exact.
        angles = np.multiply.outer(positions.astype(np.float32), self._frequencies).astype(float)
        factor = np.float32(self._factor)
        cos, sin = (of(angles).astype(np.float32) * factor for of in (np.cos, np.sin))
        return Rotation(cos, sin)


def frequencies(rope: Rope) -> Floats:
    """Radians a token, [dims / 2], from the fastest to the slowest."""
    exponents = np.arange(0, rope.dims, 2, dtype=np.float32) / np.float32(rope.dims)
    powers = np.power(float(rope.theta), exponents.astype(float)).astype(np.float32)
    plain: Floats = np.float32(1) / powers
    if rope.scaling == "linear":
        slower: Floats = plain / np.float32(rope.factor)
        return slower
    if rope.scaling == "llama3":
        return _ramp_by_wavelength(rope, plain)
    if rope.scaling == "yarn":
        return _ramp_by_dimension(rope, plain)
    return plain


def _ramp_by_wavelength(rope: Rope, plain: Floats) -> Floats:
    """Keeps frequencies of which `original_positions` hold many periods; divides the low ones."""
    turns = np.float32(rope.original_positions) * plain / np.float32(2 * math.pi)
    steepness = np.float32(rope.high_freq_factor - rope.low_freq_factor)
    ramp = (turns - np.float32(rope.low_freq_factor)) / steepness
    return _between(plain / np.float32(rope.factor), plain, ramp)


def _ramp_by_dimension(rope: Rope, plain: Floats) -> Floats:
    """As above, with a ramp that is straight over the dimensions."""

    def dimension(turns: float) -> float:
        # The one whose wavelength fits `turns` times into the original context.
        wavelength = rope.original_positions / (turns * 2 * math.pi)
        return rope.dims * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dims - 1)
    width = high - low if high != low else 0.001  # no division by zero
    ramp = (np.arange(rope.dims // 2, dtype=np.float32) - np.float32(low)) / np.float32(width)
    return _between(plain, plain / np.float32(rope.factor), ramp)


def _between(start: Floats, end: Floats, ramp: Floats) -> Floats:
    """From `start` where the ramp is 0 or below it to `end` where it is 1 or above."""
    share = np.clip(ramp, np.float32(0), np.float32(1))
    rise = end - start
    return np.where(share < 0.5, start + share * rise, end - (np.float32(1) - share) * rise)
