"""What a model is, by features and never by the name of its family.

One frozen description, made by the converter, stored in the manifest, read by the runtime.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from flashllm.errors import LayoutError

DType = Literal["f32", "f16", "bf16"]
DTYPE_BYTES: dict[str, int] = {"f32": 4, "f16": 2, "bf16": 2}

# Limits that no real model comes near; a header beyond them is damaged or hostile.
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 23
MAX_POSITIONS = 1 << 24


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Features of a decoder: sizes, order of its blocks, and what its feed-forward layer is.

    `d_model` is the width of the residual stream, `embed_dim` that of the token embedding (they
    differ where the checkpoint projects in and out). A neuron is `rows_per_neuron` rows of
    `d_model` weights: up and down, or gate, up and down.
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
    """Tokens that a context may hold."""
    position_offset: int
    """Rows of the table of learned positions that come before position 0."""
    dtype: DType
    """Encoding of the resident matrices and of the bundles."""
    norm_placement: Literal["pre", "post"]
    norm_affine: bool
    norm_eps: float
    final_norm: bool
    attention_bias: bool
    ffn_bias: bool
    tied_head: bool
    activation: Literal["relu"]
    rows_per_neuron: int = 2
    neurons_per_bundle: int = 1
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
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
        if self.dtype not in DTYPE_BYTES:
            raise LayoutError(
                f"spec: dtype is {self.dtype!r}; expected one of {sorted(DTYPE_BYTES)}"
            )
        if self.norm_placement not in ("pre", "post"):
            raise LayoutError(f"spec: norm_placement is {self.norm_placement!r}")
        if self.activation != "relu":
            raise LayoutError(f"spec: activation is {self.activation!r}; this version knows relu")
        if self.n_heads * self.head_dim != self.d_model or self.n_heads % self.n_kv_heads:
            raise LayoutError("spec: n_heads, n_kv_heads and head_dim do not fit d_model")
        if self.d_ffn % self.neurons_per_bundle:
            raise LayoutError("spec: neurons_per_bundle does not divide d_ffn")
        if not isinstance(self.norm_eps, float) or not 0.0 < self.norm_eps < 1.0:
            raise LayoutError(f"spec: norm_eps is {self.norm_eps!r}")

    @property
    def row_bytes(self) -> int:
        """Bytes of one encoded row of `d_model` weights."""
        return self.d_model * DTYPE_BYTES[self.dtype]

    @property
    def bundle_bytes(self) -> int:
        """Useful bytes of one bundle, padding apart."""
        return self.neurons_per_bundle * self.rows_per_neuron * self.row_bytes

    @property
    def bundles_per_layer(self) -> int:
        """Bundles that one feed-forward layer consists of."""
        return self.d_ffn // self.neurons_per_bundle

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the manifest."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: object) -> ModelSpec:
        """The spec that a manifest describes; `LayoutError` for a key absent, unknown or wrong."""
        if not isinstance(values, dict):
            raise LayoutError("spec: expected an object")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        if unknown:
            raise LayoutError(f"spec: unknown keys {unknown}; was it written by a newer version?")
        missing = sorted(
            name
            for name, field in fields.items()
            if field.default is dataclasses.MISSING and name not in values
        )
        if missing:
            raise LayoutError(f"spec: keys {missing} are missing")
        known = dict(values)
        for name in ("norm_affine", "final_norm", "attention_bias", "ffn_bias", "tied_head"):
            if not isinstance(known[name], bool):
                raise LayoutError(f"spec: {name} is {known[name]!r}; expected true or false")
        eos_ids = known.get("eos_ids", ())
        if not isinstance(eos_ids, list | tuple) or not all(type(i) is int for i in eos_ids):
            raise LayoutError("spec: eos_ids is not a list of whole numbers")
        known["eos_ids"] = tuple(eos_ids)
        bos_id = known.get("bos_id")
        if bos_id is not None and type(bos_id) is not int:
            raise LayoutError(f"spec: bos_id is {bos_id!r}")
        return cls(**known)
