"""Activation functions, and where they are above zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm import core
from flashllm.large_arrays import LARGE_ARRAYS
from flashllm.spec import ModelSpec

_PIECE = 1 << 14
"""Values that torch computes at once: on one thread."""
_WHOLE = 64
"""Values that fill vectors of every processor, two of them."""


def activate(spec: ModelSpec, x: Tensor) -> Tensor:
    """The activation of the gate, or of up where there is no gate; the same shape, a new tensor.

    A value has the same bits alone and among others. Sources: FATReLU, ProSparse (arXiv
    2402.13516); squared ReLU, Primer (arXiv 2109.08668); dReLU, TurboSparse (arXiv 2406.05955);
    here, the gate's part of it.
    """
    kind = spec.activation
    if kind in ("relu", "drelu"):
        return torch.relu(x)
    if kind == "fatrelu":
        return torch.nn.functional.threshold(x, spec.activation_threshold, 0.0)
    if kind == "relu2":
        return torch.relu(x).square_()
    if kind == "silu":
        return torch.from_numpy(_silu(x.numpy(), None, Gates()))
    return _gelu(x, "tanh" if kind == "gelu_tanh" else "none")


@dataclass(frozen=True, slots=True)
class Gates:
    """How a gate and what it lets through are cut off and moved before they are multiplied."""

    slope: float = 1.0
    """Factor of the gate within the sigmoid of silu."""
    limit: float = 0.0
    """The most that gate and up count, and minus that the least of up; 0: as much as they are."""
    up_offset: float = 0.0
    """Added to up."""


def activate_each(spec: ModelSpec, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """`activate` of an array."""
    return activate(spec, torch.from_numpy(np.ascontiguousarray(x))).numpy()


def activate_times(
    spec: ModelSpec, gate: NDArray[np.float32], up: NDArray[np.float32], how: Gates
) -> NDArray[np.float32]:
    """The activation of a gate times what goes through it, [rows, columns] each; a new array."""
    if spec.activation == "silu":
        return _silu(gate, up, how)
    if how.limit:
        limit = np.float32(how.limit)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    if how.up_offset:
        up = up + np.float32(how.up_offset)
    hidden = activate_each(spec, gate)
    hidden *= up
    return hidden


def _silu(
    gate: NDArray[np.float32], up: NDArray[np.float32] | None, how: Gates
) -> NDArray[np.float32]:
    """Torch computes the last few values of an array by other functions than the rest."""
    out = LARGE_ARRAYS.empty(*gate.shape)
    whole = (-1, gate.shape[-1])
    core.gate_rows(gate.reshape(whole), up, how.slope, how.limit, how.up_offset, out.reshape(whole))
    return out


def _gelu(x: Tensor, approximate: str) -> Tensor:
    """By whole vectors, for the same reason."""
    flat = x.reshape(-1)
    out = torch.from_numpy(LARGE_ARRAYS.empty(len(flat)))
    for start in range(0, len(flat), _PIECE):
        part = flat[start : start + _PIECE]
        filled = torch.nn.functional.pad(part, (0, -len(part) % _WHOLE))
        found = torch.nn.functional.gelu(filled, approximate=approximate)
        out[start : start + _PIECE] = found[: len(part)]
    return out.view(x.shape)


def sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / (1 + e^-x) of each; a value has the same bits alone and among others."""
    with np.errstate(over="ignore"):
        return np.float32(1) / (np.float32(1) + np.exp(-x))


def combine(spec: ModelSpec, activated: Tensor, up: Tensor) -> Tensor:
    """The neurons' outputs where there is a gate: activated gate times up."""
    return activated * (torch.relu(up) if spec.activation == "drelu" else up)


def margin(spec: ModelSpec, deciding: Tensor, up: Tensor | None) -> Tensor:
    """By how much each neuron's pre-activation exceeds the largest value with output zero.

    `deciding` is the gate's pre-activation where there is a gate, else that of up. Only for sparse
    activations.
    """
    if spec.activation == "drelu" and up is not None:
        return torch.minimum(deciding, up)
    if spec.activation_threshold:
        return deciding - spec.activation_threshold
    return deciding
