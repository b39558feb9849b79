"""The router: which experts of a layer a token goes through, and how much each counts.

It is exact. Its input is that of the feed-forward layer, or that of the whole block. A token's
choice has the same bits alone and among others. Source: Mixtral of Experts, arXiv 2401.04088,
section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flashllm import core
from flashllm.arrays import Ids
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.tensor_table import CHOICE_BIAS, ROUTER, ROUTER_BIAS
from flashllm.model.active_set_selectors import ActiveMask, ActiveSet, Open, Vector
from flashllm.model.layer_inputs import Reads
from flashllm.spec import ModelSpec, MoeSpec

Routed = Callable[[int, Vector], None]
"""Called with a layer's number and the weights of its experts for some tokens."""


class SelectRouted:
    """The experts that a layer's router chooses for a token, with their weights."""

    def __init__(
        self, resident: Mapping[str, RawTensor], spec: ModelSpec, kernels: core.Kernels
    ) -> None:
        assert spec.experts is not None
        self._experts = spec.experts
        self.reads: Reads = spec.experts.router_input
        names = [f"layers.{at}" for at in range(spec.dense_layers, spec.n_layers)]
        self._routers = [resident[f"{name}{ROUTER}"] for name in names]
        self._biases = [_floats(resident, f"{name}{ROUTER_BIAS}") for name in names]
        self._choice_biases = [_floats(resident, f"{name}{CHOICE_BIAS}") for name in names]
        self._kernels = kernels
        self.observer: Routed | None = None
        """Who is told of each choice."""

    def select(self, layer: int, x: Vector, gate: Vector | None) -> ActiveSet:  # noqa: ARG002
        """The chosen experts; layers are counted from the first that has any."""
        if self.observer is not None:
            every = self.weights(layer, x[None])[0]
            chosen = every.nonzero()[0].astype(np.int32)
            return ActiveSet(chosen, every[chosen])
        router, most = self._routers[layer], self._experts.per_token
        ids, weights = np.empty(most, np.int32), np.empty(most, np.float32)
        count = self._kernels.route(
            router.raw, router.dtype, self._biases[layer], self._choice_biases[layer],
            *routing(self._experts), x, ids, weights,
        )  # fmt: skip
        return ActiveSet(ids[:count], weights[:count])

    def select_each(self, layer: int, x: Vector, gate: Vector | None) -> ActiveMask:  # noqa: ARG002
        """Those of each token."""
        return Open(self.weights(layer, x))

    def ranked(self, layer: int, x: Vector) -> Ids:
        """The experts that are chosen for `x` [d_model], those that count most first."""
        weights = routed(self._experts, self._logits(layer, x[None]), self._choice_biases[layer])[0]
        ids = np.flatnonzero(weights)
        order: Ids = ids[np.argsort(-weights[ids], kind="stable")].astype(np.int32)
        return order

    def weights(self, layer: int, x: Vector) -> Vector:
        """The weight of each expert for each token: [tokens, d_model] to [tokens, n_experts].

        Zero for those that are not chosen.
        """
        weights = routed(self._experts, self._logits(layer, x), self._choice_biases[layer])
        if self.observer is not None:
            self.observer(layer, weights)
        return weights

    def _logits(self, layer: int, x: Vector) -> Vector:
        router = self._routers[layer]
        logits = np.empty((len(x), self._experts.n_experts), dtype=np.float32)
        self._kernels.matmul(router.raw, router.dtype, np.ascontiguousarray(x), logits)
        bias = self._biases[layer]
        if bias is not None:
            logits += bias
        return logits


def routing(experts: MoeSpec) -> tuple[int, bool, int, int, bool, float, float]:
    """How the core is to choose experts and to weigh them."""
    return (
        experts.per_token, experts.score == "sigmoid", experts.groups, experts.groups_kept,
        experts.renormalise, experts.sum_offset, experts.weight_scale,
    )  # fmt: skip


def routed(experts: MoeSpec, logits: Vector, choice_bias: Vector | None = None) -> Vector:
    """The weights [tokens, n_experts] that a router's logits give, zero where not chosen."""
    weights = np.empty_like(logits)
    core.expert_weights(logits, choice_bias, *routing(experts), weights)
    return weights


def _floats(resident: Mapping[str, RawTensor], name: str) -> Vector | None:
    """A vector of the resident tensors; None where the model has none of that name."""
    return resident[name].floats() if name in resident else None
