"""Activation functions, and where they are above zero."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
        return torch.from_numpy(_silu(x.numpy(), 1.0))
    return _gelu(x, "tanh" if kind == "gelu_tanh" else "none")


def activate_each(
    spec: ModelSpec, x: NDArray[np.float32], slope: float = 1.0
) -> NDArray[np.float32]:
    """The same of an array; `slope` is the factor within the sigmoid of silu."""
    if spec.activation == "silu":
        return _silu(x, slope)
    return activate(spec, torch.from_numpy(np.ascontiguousarray(x))).numpy()


def _silu(x: NDArray[np.float32], slope: float) -> NDArray[np.float32]:
    """Torch computes the last few values of an array by other functions than the rest."""
    out: NDArray[np.float32] = np.negative(x) if slope == 1.0 else x * np.float32(-slope)
    with np.errstate(over="ignore"):
        np.exp(out, out=out)
    out += np.float32(1)
    return np.divide(x, out, out=out)


def _gelu(x: Tensor, approximate: str) -> Tensor:
    """By whole vectors, for the same reason."""
    flat = x.reshape(-1)
    out = torch.empty(flat.shape)
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
