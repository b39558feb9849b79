"""Rotary positions (RoFormer, arXiv 2104.09864) and their extensions to longer contexts.

Stretched frequencies: linear (kaiokendev's position interpolation), llama3 (low frequencies
divided, high ones kept, a ramp between) and yarn (arXiv 2309.00071, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
        positions = torch.cat(
            [torch.arange(run.start, run.stop, dtype=torch.float32) for run in runs]
        )
        everywhere = self._everywhere.at(positions)
        windowed = self._windowed
        return Rotations(everywhere, windowed.at(positions) if windowed else everywhere)


class Rotary:
    """One kind of positions, computed as they are needed."""

    def __init__(self, rope: Rope) -> None:
        self._factor = rope.attention_factor
        self._frequencies = frequencies(rope)

    def at(self, positions: Tensor) -> Rotation:
        """The rotation of tokens at these positions [tokens]: each has the bits it has alone.

        Torch computes the last few values of a tensor by other functions than the rest, and numpy
        does not.
        """
        angles = torch.outer(positions, self._frequencies).double().numpy()
        factor = np.float32(self._factor)
        cos, sin = (of(angles).astype(np.float32) * factor for of in (np.cos, np.sin))
        return Rotation(cos, sin)


def frequencies(rope: Rope) -> Tensor:
    """Radians a token, [dims / 2], from the fastest to the slowest."""
    exponents = torch.arange(0, rope.dims, 2, dtype=torch.float32) / rope.dims
    plain = 1.0 / rope.theta**exponents
    if rope.scaling == "linear":
        return plain / rope.factor
    if rope.scaling == "llama3":
        return _ramp_by_wavelength(rope, plain)
    if rope.scaling == "yarn":
        return _ramp_by_dimension(rope, plain)
    return plain


def _ramp_by_wavelength(rope: Rope, plain: Tensor) -> Tensor:
    """Keeps frequencies of which `original_positions` hold many periods; divides the low ones."""
    turns = rope.original_positions * plain / (2 * math.pi)
    ramp = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return torch.lerp(plain / rope.factor, plain, ramp.clamp(0.0, 1.0))


def _ramp_by_dimension(rope: Rope, plain: Tensor) -> Tensor:
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
    ramp = ((torch.arange(rope.dims // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return torch.lerp(plain, plain / rope.factor, ramp)
