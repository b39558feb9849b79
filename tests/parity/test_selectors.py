"""Where the selector is exact nothing else may change the answer: bit for bit, on a trained gate.

The oracle computes every neuron and keeps those that are not zero; the resident gate asks only
itself; `all` computes everything. Ceilings, windows and threads change what is read, and no bit.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert

from flashllm.engine.loading import load_decoder
from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.flash.layout import read_header
from flashllm.flash.manifest import read_manifest
from flashllm.weight_cache.counters import StreamCounters
from tests.support.dequantised import give_back
from tests.support.gated import sequences, trained_gated

TOKENS = 60
Model = tuple[Any, Path]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Model:
    model, before, after = trained_gated()
    assert after < 0.1 * before, "it has learned what it was taught"
    source = tmp_path_factory.mktemp("gated") / "source"
    model.save_pretrained(source)
    return model, source


@pytest.fixture(scope="module", params=["f32", "int8", "int4"])
def trained(
    request: pytest.FixtureRequest, checkpoint: Model, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    """What was trained, and what it becomes in each precision."""
    model, source = checkpoint
    out = tmp_path_factory.mktemp("converted") / request.param
    convert(source, out, dtype=request.param)
    return model, out


def prompts() -> list[list[int]]:
    return [row[:12].tolist() for row in sequences(4, 12, seed=99)]


def decode(directory: Path, **settings: Any) -> tuple[np.ndarray, StreamCounters]:
    """Logits [prompts, tokens, vocab] of greedy answers, and what was read for them."""
    decoder, _, store = load_decoder(directory, **settings)
    found = []
    with store:
        for prompt in prompts():
            logits = [decoder.prefill(prompt)]
            while len(logits) < TOKENS:
                logits.append(decoder.decode(int(np.argmax(logits[-1]))))
            found.append(np.stack(logits))
        return np.stack(found), decoder.pool.counters


def smallest(directory: Path, **settings: Any) -> int:
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        load_decoder(directory, memory=1 << 20, **settings)
    return caught.value.smallest_bytes + (8 << 20)


@pytest.fixture(scope="module")
def expected(trained: Model) -> np.ndarray:
    return decode(trained[1], select="oracle")[0]


@pytest.mark.parametrize("select", ["gate", "all", None])
def test_selectors_agree_with_the_oracle(
    trained: Model, expected: np.ndarray, select: str | None
) -> None:
    found, counters = decode(trained[1], select=select)
    assert np.array_equal(found, expected)
    everything = 4 * (TOKENS - 1) * 2 * 192
    # The gate is the default, and asks for no more than what it lets through.
    share = (counters.hits + counters.misses) / everything
    assert share == 1.0 if select == "all" else 0.1 < share < 0.7


@pytest.mark.parametrize(
    "settings",
    [
        {"select": "gate", "window": 1},
        {"select": "gate", "window": 50},
        {"select": "gate", "io_threads": 1},
        {"select": "gate", "direct": False},
        {"select": "gate", "least": True},
        {"select": "oracle", "least": True},
        {"select": "all", "least": True},
        {"select": "all", "io_threads": 1},
    ],
    ids=str,
)
def test_settings_change_no_bit(
    trained: Model, expected: np.ndarray, settings: dict[str, Any]
) -> None:
    assert np.array_equal(decode(trained[1], **settings)[0], expected)


def test_all_pins_what_the_ceiling_allows(trained: Model, expected: np.ndarray) -> None:
    """From nothing to everything, in steps of a block a layer."""
    hits = []
    stride = read_header(trained[1] / "ffn.bundles").stride
    for blocks in (0, 1, 2, 3):
        memory = smallest(trained[1], select="all") + blocks * 192 * stride
        found, counters = decode(trained[1], select="all", memory=memory)
        assert np.array_equal(found, expected)
        hits.append(counters.hits)
    assert hits == sorted(hits)
    assert hits[-1] > 0


def test_tokens_are_those_of_transformers(trained: Model, expected: np.ndarray) -> None:
    model, directory = trained
    if read_manifest(directory).spec.dtype == "f32":
        reference = model
    else:
        reference = give_back(copy.deepcopy(model), directory)
    for prompt, logits in zip(prompts(), expected, strict=True):
        with torch.no_grad():
            ids = reference.generate(
                torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None
            )
        assert ids[0, len(prompt) :].tolist() == logits.argmax(axis=1).tolist()


def test_predicted_is_refused_with_the_way_out(trained: Model) -> None:
    with pytest.raises(UsageError, match="--select gate, which is exact"):
        load_decoder(trained[1], select="predicted")
