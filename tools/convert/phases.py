"""The phases of a conversion, and what each has to move and to compute.

For what is said before it begins, and for the time that all of it will take. Names are those with
which `Progress.start` is called, without numbers of parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from flashllm.flash.layout import BundleHeader
from flashllm.flash.tensor_table import tensor_table
from flashllm.planning.shape_estimate import PREDICTOR_RANK
from flashllm.spec import ModelSpec

RESIDENT = "resident weights"
BUNDLES = "feed-forward bundles"
HASHING = "hashing the source"
REORDERING = "writing in order"
RECORDING = "recording activations"
TRAINING = "training predictors"
JUDGING = "perplexity"
MEASURING = "measuring activity"
TRACING = "recording which neurons are read"

TOKENS_MAX = 375_000
TRAIN_SHARE = 0.8
JUDGED_TOKENS_MAX = 16_384
JUDGED_SHARE = 0.1
JUDGED_TIMES = 4
"""The exact model and the predicted one, on the text that decides and on that which reports."""
TOKENS_SEEN, PASSES_MIN, PASSES_MAX = 1_500_000, 4, 16
TRACE_BITS_BYTES = 256 << 20
"""As `flashllm.predictors` has them, which is loaded for training only: a test compares them."""


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """What a phase takes in all its parts."""

    name: str
    moved_bytes: float = 0.0
    """Read and written."""
    operations: float = 0.0
    """Multiplications and additions of floating-point numbers."""
    times: int = 1
    """How often it starts."""


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion will do; nothing was written yet."""

    source: Path
    destination: Path
    spec: ModelSpec
    """Of the model that is made."""
    source_bytes: int
    """To be read."""
    written_bytes: int
    """Of the model that is made, its predictors as large as they are usually."""
    scratch_bytes: int
    """Needed besides until it is complete."""
    free_bytes: int
    """On the file system of the destination."""
    phases: tuple[PhaseWork, ...]
    requantised: tuple[str, ...] = ()
    """Types of weights that are rounded a second time."""


@dataclass(frozen=True, slots=True)
class Learning:
    """What a conversion learns from a calibration text of up to `tokens` tokens."""

    tokens: int = 0
    trains: bool = False
    measures: bool = False
    orders: bool = False


def conversion_phases(
    spec: ModelSpec, source_bytes: int, written_bytes: int, learning: Learning
) -> tuple[PhaseWork, ...]:
    """The phases of converting `source_bytes` of a checkpoint into a model of this spec."""
    header = BundleHeader.for_spec(spec, bytes(16))
    bundles = header.file_bytes
    share = bundles / max(written_bytes, bundles, 1)
    phases = [
        PhaseWork(RESIDENT, (1 - share) * (source_bytes + written_bytes)),
        PhaseWork(BUNDLES, share * source_bytes + bundles),
        # Most of it was done meanwhile: what is left is the last tensors of each file.
        PhaseWork(HASHING, 0.05 * source_bytes),
        *learning_phases(spec, learning),
    ]
    if learning.orders:
        phases += ordering_phases(spec, written_bytes, learning.tokens)
    return tuple(phases)


def learning_phases(spec: ModelSpec, learning: Learning) -> tuple[PhaseWork, ...]:
    """What training predictors, or measuring what a gate lets through, takes."""
    tokens = min(learning.tokens, TOKENS_MAX)
    forward = 2.0 * weights(spec) * tokens
    if learning.trains:
        judged = min(JUDGED_TOKENS_MAX, JUDGED_SHARE * tokens)
        return (
            PhaseWork(RECORDING, operations=forward),
            PhaseWork(TRAINING, operations=spec.n_layers * training_operations(spec, tokens)),
            PhaseWork(
                JUDGING,
                operations=JUDGED_TIMES * 2.0 * weights(spec) * judged,
                times=JUDGED_TIMES,
            ),
        )
    if learning.measures:
        return (PhaseWork(MEASURING, operations=forward),)
    return ()


def ordering_phases(spec: ModelSpec, model_bytes: int, tokens: int) -> tuple[PhaseWork, ...]:
    """What it takes to learn an order of neurons and to write a model in it."""
    token_bytes = spec.n_layers * math.ceil(spec.d_ffn / 8)
    tokens = min(tokens, TOKENS_MAX, TRACE_BITS_BYTES // max(token_bytes, 1))
    return (
        PhaseWork(TRACING, operations=2.0 * weights(spec) * tokens),
        PhaseWork(REORDERING, moved_bytes=2.0 * model_bytes),
    )


def training_operations(spec: ModelSpec, tokens: int) -> float:
    """Of one layer's predictor."""
    train = TRAIN_SHARE * tokens
    passes = min(PASSES_MAX, max(PASSES_MIN, round(TOKENS_SEEN / max(train, 1))))
    rank = min(PREDICTOR_RANK, spec.d_model)
    return 6.0 * rank * (spec.d_model + spec.d_ffn) * train * passes


def weights(spec: ModelSpec) -> float:
    """Numbers in all weights that a token is multiplied with."""
    resident = sum(
        math.prod(shape) for name, shape in tensor_table(spec).items() if "embed" not in name
    )
    bundled = spec.n_layers * spec.d_ffn * spec.rows_per_neuron * spec.d_model
    return float(resident + bundled)
