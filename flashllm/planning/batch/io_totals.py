"""Bytes that a block moves, and how many rows fit, in the zig-zag and the diagonal schedule.

Source: FlexGen, arXiv 2303.06865, A.2, with everything placed in DRAM and computed on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashllm.planning.batch.policy import Workload
from flashllm.planning.batch.shape import F16_BYTES, BatchShape


@dataclass(frozen=True, slots=True)
class IoTotals:
    """Bytes of a whole block between DRAM and device."""

    weights: float
    activations: float
    kv: float


def zigzag_totals(shape: BatchShape, work: Workload, rows: int) -> IoTotals:
    """What a block of `rows` moves in the zig-zag schedule: weights once a token."""
    prompt, new = work.prompt_tokens, work.new_tokens
    hidden = F16_BYTES * shape.d_model * rows * shape.n_layers
    seen = prompt * new + new * (new - 1) / 2
    return IoTotals(
        weights=new * shape.weight_bytes,
        activations=2 * hidden * (prompt + new - 1),
        kv=shape.kv_bytes * rows * shape.n_layers * seen,
    )


def zigzag_rows(shape: BatchShape, work: Workload, memory_bytes: float) -> float:
    """bls1: rows whose keys and values, all at their longest, fit beside one layer's weights."""
    prompt, new = work.prompt_tokens, work.new_tokens
    row = F16_BYTES * shape.d_model + shape.kv_bytes * shape.n_layers * (prompt + new)
    return (memory_bytes - shape.layer_bytes) / row


def diagonal_rows(shape: BatchShape, work: Workload, memory_bytes: float) -> float:
    """bls2: the same of the diagonal schedule, whose rows are at all lengths at once."""
    prompt, new = work.prompt_tokens, work.new_tokens
    tokens = (2 * prompt + new) * (new - 1) / (2 * new)
    row = F16_BYTES * shape.d_model + shape.kv_bytes * shape.n_layers * tokens
    return (memory_bytes - shape.layer_bytes) / row
