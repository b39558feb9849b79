"""What a model of some shape takes in DRAM and reads from flash, before it is converted.

Source of the shares: LLM in a flash, section 4.1 (embeddings, attention and predictors stay in
DRAM, and only a window of the feed-forward weights).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashllm.dtypes import row_bytes
from flashllm.flash.layout import BundleHeader
from flashllm.flash.tensor_table import own_embedding_bytes, resident_bytes, tensor_table
from flashllm.options import Select
from flashllm.planning.plan import Plan
from flashllm.planning.sizes import Sizes
from flashllm.planning.tokenizer_memory import tokenizer_bytes
from flashllm.spec import ModelSpec

PREDICTOR_RANK = 128
"""The paper's rank for most layers; training may choose others, layer by layer."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model's weights, by where they are kept."""

    embeddings: int
    attention: int
    """Attention with norms, biases, and the head unless it is tied."""
    gate: int
    """Gates that stay in memory."""
    ffn: int
    """Feed-forward rows on flash, without padding."""
    padding: int

    @classmethod
    def of(cls, spec: ModelSpec) -> Weights:
        """The weights of a model of this shape."""
        parts = {"embeddings": 0, "attention": 0, "gate": 0}
        for name, shape in tensor_table(spec).items():
            nbytes = resident_bytes(name, shape, spec)
            if name.startswith("embed."):
                parts["embeddings"] += nbytes
            elif name.endswith(".ffn.gate.weight"):
                parts["gate"] += nbytes
            else:
                parts["attention"] += nbytes
        header = BundleHeader.for_spec(spec, bytes(16))
        bundles = spec.bundled_layers * spec.bundles_per_layer
        padding = bundles * (header.stride - header.bundle_bytes)
        return cls(**parts, ffn=bundles * header.bundle_bytes, padding=padding)

    @property
    def total(self) -> int:
        """All weights, without padding."""
        return self.embeddings + self.attention + self.gate + self.ffn

    def shares(self, predictors: int) -> Shares:
        """As shares of the model without its predictors, which are added to these."""
        return Shares(
            embeddings=self.embeddings / self.total,
            attention=(self.attention + self.gate) / self.total,
            predictors=predictors / self.total,
            ffn=self.ffn / self.total,
        )


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of a model; those of the predictors are relative to it, but not part of it."""

    embeddings: float
    attention: float
    predictors: float
    ffn: float

    def in_dram(self, window: float) -> float:
        """Share of the model in DRAM if a window holds that share of the neurons."""
        return self.embeddings + self.attention + self.predictors + window * self.ffn


@dataclass(frozen=True, slots=True)
class FlashTraffic:
    """Bytes of bundles that a token reads, whatever the text."""

    layer_bytes: int
    """All feed-forward weights, with padding."""
    pinned_bytes: int
    """The part that stays in memory, where every token needs all of it."""
    per_percent_bytes: int
    """One percent of the neurons, where only active ones are read."""


def predictor_bytes(spec: ModelSpec, ranks: Sequence[int] | None = None, dtype: str = "f16") -> int:
    """Bytes of low-rank predictors in `dtype`, of the usual rank or of `ranks`, one per layer."""
    ranks = [PREDICTOR_RANK] * spec.n_layers if ranks is None else ranks
    widths = [min(rank, spec.d_model) for rank in ranks]
    return sum(
        rank * row_bytes(dtype, spec.d_model) + spec.d_ffn * row_bytes(dtype, rank)
        for rank in widths
    )


def sizes_of_shape(spec: ModelSpec, interpreter_bytes: int, *, has_tokenizer: bool = True) -> Sizes:
    """The sizes that `make_plan` needs, for a model that is not converted yet."""
    weights = Weights.of(spec)
    return Sizes(
        interpreter=interpreter_bytes,
        embeddings=weights.embeddings,
        attention=weights.attention + weights.gate,
        predictors=predictor_bytes(spec),
        tokenizer=tokenizer_bytes(spec) if has_tokenizer else 0,
        own_embedding=own_embedding_bytes(spec),
        stride=BundleHeader.for_spec(spec, bytes(16)).stride,
    )


def usual_selector(spec: ModelSpec) -> Select:
    """The best selector that a model of this shape can have once it is converted."""
    if spec.experts is not None:
        return "router"
    if not spec.sparse:
        return "all"
    return "gate" if spec.gate == "resident" else "predicted"


def traffic(spec: ModelSpec, plan: Plan, stride: int) -> FlashTraffic:
    """Bytes per token, from the shape and a plan."""
    whole = spec.bundled_layers * spec.bundles_per_layer * stride
    pinned = plan.split["slots"] if plan.select == "all" else 0
    return FlashTraffic(whole, pinned, whole // 100)


def to_json(spec: ModelSpec, plan: Plan, stride: int) -> dict[str, Any]:
    """Plain values."""
    weights = Weights.of(spec)
    return {
        "spec": spec.to_json(),
        "sparse": spec.sparse,
        "weights_bytes": dataclasses.asdict(weights) | {"total": weights.total},
        "stride_bytes": stride,
        "flash_bytes_a_token": dataclasses.asdict(traffic(spec, plan, stride)),
        "plan": plan.to_json(),
    }
