"""Products of rows with tokens: against numpy, and the use that is made of what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flashllm import core
from flashllm.dtypes import DTYPES
from flashllm.flash.raw_tensor import RawTensor
from flashllm.model.products import Products
from flashllm.weight_cache.block_stream import Block
from tests.support.encodings import encode, rounded_input
from tests.support.specs import SPEC

ROWS, COLUMNS = 70, 96


@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_matrix_times_tokens(dtype: str, tokens: int) -> None:
    generator = np.random.default_rng(3)
    weight = generator.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    raw = RawTensor(encode(weight, dtype), dtype, weight.shape)
    x = generator.standard_normal((tokens, COLUMNS)).astype(np.float32)
    bias = generator.standard_normal(ROWS).astype(np.float32)
    found, moved = Products(SPEC, core.Kernels(), 1).with_matrices([raw, raw], [None, bias], x)
    read = np.stack([rounded_input(one, dtype) for one in x])
    expected = read.astype(np.float64) @ raw.floats().astype(np.float64).T
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.array_equal(moved, found + bias)


def bundles_of(dtype: str, count: int) -> tuple[np.ndarray, Block]:
    """Rows [bundles, rows of a neuron, d_model] of a block that lies in another order, and it."""
    spec = replace(SPEC, dtype=dtype)
    generator = np.random.default_rng(7)
    rows, wide = spec.rows_per_neuron, spec.d_model
    weights = generator.standard_normal((count * rows, wide)).astype(np.float32)
    raw = RawTensor(encode(weights, dtype), dtype, weights.shape)
    stride = -(-rows * spec.row_bytes // 512) * 512
    memory = np.full((2 * count, stride), 0x5A, dtype=np.uint8)
    positions = generator.permutation(2 * count)[:count].astype(np.int32)
    memory[positions, : rows * spec.row_bytes] = raw.raw.reshape(count, -1)
    block = Block(128, memory.reshape(-1), positions, stride)
    return raw.floats().reshape(count, rows, wide).astype(np.float64), block


@pytest.mark.parametrize("dtype", ["f16", "bf16", "int8", "int4", "mxfp4"])
@pytest.mark.parametrize("silent", [True, False])
def test_a_block_times_tokens(dtype: str, silent: bool) -> None:
    spec, kernels = replace(SPEC, dtype=dtype), core.Kernels()
    weights, block = bundles_of(dtype, 100)
    products = Products(spec, kernels, 100)
    generator = np.random.default_rng(9)
    x = generator.standard_normal((5, spec.d_model), np.float32)
    scale = np.abs(weights).sum(axis=-1).max() / 8000  # rounding to 14 bits
    for row in range(spec.rows_per_neuron):
        found = products.with_rows(block, row, x)
        expected = x.astype(np.float64) @ weights[:, row].T
        np.testing.assert_allclose(found, expected, rtol=0, atol=scale * 4)
    hidden = generator.standard_normal((5, 100), np.float32)
    if silent:
        hidden = np.maximum(hidden, 0)
    out = np.ones((5, spec.d_model), np.float32)
    products.add_down(block, hidden, out)
    expected = 1 + hidden.astype(np.float64) @ weights[:, -1]
    np.testing.assert_allclose(out, expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8", "int4", "mxfp4"])
def test_a_token_has_the_same_bits_alone_and_among_others(dtype: str) -> None:
    spec, kernels = replace(SPEC, dtype=dtype), core.Kernels()
    _, block = bundles_of(dtype, 100)
    products = Products(spec, kernels, 100)
    generator = np.random.default_rng(11)
    x = generator.standard_normal((40, spec.d_model), np.float32)
    hidden = np.maximum(generator.standard_normal((40, 100), np.float32), 0)
    together, down = products.with_rows(block, 0, x), np.zeros((40, spec.d_model), np.float32)
    products.add_down(block, hidden, down)
    for token in range(40):
        one = slice(token, token + 1)
        assert np.array_equal(products.with_rows(block, 0, x[one]), together[one])
        alone = np.zeros((1, spec.d_model), np.float32)
        products.add_down(block, hidden[one], alone)
        assert np.array_equal(alone, down[one])
