"""What a token moves through DRAM, and how long that takes. Pure arithmetic, no torch.

The rates are those of our own kernels, as a profile has them; what they are keyed by is below.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from flashllm.flash.tensor_table import resident_bytes, tensor_table
from flashllm.hardware.curves import MachineRates
from flashllm.kv_cache.layout import kv_row_bytes
from flashllm.options import DEFAULT_KV_DTYPE, KvDType
from flashllm.spec import ModelSpec

NARROW = "{} narrow"
"""Key of the rate of a matrix with rows of NARROW_ROW_BYTES, as the up part of a predictor has."""
NARROW_ROW_BYTES = 256
CHUNK = "{} chunk"
"""Key of the rate of a prompt's products: encoded bytes × tokens per second, at all threads."""
CHUNK_ONE_THREAD = "{} chunk, one thread"
CHUNK_TOKENS = 128
"""How many tokens that rate is measured with."""


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
        """Those of a model of this shape, `predictors` bytes of predictors among them."""
        parts = {"attention": 0, "head": 0, "gate": 0}
        for name, shape in tensor_table(spec).items():
            nbytes = resident_bytes(name, shape, spec)
            if name == "embed.weight":
                # Of the embeddings one row is looked up; as a head all of them are read.
                parts["head"] += nbytes if spec.tied_head else 0
            elif name == "embed.positions":
                continue
            elif name.startswith(("head.", "embed.", "final_norm.")):
                parts["head"] += nbytes
            else:
                parts["gate" if name.endswith(".ffn.gate.weight") else "attention"] += nbytes
        return cls(**parts, predictors=predictors)


@dataclass(frozen=True, slots=True)
class DramBytes:
    """Bytes that one decoded token moves through DRAM."""

    attention: float
    head: float
    predictors: float
    gate: float
    ffn: float
    """Rows of the neurons used, read."""
    kv: float
    """Keys and values of the context, read, and one token's written."""
    loaded: float
    """Bundles that came from flash, written."""

    @property
    def total(self) -> float:
        """All of them; told of every token while a chat shows it, so without detours."""
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
    """What a token moves that uses so many bundles of all layers, and loads so many of them.

    Of bundles that turn out to be zero, all but `bundles_active`, the down row is never read.
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
    """Keys and values that a token after `context_tokens` reads, and the one pair it writes."""
    width = 2 * spec.n_kv_heads * kv_row_bytes(spec, dtype)
    seen = 0.0
    for layer in range(spec.n_layers):
        window = spec.attention_window(layer)
        seen += min(context_tokens, window) if window else context_tokens
    return width * (seen + spec.n_layers)


@dataclass(frozen=True, slots=True)
class DramSeconds:
    """How long one token's bytes take, by who moves them, one after the other."""

    attention: float
    head: float
    predictors: float
    gate: float
    ffn: float
    kv: float

    @property
    def total(self) -> float:
        """All of them; nothing of this overlaps."""
        return float(sum(dataclasses.astuple(self)))


@dataclass(frozen=True, slots=True)
class Encodings:
    """How the weights are encoded that a token goes through."""

    bundles: str
    resident: str
    predictors: str = "f16"

    @classmethod
    def of(cls, spec: ModelSpec, predictors: str = "f16") -> Encodings:
        """Those of a model; predictors have their own."""
        return cls(spec.dtype, spec.matrix_dtype, predictors)


def dram_seconds(rates: MachineRates, encodings: Encodings, moved: DramBytes) -> DramSeconds:
    """Times of a decoded token's bytes; writing what was loaded is part of reading it from flash.

    Keys and values go through all threads.
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
    """Whether there are all the rates that `dram_seconds` goes by for weights encoded so."""
    return bool(
        rates.dram_bytes_per_second
        and {encodings.resident, encodings.predictors} <= rates.kernel_bytes_per_second.keys()
        and encodings.bundles in rates.rows_bytes_per_second
    )


def chunk_seconds(
    rates: MachineRates, dtype: str, weight_bytes: float, tokens: int, one_thread: bool
) -> float | None:
    """Seconds of a prompt's products with so many bytes of weights; None where no rate is known."""
    key = (CHUNK_ONE_THREAD if one_thread else CHUNK).format(dtype)
    rate = rates.kernel_bytes_per_second.get(key)
    return None if rate is None else weight_bytes * tokens / rate
