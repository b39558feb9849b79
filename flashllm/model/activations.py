"""Activation functions, and where they are above zero."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashllm.spec import ModelSpec


def activate(spec: ModelSpec, x: Tensor) -> Tensor:
    """The activation of the gate, or of up where there is no gate; the same shape, a new tensor.

    Sources: FATReLU, ProSparse (arXiv 2402.13516); squared ReLU, Primer (arXiv 2109.08668); dReLU,
    TurboSparse (arXiv 2406.05955); here, the gate's part of it.
    """
    kind = spec.activation
    if kind in ("relu", "drelu"):
        return torch.relu(x)
    if kind == "fatrelu":
        return torch.nn.functional.threshold(x, spec.activation_threshold, 0.0)
    if kind == "relu2":
        return torch.relu(x).square_()
    if kind == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def activate_each(
    spec: ModelSpec, x: NDArray[np.float32], slope: float = 1.0
) -> NDArray[np.float32]:
    """The activation of the gates of one token or of several, [..., neurons]: a new array.

    `slope` is the factor within the sigmoid of silu. Each token has the bits that it has alone.
    Torch computes the last few values of an array by other functions than the rest, and numpy does
    not.
    """
    if spec.activation != "silu":
        rows = x.reshape(-1, x.shape[-1])
        alone = [activate(spec, torch.from_numpy(row)).numpy() for row in rows]
        return np.stack(alone).reshape(x.shape)
    with np.errstate(over="ignore"):
        powers: NDArray[np.float32] = np.exp(-x if slope == 1.0 else x * np.float32(-slope))
    return x / (np.float32(1) + powers)


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
