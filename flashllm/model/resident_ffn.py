"""Gated feed-forward layers that stay in memory: those of dense layers, and shared experts.

A token has the same bits alone and among others.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashllm.large_arrays import Floats
from flashllm.model.activations import Gates, activate_times, sigmoid
from flashllm.model.linear import Linear, LinearGroup
from flashllm.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ResidentFfn:
    """Computes `down(activation(gate(x)) * up(x))`."""

    spec: ModelSpec
    gate_up: LinearGroup
    down: Linear

    def __call__(self, x: Floats) -> Floats:
        """[tokens, d_model] to [tokens, d_model]."""
        gate, up = self.gate_up(x)
        hidden = activate_times(self.spec, gate, up, Gates())
        return self.down(hidden)


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The expert of a layer that all tokens go through."""

    ffn: ResidentFfn
    router: Linear | None  # [1, d_model]
    """What a sigmoid turns into the weight of its output; None where that is always 1."""

    def __call__(self, x: Floats) -> Floats:
        """[tokens, d_model] to [tokens, d_model]."""
        out = self.ffn(x)
        if self.router is None:
            return out
        out *= sigmoid(self.router(x))
        return out
