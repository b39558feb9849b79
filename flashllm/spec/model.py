"""What a model is: one frozen description of its features."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flashllm.dtypes import DTYPES, DType, expert_bytes, row_bytes
from flashllm.errors import LayoutError
from flashllm.spec.checks import (
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_SCALE,
    MAX_VOCAB,
    MAX_WIDTH,
    check_number,
    known_fields,
)
from flashllm.spec.experts import MoeSpec
from flashllm.spec.rope import Rope

Activation = Literal["relu", "fatrelu", "relu2", "drelu", "silu", "gelu", "gelu_tanh"]
SPARSE_ACTIVATIONS = ("relu", "fatrelu", "relu2", "drelu")
"""Activations that are exactly zero for many inputs, so that neurons may be left unread."""
Gate = Literal["none", "resident", "bundled"]

_FLAGS = (
    "norm_affine", "norm_bias", "final_norm", "qk_norm", "qk_norm_whole", "shared_norm",
    "attention_bias", "attention_output_bias", "attention_sinks", "ffn_bias", "head_bias",
    "tied_head",
)  # fmt: skip
_LATER = (
    "resident_dtype", "experts", "qk_norm_whole", "attention_scale", "window_rope",
    "unrotated_layers", "attention_sinks",
)  # fmt: skip
"""Fields that are written only where they say something."""
_LATER_OF_EXPERTS = (
    "router_bias", "router_input", "bias", "gate_limit", "gate_slope", "up_offset", "choice_bias",
    "groups", "groups_kept", "sum_offset", "weight_scale", "shared_d_ffn", "shared_gate",
    "dense_layers", "dense_d_ffn",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Features of a decoder: sizes, order of its blocks, and what its feed-forward layer is.

    `d_model` is the width of the residual stream, `embed_dim` that of the token embedding (they
    differ where the checkpoint projects in and out). A neuron is `rows_per_neuron` rows of
    `d_model` weights on flash: up and down, preceded by the gate where that is bundled too. Where
    there are `experts`, `d_ffn` counts the neurons of all of them, and a bundle is an expert.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int
    vocab_size: int
    embed_dim: int
    max_positions: int
    """The most tokens that a context can hold."""
    position_offset: int
    """Rows of the table of learned positions that come before position 0."""
    dtype: DType
    """Encoding of the bundles, and of the resident matrices unless `resident_dtype` is set."""
    norm_placement: Literal["pre", "post"]
    norm_affine: bool
    """Whether norms have weights at all."""
    norm_eps: float
    final_norm: bool
    attention_bias: bool
    """Whether query, key and value have biases; `attention_output_bias` is for the output."""
    ffn_bias: bool
    """Whether up and down have biases, and the gate if there is one."""
    tied_head: bool
    activation: Activation
    """Activation of the gate if there is one, else of up; drelu is relu of both."""
    rows_per_neuron: int = 2
    neurons_per_bundle: int = 1
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    attention_output_bias: bool = False
    head_bias: bool = False
    norm: Literal["layer", "rms"] = "layer"
    norm_bias: bool = True
    """Whether norms with weights also have biases."""
    qk_norm: bool = False
    """Whether each head's queries and keys go through an RMS norm, before positions."""
    block: Literal["sequential", "parallel"] = "sequential"
    """Parallel: attention and feed-forward both read the block's input, and both are added."""
    shared_norm: bool = False
    """Whether one norm feeds both branches of a parallel block."""
    positions: Literal["learned", "rope"] = "learned"
    rope: Rope | None = None
    attention_windows: tuple[int, ...] = ()
    """Tokens that each layer's attention sees, the current one included; 0 for all of them.
    Empty where all layers see everything."""
    gate: Gate = "none"
    """Where the rows of the feed-forward gate are, if there is one."""
    activation_threshold: float = 0.0
    """The threshold that an input must exceed; fatrelu is zero below."""
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor of a branch's output before it is added to the residual stream."""
    logit_scale: float = 1.0
    resident_dtype: DType | None = None
    """Encoding of the resident matrices, if it differs from that of the bundles."""
    experts: MoeSpec | None = None
    """The experts that each feed-forward layer consists of; None for one that is whole."""
    qk_norm_whole: bool = False
    """Whether those norms are over all heads of a token together, and not over each."""
    attention_scale: float | None = None
    """Factor of the scores of attention; None: `head_dim ** -0.5`."""
    window_rope: Rope | None = None
    """Rotary positions of the layers that have an attention window, where they differ."""
    unrotated_layers: tuple[int, ...] = ()
    """Layers whose attention knows no positions, ascending, in a model with rotary ones."""
    attention_sinks: bool = False
    """Whether each head has one more score in the softmax, which is learned and brings no value."""

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_ids()
        self._check_choices()
        if self.n_heads % self.n_kv_heads:
            raise LayoutError("spec: n_kv_heads does not divide n_heads")
        if self.d_ffn % self.neurons_per_bundle:
            raise LayoutError("spec: neurons_per_bundle does not divide d_ffn")
        if self.rows_per_neuron != (3 if self.gate == "bundled" else 2):
            raise LayoutError("spec: rows_per_neuron does not fit the gate")
        if (self.rope is not None) != (self.positions == "rope"):
            raise LayoutError("spec: rope belongs to positions of that kind, and to no other")
        if self.rope is not None and self.rope.dims > self.head_dim:
            raise LayoutError("spec: rope dims are more than head_dim")
        self._check_experts()
        if self.window_rope is not None and (
            self.rope is None
            or self.window_rope.dims > self.head_dim
            or not any(self.attention_windows)
        ):
            raise LayoutError("spec: window_rope belongs to rotary positions with some windows")
        if self.unrotated_layers and self.rope is None:
            raise LayoutError("spec: unrotated_layers belong to models with rotary positions")
        if self.positions == "learned" and self.n_heads * self.head_dim != self.d_model:
            raise LayoutError("spec: n_heads and head_dim do not fit d_model")
        if self.activation == "drelu" and not self.gated:
            raise LayoutError("spec: drelu needs a gate")
        if self.shared_norm and (self.block != "parallel" or self.norm_placement != "pre"):
            raise LayoutError("spec: shared_norm belongs to a parallel block with norms in front")
        if self.block == "parallel" and self.norm_placement != "pre":
            raise LayoutError("spec: a parallel block has its norms in front")

    def _check_experts(self) -> None:
        if self.qk_norm_whole and not self.qk_norm:
            raise LayoutError("spec: qk_norm_whole belongs to models with qk_norm")
        experts = self.experts
        if experts is None:
            if self.neurons_per_bundle != 1 or self.qk_norm_whole:
                raise LayoutError("spec: neurons_per_bundle and qk_norm_whole belong to experts")
            return
        sizes = (experts.n_experts * experts.d_ffn, experts.d_ffn)
        if (self.d_ffn, self.neurons_per_bundle) != sizes:
            raise LayoutError("spec: d_ffn and neurons_per_bundle do not fit the experts")
        if self.gate != "bundled" or self.ffn_bias or self.activation in ("fatrelu", "drelu"):
            raise LayoutError("spec: experts have a gate of their own, and biases of their own")
        if experts.dense_layers >= self.n_layers:
            raise LayoutError("spec: experts: dense_layers are all layers that there are")
        if experts.gate_slope != 1.0 and self.activation != "silu":
            raise LayoutError("spec: experts: gate_slope belongs to silu")
        if self.block != "sequential" or self.norm_placement != "pre":
            raise LayoutError("spec: experts belong to sequential blocks with norms in front")

    def _check_sizes(self) -> None:
        limits = {
            "n_layers": MAX_LAYERS,
            "d_model": MAX_WIDTH,
            "n_heads": MAX_WIDTH,
            "n_kv_heads": MAX_WIDTH,
            "head_dim": MAX_WIDTH,
            "d_ffn": MAX_WIDTH,
            "vocab_size": MAX_VOCAB,
            "embed_dim": MAX_WIDTH,
            "max_positions": MAX_POSITIONS,
            "rows_per_neuron": 3,
            "neurons_per_bundle": MAX_WIDTH,
        }
        for name, limit in limits.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= limit:
                raise LayoutError(
                    f"spec: {name} is {value!r}; expected a whole number of 1 to {limit}"
                )
        if type(self.position_offset) is not int or not 0 <= self.position_offset <= 64:
            raise LayoutError(
                f"spec: position_offset is {self.position_offset!r}; expected 0 to 64"
            )
        windows = self.attention_windows
        if not all(type(n) is int and 0 <= n <= MAX_POSITIONS for n in windows) or (
            windows and len(windows) != self.n_layers
        ):
            raise LayoutError("spec: attention_windows is not a list of sizes, one a layer")
        unrotated = self.unrotated_layers
        if not all(type(at) is int and 0 <= at < self.n_layers for at in unrotated) or (
            list(unrotated) != sorted(set(unrotated))
        ):
            raise LayoutError("spec: unrotated_layers is not a list of layers, ascending")
        if not isinstance(self.norm_eps, float) or not 0.0 < self.norm_eps < 1.0:
            raise LayoutError(f"spec: norm_eps is {self.norm_eps!r}")
        for name in ("embed_scale", "residual_scale", "logit_scale", "attention_scale"):
            if name != "attention_scale" or self.attention_scale is not None:
                check_number(name, getattr(self, name), MAX_SCALE)
        threshold = self.activation_threshold
        if not isinstance(threshold, float) or not 0.0 <= threshold <= MAX_SCALE:
            raise LayoutError(f"spec: activation_threshold is {threshold!r}")
        if threshold and self.activation != "fatrelu":
            raise LayoutError("spec: only fatrelu has an activation_threshold")

    def _check_ids(self) -> None:
        """`LayoutError` for ids of tokens that the vocabulary does not have."""
        given = {"bos_id": () if self.bos_id is None else (self.bos_id,), "eos_ids": self.eos_ids}
        for name, ids in given.items():
            for token in ids:
                if type(token) is not int or not 0 <= token < self.vocab_size:
                    raise LayoutError(
                        f"spec: {name} has {token!r:.40}; expected 0 to {self.vocab_size - 1}"
                    )

    def _check_choices(self) -> None:
        choices: dict[str, tuple[Any, ...]] = {
            "dtype": DTYPES,
            "resident_dtype": (None, *DTYPES),
            "norm_placement": ("pre", "post"),
            "norm": ("layer", "rms"),
            "block": ("sequential", "parallel"),
            "positions": ("learned", "rope"),
            "gate": get_args(Gate),
            "activation": get_args(Activation),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise LayoutError(
                    f"spec: {name} is {getattr(self, name)!r}; expected one of "
                    f"{', '.join(map(str, known))}"
                )
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise LayoutError(
                    f"spec: {name} is {getattr(self, name)!r}; expected true or false"
                )

    @property
    def row_bytes(self) -> int:
        """Bytes of one encoded row of `d_model` weights in a bundle."""
        return row_bytes(self.dtype, self.d_model)

    @property
    def matrix_dtype(self) -> DType:
        """Encoding of the resident matrices."""
        return self.resident_dtype or self.dtype

    @property
    def encoding_label(self) -> str:
        """How the weights are encoded, for people."""
        if self.matrix_dtype == self.dtype:
            return self.dtype
        return f"{self.dtype}, resident ones {self.matrix_dtype}"

    @property
    def activation_label(self) -> str:
        """What makes neurons zero, and where the gate lies if there is one, for people."""
        threshold = f" above {self.activation_threshold:g}" if self.activation_threshold else ""
        gate = {"none": "", "resident": ", gate in memory", "bundled": ", gate on flash"}[self.gate]
        return f"{self.activation}{threshold}{gate}"

    @property
    def bundle_bytes(self) -> int:
        """Bytes of one bundle without padding."""
        if self.experts is not None:
            experts = self.experts
            return expert_bytes(self.dtype, self.d_model, experts.d_ffn, bias=experts.bias)
        return self.neurons_per_bundle * self.rows_per_neuron * self.row_bytes

    @property
    def dense_layers(self) -> int:
        """The first so many layers, whose feed-forward layer is in memory and has no bundles."""
        return 0 if self.experts is None else self.experts.dense_layers

    @property
    def multiplied_share(self) -> float:
        """The share of a layer's bundles that a token of a prompt goes through: all neurons."""
        return self.experts.per_token / self.experts.n_experts if self.experts else 1.0

    @property
    def bundled_layers(self) -> int:
        """Layers whose feed-forward layer consists of bundles: all behind the dense ones."""
        return self.n_layers - self.dense_layers

    @property
    def bundles_per_layer(self) -> int:
        """Bundles that one feed-forward layer consists of."""
        return self.d_ffn // self.neurons_per_bundle

    @property
    def gated(self) -> bool:
        """Whether a neuron's output is a gate's times its up projection's."""
        return self.gate != "none"

    @property
    def sparse(self) -> bool:
        """Whether neurons are exactly zero for many inputs, and may then be left unread."""
        return self.experts is None and self.activation in SPARSE_ACTIVATIONS

    @property
    def selective(self) -> bool:
        """Whether a token needs only some bundles of a layer: active neurons, or chosen experts."""
        return self.sparse or self.experts is not None

    @property
    def bundle_noun(self) -> str:
        """What a bundle is, for people."""
        return "neuron" if self.experts is None else "expert"

    def attention_window(self, layer: int) -> int:
        """Tokens that the attention of a layer sees; 0 for all."""
        return self.attention_windows[layer] if self.attention_windows else 0

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the manifest."""
        values = dataclasses.asdict(self)
        for name in _LATER:
            # Versions that do not know the key read what they have always read.
            if not values[name]:
                del values[name]
        if self.experts is not None:
            own = values["experts"]
            for field in dataclasses.fields(MoeSpec):
                if field.name in _LATER_OF_EXPERTS and own[field.name] == field.default:
                    del own[field.name]
        return values

    @classmethod
    def from_json(cls, values: object) -> ModelSpec:
        """The spec that a manifest describes; `LayoutError` for a key absent, unknown or wrong."""
        known = known_fields(cls, values, "spec")
        for name in ("eos_ids", "attention_windows", "unrotated_layers"):
            numbers = known.get(name, ())
            if not isinstance(numbers, list | tuple) or not all(type(i) is int for i in numbers):
                raise LayoutError(f"spec: {name} is not a list of whole numbers")
            known[name] = tuple(numbers)
        for name in ("rope", "window_rope"):
            if known.get(name) is not None:
                known[name] = Rope(**known_fields(Rope, known[name], f"spec: {name}"))
        if known.get("experts") is not None:
            known["experts"] = MoeSpec(**known_fields(MoeSpec, known["experts"], "spec: experts"))
        # Version 0.1 had one key for all four biases.
        known.setdefault("attention_output_bias", known["attention_bias"])
        return cls(**known)
