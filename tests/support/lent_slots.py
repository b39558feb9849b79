"""A tiny model with so few slots that its prompts are read into some of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashllm.engine import loading
from flashllm.engine.local import Model, open_model
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.flash.layout import read_header
from flashllm.planning import plan, prefill_shape
from flashllm.planning.slot_allocation import RingLimits

BLOCK = 64
N_BUNDLES = 320
"""Of a layer of the fixture `sparse_model`."""


def shorten_blocks(patch: pytest.MonkeyPatch, directory: Path, *, has_spare: bool = False) -> None:
    """A layer of the tiny model is several blocks, and little room makes a ring of many.

    Without `has_spare`, prompts leave none of a chunk's memory, as if they were as long as one.
    """
    patch.setattr(loading, "interpreter_bytes", lambda: 200 << 20)
    patch.setattr(prefill_shape, "_BLOCK_BYTES", BLOCK * stride_of(directory))
    patch.setattr(plan, "PROMPT_RING", RingLimits(24, 2))
    if not has_spare:
        patch.setattr(prefill_shape.PrefillShape, "unused_bytes", lambda *_: 0)


def stride_of(directory: Path) -> int:
    """Bytes from one bundle to the next."""
    return read_header(directory / "ffn.bundles").stride


def short_of_slots(directory: Path) -> Model:
    """Opens with fewer slots than there are bundles, of which layers lend some."""
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        open_model(directory, memory=10 << 20)
    memory = caught.value.smallest_bytes + 3 * 150 * stride_of(directory)
    model = open_model(directory, memory=memory)
    assert sum(model.plan.slots_per_layer) < 3 * N_BUNDLES
    return model
