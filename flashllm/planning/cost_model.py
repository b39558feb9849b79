"""What a token moves through DRAM, and how long that takes. Pure arithmetic.

The rates are those of our own kernels, from a profile; their keys are defined below.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from flashllm.flash.tensor_table import EMBEDDING, POSITIONS, resident_bytes, tensor_table
from flashllm.hardware.curves import MachineRates
from flashllm.kv_cache.layout import kv_row_bytes
from flashllm.options import DEFAULT_KV_DTYPE, KvDType
from flashllm.spec import ModelSpec

NARROW = "{} narrow"
"""Key of the rate of a matrix with rows of NARROW_ROW_BYTES, like a predictor's up part."""
NARROW_ROW_BYTES = 256
CHUNK = "{} chunk"
"""Key of the rate of a prompt's products: encoded bytes × tokens per second, at all threads."""
CHUNK_TOKENS = 128
"""The number of tokens for which that rate is measured."""
OWN = "{} own"
"""Key of the rate at which tokens of a prompt are multiplied with their own rows of a block, which
caches have from one token to the next: bytes of these rows × tokens per second."""


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """Weights in DRAM that every decoded token reads, by what reads them."""

    attention: int
    """Projections of all layers, with norms and biases."""
    head: int
    """The matrix that makes logits: the embeddings where it is tied to them."""
    gate: int
    """Gates that stay in memory."""
    predictors: int

    @classmethod
    def of(cls, spec: ModelSpec, predictors: int = 0) -> ResidentBytes:
        """The weights of a model of this shape, with `predictors` bytes of predictors."""
        parts = {"attention": 0, "head": 0, "gate": 0}
        for name, shape in tensor_table(spec).items():
            nbytes = resident_bytes(name, shape, spec)
            if name == EMBEDDING:
                # An embedding is one row; a head that is tied to the embeddings reads all rows.
                parts["head"] += nbytes if spec.tied_head else 0
            elif name == POSITIONS:
                continue
            elif name.startswith(("head.", "embed.", "final_norm.")):
                parts["head"] += nbytes
            else:
                parts["gate" if name.endswith(".ffn.gate.weight") else "attention"] += nbytes
        return cls(**parts, predictors=predictors)

    @classmethod
    def behind_last(cls, spec: ModelSpec, *, queries: bool) -> ResidentBytes:
        """Of these, what the last layer needs for tokens that logits are asked for, and no others.

        All tokens of a prompt leave keys and values there; who asks for the last one's logits needs
        nothing else of the others (`model.schedule`), not even `queries`, though all have them. The
        head apart.
        """
        parts, last = {"attention": 0, "gate": 0}, f"layers.{spec.n_layers - 1}."
        for_all = tuple(f"{last}attn.{name}." for name in ("k", "v", *(() if queries else ("q",))))
        for name, shape in tensor_table(spec).items():
            if not name.startswith(last) or name.startswith(for_all):
                continue
            is_gate = name.endswith(".ffn.gate.weight")
            parts["gate" if is_gate else "attention"] += resident_bytes(name, shape, spec)
        return cls(**parts, head=0, predictors=0)


@dataclass(frozen=True, slots=True)
class DramBytes:
    """Bytes that one decoded token moves through DRAM."""

    attention: float
    head: float
    predictors: float
    gate: float
    ffn: float
    """Rows of the used neurons, read."""
    kv: float
    """Keys and values of the context, read, and one token's written."""
    loaded: float
    """Bundles that came from flash, written."""

    @property
    def total(self) -> float:
        """Their sum; computed for every token that the chat shows, so kept simple."""
        weights = self.attention + self.head + self.predictors + self.gate + self.ffn
        return float(weights + self.kv + self.loaded)


def dram_bytes_a_token(
    spec: ModelSpec,
    resident: ResidentBytes,
    bundles_used: float,
    bundles_loaded: float,
    bundle_bytes: int,
    context_tokens: float,
    *,
    bundles_active: float | None = None,
    kv_dtype: KvDType = DEFAULT_KV_DTYPE,
) -> DramBytes:
    """What a token moves that uses `bundles_used` bundles of all layers and loads `bundles_loaded`.

    Only `bundles_active` bundles have their down row read; the others' outputs are zero.
    """
    rows = spec.rows_per_neuron
    active = bundles_used if bundles_active is None else min(bundles_active, bundles_used)
    row_bytes = bundle_bytes / rows
    return DramBytes(
        attention=resident.attention,
        head=resident.head,
        predictors=resident.predictors,
        gate=resident.gate,
        ffn=((rows - 1) * bundles_used + active) * row_bytes,
        kv=kv_bytes_a_token(spec, context_tokens, kv_dtype),
        loaded=bundles_loaded * bundle_bytes,
    )


def kv_bytes_a_token(spec: ModelSpec, context_tokens: float, dtype: KvDType) -> float:
    """Bytes of keys and values that a token after `context_tokens` reads, and that it writes."""
    width = 2 * spec.n_kv_heads * kv_row_bytes(spec, dtype)
    seen = 0.0
    for layer in range(spec.n_layers):
        window = spec.attention_window(layer)
        seen += min(context_tokens, window) if window else context_tokens
    return width * (seen + spec.n_layers)


@dataclass(frozen=True, slots=True)
class DramSeconds:
    """How long one token's bytes take, by component."""

    attention: float
    head: float
    predictors: float
    gate: float
    ffn: float
    kv: float

    @property
    def total(self) -> float:
        """Their sum; nothing here overlaps."""
        return float(sum(dataclasses.astuple(self)))


@dataclass(frozen=True, slots=True)
class Encodings:
    """Encodings of the weights that a token uses."""

    bundles: str
    resident: str
    predictors: str = "f16"

    @classmethod
    def of(cls, spec: ModelSpec, predictors: str = "f16") -> Encodings:
        """The encodings of a model; predictors have one of their own."""
        return cls(spec.dtype, spec.matrix_dtype, predictors)


def dram_seconds(rates: MachineRates, encodings: Encodings, moved: DramBytes) -> DramSeconds:
    """Times of a decoded token's bytes.

    Writing loaded bundles is part of reading them from flash. All threads read keys and values.
    """
    matvec = rates.kernel_bytes_per_second
    whole, predictors = matvec[encodings.resident], encodings.predictors
    return DramSeconds(
        attention=moved.attention / whole,
        head=moved.head / whole,
        predictors=moved.predictors / matvec.get(NARROW.format(predictors), matvec[predictors]),
        gate=moved.gate / whole,
        ffn=moved.ffn / rates.rows_bytes_per_second[encodings.bundles],
        kv=moved.kv / rates.dram_bytes_per_second[max(rates.dram_bytes_per_second)],
    )


def rates_suffice(rates: MachineRates, encodings: Encodings) -> bool:
    """Whether the profile has all rates that `dram_seconds` needs for these encodings."""
    return bool(
        rates.dram_bytes_per_second
        and {encodings.resident, encodings.predictors} <= rates.kernel_bytes_per_second.keys()
        and encodings.bundles in rates.rows_bytes_per_second
    )


def chunk_seconds(
    rates: MachineRates, dtype: str, weight_bytes: float, tokens: int
) -> float | None:
    """Seconds of a prompt's products with `weight_bytes` of weights; None if no rate is known."""
    rate = rates.kernel_bytes_per_second.get(CHUNK.format(dtype))
    return None if rate is None else weight_bytes * tokens / rate


def own_rows_seconds(
    rates: MachineRates,
    dtype: str,
    weight_bytes: float,
    tokens: int,
    used_share: float,
    *,
    by_blocks: bool = True,
) -> float:
    """Seconds of a prompt's products where each token is multiplied with its own rows alone.

    These are `used_share` of `weight_bytes`, which come block `by_blocks`: caches have a block's
    rows from one token to the next, but not those of a layer. Older profiles have the rate of rows
    from memory alone; `KeyError` where none is known.
    """
    rate = rates.kernel_bytes_per_second.get(OWN.format(dtype)) if by_blocks else None
    return used_share * weight_bytes * tokens / (rate or rates.rows_bytes_per_second[dtype])
