"""Activation functions, and where they are above zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashllm import core
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.spec import ModelSpec


def activate(spec: ModelSpec, x: Floats) -> Floats:
    """The activation of the gate, or of up where there is no gate; the same shape, a new array.

    A value has the same bits alone and among others. Sources: FATReLU, ProSparse (arXiv
    2402.13516); squared ReLU, Primer (arXiv 2109.08668); dReLU, TurboSparse (arXiv 2406.05955);
    here, the gate's part of it.
    """
    kind = spec.activation
    if kind == "silu":
        return _silu(x, None, Gates())
    if kind in ("gelu", "gelu_tanh"):
        return _gelu(x, exact=kind == "gelu")
    out = LARGE_ARRAYS.empty(*x.shape)
    if kind == "fatrelu":
        np.copyto(out, x)
        out[x <= np.float32(spec.activation_threshold)] = 0.0
        return out
    np.maximum(x, np.float32(0), out=out)
    if kind == "relu2":
        out *= out
    return out


@dataclass(frozen=True, slots=True)
class Gates:
    """How a gate and what it lets through are cut off and moved before they are multiplied."""

    slope: float = 1.0
    """Factor of the gate within the sigmoid of silu."""
    limit: float = 0.0
    """The most that gate and up count, and minus that the least of up; 0: as much as they are."""
    up_offset: float = 0.0
    """Added to up."""


def activate_times(spec: ModelSpec, gate: Floats, up: Floats, how: Gates) -> Floats:
    """The activation of a gate times what goes through it, [rows, columns] each; a new array."""
    if spec.activation == "silu":
        return _silu(gate, up, how)
    if how.limit:
        limit = np.float32(how.limit)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    if how.up_offset:
        up = up + np.float32(how.up_offset)
    hidden = activate(spec, gate)
    hidden *= up
    return hidden


def _silu(gate: Floats, up: Floats | None, how: Gates) -> Floats:
    out = LARGE_ARRAYS.empty(*gate.shape)
    whole = (-1, gate.shape[-1])
    core.gate_rows(gate.reshape(whole), up, how.slope, how.limit, how.up_offset, out.reshape(whole))
    return out


def _gelu(x: Floats, *, exact: bool) -> Floats:
    out = LARGE_ARRAYS.empty(*x.shape)
    core.gelu(np.ascontiguousarray(x).reshape(-1), exact, out.reshape(-1))
    return out


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^-x) of each; a value has the same bits alone and among others."""
    with np.errstate(over="ignore"):
        return np.float32(1) / (np.float32(1) + np.exp(-x))


def combine(spec: ModelSpec, activated: Floats, up: Floats) -> Floats:
    """The neurons' outputs where there is a gate: activated gate times up."""
    return activated * (np.maximum(up, np.float32(0)) if spec.activation == "drelu" else up)


def margin(spec: ModelSpec, deciding: Floats, up: Floats | None) -> Floats:
    """By how much each neuron's pre-activation exceeds the largest value with output zero.

    `deciding` is the gate's pre-activation where there is a gate, else that of up. Only for sparse
    activations.
    """
    if spec.activation == "drelu" and up is not None:
        return np.minimum(deciding, up)
    if spec.activation_threshold:
        return deciding - np.float32(spec.activation_threshold)
    return deciding
