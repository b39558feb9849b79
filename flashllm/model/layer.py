"""The layers of a decoder, built from resident weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashllm import core
from flashllm.flash.raw_tensor import RawTensor
from flashllm.model.attention import Attention
from flashllm.model.linear import Linear, LinearGroup, Norm
from flashllm.model.neurons import FeedForwardWeights
from flashllm.model.products import Products
from flashllm.model.resident_ffn import ResidentFfn, SharedExpert
from flashllm.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Layer:
    """Resident weights of one layer, without its feed-forward part."""

    attention_norm: Norm
    attention: Attention
    ffn_norm: Norm | None
    """None where the attention's norm also serves the feed-forward layer."""


@dataclass(frozen=True, slots=True)
class ResidentParts:
    """Finds weights by their names."""

    spec: ModelSpec
    tensors: Mapping[str, RawTensor]
    products: Products
    kernels: core.Kernels

    def layer(self, index: int) -> Layer:
        """A layer without its feed-forward part."""
        spec, name = self.spec, f"layers.{index}"
        query, key, value, output = (self.linear(f"{name}.attn.{part}") for part in "qkvo")
        return Layer(
            attention_norm=self.norm(f"{name}.attn_norm"),
            attention=Attention(
                query=query,
                projections=LinearGroup.of(key, value, query),
                output=output,
                query_norm=self._head_norm(f"{name}.attn.q_norm"),
                key_norm=self._head_norm(f"{name}.attn.k_norm"),
                norm_whole=spec.qk_norm_whole,
                head_dim=spec.head_dim,
                scale=spec.attention_scale or spec.head_dim**-0.5,
                window=spec.attention_window(index),
                rotated=index not in spec.unrotated_layers,
                sinks=self._floats(f"{name}.attn.sinks"),
                kernels=self.kernels,
            ),
            ffn_norm=None if spec.shared_norm else self.norm(f"{name}.ffn_norm"),
        )

    def feed_forward(self, index: int) -> FeedForwardWeights:
        """The resident weights of a layer's feed-forward part."""
        name = f"layers.{index}.ffn"
        resident_gate = self.spec.gate == "resident"
        own_norm = self.spec.norm_placement == "pre" and not self.spec.shared_norm
        return FeedForwardWeights(
            gate=self.linear(f"{name}.gate") if resident_gate else None,
            gate_bias=None if resident_gate else self._floats(f"{name}.gate.bias"),
            up_bias=self._floats(f"{name}.up.bias"),
            down_bias=self._floats(f"{name}.down.bias"),
            norm=self.norm(f"layers.{index}.ffn_norm") if own_norm else None,
            shared=self._shared_expert(f"layers.{index}"),
        )

    def dense_feed_forward(self, index: int) -> ResidentFfn:
        """The feed-forward part of a layer that has no bundles."""
        return self._resident_ffn(f"layers.{index}.dense")

    def _shared_expert(self, name: str) -> SharedExpert | None:
        experts = self.spec.experts
        if experts is None or not experts.shared_d_ffn:
            return None
        router = self.linear(f"{name}.shared.router") if experts.shared_gate else None
        return SharedExpert(self._resident_ffn(f"{name}.shared"), router)

    def _resident_ffn(self, name: str) -> ResidentFfn:
        gate, up, down = (self.linear(f"{name}.{part}") for part in ("gate", "up", "down"))
        return ResidentFfn(self.spec, LinearGroup.of(gate, up), down)

    def linear(self, name: str, bias_of: str | None = None) -> Linear:
        """A matrix with its bias, or with the bias of `bias_of`."""
        weight = self.tensors[f"{name}.weight"]
        bias = self.tensors.get(f"{bias_of or name}.bias")
        return Linear.of(weight, bias, self.products)

    def norm(self, name: str) -> Norm:
        """A norm of the stream."""
        weight, bias = self._floats(f"{name}.weight"), self._floats(f"{name}.bias")
        return Norm(self.spec.norm, self.spec.norm_eps, weight, bias, self.kernels)

    def _head_norm(self, name: str) -> Norm | None:
        if not self.spec.qk_norm:
            return None
        weight = self._floats(f"{name}.weight")
        return Norm("rms", self.spec.norm_eps, weight, None, self.kernels)

    def _floats(self, name: str) -> NDArray[np.float32] | None:
        tensor = self.tensors.get(name)
        return None if tensor is None else tensor.floats()
