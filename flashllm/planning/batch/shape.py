"""The numbers of a model that the costs of a block depend on, for weights in 16 bits.

Source: FlexGen, arXiv 2303.06865, section 3 and A.3, whose formulas are for models without a gate
and with as many heads of keys as of queries; here they follow the shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashllm.spec import ModelSpec

F16_BYTES = 2


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A model's layers, as the paper's formulas see them; all layers are alike."""

    n_layers: int
    d_model: int
    """h1."""
    ffn_width: int
    """h2: neurons that a token goes through."""
    n_heads: int
    """nh."""
    q_width: int
    """Width of all queries of a token: h1 in the paper."""
    kv_width: int
    """Width of all keys of a token, and of its values: h1 in the paper."""
    layer_bytes: float
    """Weights of a layer: 8 h1^2 + 4 h1 h2."""
    token_flops: float
    """Operations of a token in a layer's products with weights: as many as weights have bytes,
    since each of two bytes is multiplied and added once."""

    @classmethod
    def of(cls, spec: ModelSpec) -> BatchShape:
        """The shape of a model; layers of several kinds count with their mean."""
        q_width, kv_width = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
        # A gate that is kept in memory is no row of its neuron.
        rows = spec.rows_per_neuron + (spec.gate == "resident")
        neuron_bytes = F16_BYTES * rows * spec.d_model
        attention = F16_BYTES * spec.d_model * (2 * q_width + 2 * kv_width)
        dense_neurons = shared = 0
        if spec.experts is not None:
            dense_neurons, shared = spec.experts.dense_d_ffn, spec.experts.shared_d_ffn
        bundled = spec.bundled_layers / spec.n_layers
        outside = (1 - bundled) * dense_neurons + bundled * shared
        held = bundled * spec.d_ffn + outside
        used = bundled * spec.d_ffn * spec.multiplied_share + outside
        return cls(
            n_layers=spec.n_layers,
            d_model=spec.d_model,
            ffn_width=round(used),
            n_heads=spec.n_heads,
            q_width=q_width,
            kv_width=kv_width,
            layer_bytes=attention + neuron_bytes * held,
            token_flops=attention + neuron_bytes * used,
        )

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token in one layer: 4 h1."""
        return 2 * F16_BYTES * self.kv_width

    @property
    def weight_bytes(self) -> float:
        """Weights of all layers."""
        return self.n_layers * self.layer_bytes

    def attention_flops(self, tokens: float) -> float:
        """Operations of one token's attention to `tokens` others, in one layer."""
        return 4 * tokens * self.q_width
