"""Mixtures of experts, as a feature of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from flashllm.errors import LayoutError
from flashllm.spec.checks import MAX_EXPERTS, MAX_LAYERS, MAX_SCALE, MAX_WIDTH

Score = Literal["softmax", "sigmoid"]
RouterInput = Literal["ffn", "block"]


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A mixture of experts in place of one feed-forward layer, and how its router chooses.

    A router is a matrix [n_experts, d_model]; what it gives for a token are the logits of the
    experts. The `per_token` largest are chosen, the lowest id first among equals, and the output of
    an expert counts with its score. Sources: Shazeer et al., arXiv 1701.06538; Mixtral, arXiv
    2401.04088.
    """

    n_experts: int
    per_token: int
    """Experts that a token goes through."""
    d_ffn: int
    """Neurons of one expert."""
    score: Score = "softmax"
    """What makes a weight of a logit: softmax over all experts, or a sigmoid."""
    renormalise: bool = False
    """Whether the weights of the chosen experts are divided by their sum."""
    router_bias: bool = False
    """Whether the logits have a bias."""
    router_input: RouterInput = "ffn"
    """What the router reads: the input of the feed-forward layer, or that of the whole block,
    before its norm and its attention, so that reads can begin before attention."""
    bias: bool = False
    """Whether gate, up and down of each expert have biases, which lie in its bundle."""
    gate_limit: float = 0.0
    """The most that a gate's input and an up projection count, and minus that the least of an up
    projection; 0 where nothing is cut off."""
    gate_slope: float = 1.0
    """Factor of a gate's input within the sigmoid of silu."""
    up_offset: float = 0.0
    """Added to an up projection before the gate multiplies it."""
    choice_bias: bool = False
    """Whether each expert has a bias that is added to its score where experts are chosen, and not
    where they are weighed. Source: DeepSeek-V3, arXiv 2412.19437, section 2.1.2."""
    groups: int = 1
    """Groups of neighbouring experts, of which a token chooses `groups_kept` first, by the sum of
    the two best scores of each."""
    groups_kept: int = 1
    sum_offset: float = 0.0
    """Added to the sum that weights are divided by."""
    weight_scale: float = 1.0
    """Factor of all weights."""
    shared_d_ffn: int = 0
    """Neurons of the expert that all tokens go through besides, which stays in memory; 0: none."""
    shared_gate: bool = False
    """Whether a sigmoid weighs that expert's output for each token."""
    dense_layers: int = 0
    """The first so many layers have a feed-forward layer that is whole, and stays in memory."""
    dense_d_ffn: int = 0
    """Neurons of those layers."""

    def __post_init__(self) -> None:
        limits = {"n_experts": MAX_EXPERTS, "per_token": MAX_EXPERTS, "d_ffn": MAX_WIDTH}
        for name, limit in limits.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= limit:
                raise LayoutError(f"spec: experts: {name} is {value!r}; expected 1 to {limit}")
        if self.per_token > self.n_experts:
            raise LayoutError(
                f"spec: experts: {self.per_token} are chosen for a token, of {self.n_experts}"
            )
        choices = {"score": get_args(Score), "router_input": get_args(RouterInput)}
        flags = ("renormalise", "router_bias", "bias", "choice_bias", "shared_gate")
        choices |= dict.fromkeys(flags, (False, True))
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known or isinstance(value, bool) != isinstance(known[0], bool):
                raise LayoutError(f"spec: experts: {name} is {value!r}")
        for name in ("gate_limit", "gate_slope", "up_offset", "sum_offset", "weight_scale"):
            value = getattr(self, name)
            if not isinstance(value, float) or not 0.0 <= value <= MAX_SCALE:
                raise LayoutError(f"spec: experts: {name} is {value!r}")
        self._check_groups()
        limits = {"shared_d_ffn": MAX_WIDTH, "dense_d_ffn": MAX_WIDTH, "dense_layers": MAX_LAYERS}
        for name, limit in limits.items():
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= limit:
                raise LayoutError(f"spec: experts: {name} is {value!r}; expected 0 to {limit}")
        if (self.dense_layers > 0) != (self.dense_d_ffn > 0):
            raise LayoutError("spec: experts: dense_layers and dense_d_ffn belong together")
        if self.shared_gate and not self.shared_d_ffn:
            raise LayoutError("spec: experts: shared_gate belongs to a shared expert")

    def _check_groups(self) -> None:
        for name in ("groups", "groups_kept"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= self.n_experts:
                raise LayoutError(f"spec: experts: {name} is {value!r}")
        size = self.n_experts // self.groups
        if self.n_experts % self.groups or (self.groups > 1 and size < 2):
            raise LayoutError(
                f"spec: experts: groups is {self.groups}, and {self.n_experts} experts are not so"
                " many groups of two or more"
            )
        if self.groups_kept > self.groups or self.per_token > self.groups_kept * size:
            raise LayoutError(
                f"spec: experts: groups_kept is {self.groups_kept} of {self.groups}: more than"
                f" there are, or too few for {self.per_token} experts"
            )
