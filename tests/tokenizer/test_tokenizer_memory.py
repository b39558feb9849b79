"""What a tokenizer takes of memory, held against what plans count for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flashllm.planning.tokenizer_memory import BYTES_A_TOKEN, READING_SHARE
from flashllm.units import MIB

TOKENS = 60_000
LOAD = """
import sys
from pathlib import Path
import tokenizers
from flashllm.system import malloc
from flashllm.system.memory import rss_bytes, rss_peak_bytes
from flashllm.tokenizer.tokenizer import load_tokenizer
malloc.keep_heap_flat()
before = rss_bytes()
tokenizer = load_tokenizer(Path(sys.argv[1]))
malloc.give_back_free_memory()
assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
print(rss_bytes() - before, rss_peak_bytes() - before, tokenizer.vocab_size)
"""


def write_byte_pairs(directory: Path, tokens: int) -> None:
    """A byte-level vocabulary of so many tokens, each merged of two that came before it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    generator = np.random.default_rng(0)
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab, merges = {piece: token for token, piece in enumerate(pieces)}, []
    while len(vocab) < tokens:
        for left, right in generator.integers(0, min(len(pieces), 8_000), (tokens, 2)).tolist():
            piece = pieces[left] + pieces[right]
            if len(piece) <= 12 and piece not in vocab and len(vocab) < tokens:
                vocab[piece] = len(vocab)
                pieces.append(piece)
                merges.append((pieces[left], pieces[right]))
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_a_tokenizer_takes_what_a_plan_counts_for_it(tmp_path: Path) -> None:
    """All that reading it took besides is free again, and given back."""
    write_byte_pairs(tmp_path, TOKENS)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True, check=True
    )
    taken, most, tokens = map(int, done.stdout.split())
    assert tokens == TOKENS
    assert taken < TOKENS * BYTES_A_TOKEN + 2 * MIB
    assert taken > TOKENS * BYTES_A_TOKEN / 2
    assert most < READING_SHARE * TOKENS * BYTES_A_TOKEN + 2 * MIB
