"""int8, int4 and mxfp4 against the float model that converted files hold, and against the source.

What rounding costs is in the files: given their values, transformers and we compute the same, but
for the 14 bits to which a single token's inputs are rounded.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flashllm.convert import convert, verify

from flashllm.engine.loading import load_decoder
from tests.support.compare import check_prefill, oracle, prompt
from tests.support.dequantised import give_back
from tests.support.tiny import tiny, tiny_opt

STEP_TOLERANCE = 3e-3
"""Of logits of about 3: 14 bits of each group's largest input, once a matrix."""
ERROR_MAX = {"int8": 0.02, "int4": 0.35}
"""Of logits, relative to their spread, on random weights, which are harder than trained ones."""

GATED: dict[str, Any] = {"intermediate_size": 83, "num_key_value_heads": 2}
MODELS: dict[str, Any] = {
    "opt, 36 wide": lambda: tiny_opt(hidden_size=36, word_embed_proj_dim=36, ffn_dim=83),
    "opt, 64 wide, norms last, narrow embeddings, own head": lambda: tiny_opt(
        hidden_size=64,
        word_embed_proj_dim=40,
        do_layer_norm_before=False,
        tie_word_embeddings=False,
    ),
    "llama, resident gate": lambda: tiny("llama", **GATED, hidden_act="relu"),
    "llama, gate on flash": lambda: tiny("llama", **GATED, hidden_act="silu"),
}
ENCODINGS = [("int8", None), ("int4", None), ("int4", "int8"), ("int8", "f16"), ("mxfp4", "f16")]


@pytest.fixture(scope="module", params=MODELS)
def source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    model = MODELS[request.param]()
    directory = tmp_path_factory.mktemp("source") / "checkpoint"
    model.save_pretrained(directory)
    return model, directory


def logits_step_by_step(directory: Path, select: str, ids: list[int]) -> np.ndarray:
    decoder, _, store = load_decoder(directory, select=select, kv_dtype="f32")
    with store:
        steps = [decoder.prefill(ids[:3])]
        return np.stack(steps + [decoder.decode(token) for token in ids[3:]])


@pytest.mark.parametrize(("dtype", "resident"), ENCODINGS)
def test_logits_are_those_of_the_rounded_weights(
    source: tuple[Any, Path], tmp_path: Path, dtype: str, resident: str | None
) -> None:
    model, checkpoint = source
    out = tmp_path / "out"
    convert(checkpoint, out, dtype=dtype, resident_dtype=resident)
    assert verify(out).ok
    rounded = oracle(give_back(copy.deepcopy(model), out))
    for length in (5, 40):
        check_prefill(rounded, out, length, STEP_TOLERANCE)
    ids = prompt(24, model.config.vocab_size)
    expected = rounded(ids)
    decoder, _, store = load_decoder(out)
    store.close()
    selects = ["all"]
    if decoder.spec.sparse:
        selects += ["gate", "oracle"] if decoder.spec.gate == "resident" else ["oracle"]
    for select in selects:
        found = logits_step_by_step(out, select, ids)
        np.testing.assert_allclose(found, expected[2:], atol=STEP_TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rounding_costs_what_it_may(source: tuple[Any, Path], tmp_path: Path, dtype: str) -> None:
    model, checkpoint = source
    convert(checkpoint, tmp_path / "out", dtype=dtype)
    ids = prompt(40, model.config.vocab_size)
    exact = oracle(model)(ids)
    decoder, _, store = load_decoder(tmp_path / "out", select="all")
    with store:
        found = decoder.logits(ids)
    error = float(np.sqrt(np.mean((found - exact) ** 2)) / exact.std())
    print(f"{dtype}: {error:.4f} of the logits' spread")
    assert 0 < error < ERROR_MAX[dtype]


def test_int8_errs_less_than_int4(source: tuple[Any, Path], tmp_path: Path) -> None:
    model, checkpoint = source
    ids = torch.tensor([prompt(40, model.config.vocab_size)])
    errors = {}
    for dtype in ("int8", "int4"):
        convert(checkpoint, tmp_path / dtype, dtype=dtype)
        rounded = give_back(copy.deepcopy(model), tmp_path / dtype)
        with torch.no_grad():
            errors[dtype] = float((rounded(ids).logits - model(ids).logits).abs().mean())
    assert 8 * errors["int8"] < errors["int4"]
