"""What a tokenizer takes once it is loaded, from the size of its vocabulary alone."""

from __future__ import annotations

from flashllm.spec import ModelSpec
from flashllm.units import MIB

LIBRARY_BYTES = 8 * MIB
"""Pages of the library's code, and what it and the modules around it keep for themselves."""
BYTES_A_TOKEN = 448
"""Of byte pairs with 60, 151 and 256 thousand tokens 467, 354 and 365 were measured, 2 MiB for the
first among them, and of sentencepiece's with 32 thousand 360: each piece is there by its id and by
its text, and once more in a rule."""
READING_SHARE = 3
"""So many times as much is taken while it is read: 2.9 times by 151 thousand tokens."""


def tokenizer_bytes(spec: ModelSpec) -> int:
    """Resident memory of a tokenizer for a model's vocabulary."""
    return LIBRARY_BYTES + BYTES_A_TOKEN * spec.vocab_size
