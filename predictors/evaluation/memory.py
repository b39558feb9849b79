"""Memory that an evaluation takes besides the model: a part of the ceiling. Pure arithmetic."""

from __future__ import annotations

from flashllm.options import DEFAULT_CONTEXT
from flashllm.planning.prefill_shape import PrefillShape
from flashllm.spec import ModelSpec
from flashllm.units import MIB

from .friends import sample_size
from .likelihood import KEPT_BYTES_MAX

_TAP_BYTES = 24
"""Of a neuron of a token while a layer is looked at: margins in tiles and whole, those that count,
the active, chosen and missed ones, and the flags of which friends are counted."""
_LOGIT_COPIES = 6
_LOGIT_BYTES = 4 * MIB
"""A block of logits, of which log-probabilities are taken in a few steps."""
_COUNTS_BYTES = 40
"""Of a neuron of a layer: last uses in each mode, uses, sums."""
_REPORT_COPIES = 3
"""Of one layer's friends while they are ranked."""
_TEXT_BYTES = 16 * MIB
"""The text and its ids."""


def chunk_tokens(spec: ModelSpec, stride: int) -> int:
    """Tokens that an evaluation computes together: few, since it looks at each neuron of each."""
    return PrefillShape.of(spec, stride).tokens


def evaluation_bytes(spec: ModelSpec, stride: int) -> int:
    """Bytes that `evaluate_text` and `evaluate_tasks` take besides the model."""
    tokens = chunk_tokens(spec, stride)
    friends = 4 * sample_size(spec.n_layers, spec.d_ffn) * spec.d_ffn
    context = min(DEFAULT_CONTEXT, spec.max_positions)
    kept = min(KEPT_BYTES_MAX, 4 * context * spec.vocab_size)
    return (
        _TEXT_BYTES
        + tokens * spec.d_ffn * _TAP_BYTES
        + spec.n_layers * (friends + spec.d_ffn * _COUNTS_BYTES)
        + _REPORT_COPIES * friends
        + kept
        + _LOGIT_COPIES * _LOGIT_BYTES
    )
