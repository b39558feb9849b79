"""Products of rows with tokens: against numpy, and the use that is made of what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashllm import core
from flashllm.flash.raw_tensor import RawTensor
from flashllm.model.products import TokenOrChunkProducts
from tests.support.encodings import encode, rounded_input

ROWS, COLUMNS, BLOCK_ROWS = 70, 96, 16


@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int8", "int4"])
def test_a_matrix_times_tokens(dtype: str, tokens: int) -> None:
    generator = np.random.default_rng(3)
    weight = generator.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    raw = RawTensor(encode(weight, dtype), dtype, weight.shape)
    x = generator.standard_normal((tokens, COLUMNS)).astype(np.float32)
    kernels = core.Kernels()
    found = TokenOrChunkProducts(kernels, BLOCK_ROWS).with_matrix(raw, torch.from_numpy(x))
    read = rounded_input(x[0], dtype)[None] if tokens == 1 else x  # as the kernels of a token do
    expected = read.astype(np.float64) @ raw.floats().astype(np.float64).T
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-4)


def test_memory_for_decoded_rows_serves_matrices_of_all_widths() -> None:
    generator = np.random.default_rng(5)
    products = TokenOrChunkProducts(core.Kernels(), BLOCK_ROWS)
    for columns in (32, 96, 64):
        weight = generator.standard_normal((ROWS, columns)).astype(np.float32)
        raw = RawTensor(encode(weight, "f16"), "f16", weight.shape)
        x = torch.from_numpy(generator.standard_normal((3, columns)).astype(np.float32))
        with torch.inference_mode():
            inside = products.with_matrix(raw, x)
        assert torch.equal(products.with_matrix(raw, x), inside)
        expected = x.double() @ torch.from_numpy(raw.floats()).double().T
        np.testing.assert_allclose(inside.numpy(), expected.numpy(), rtol=0, atol=1e-4)
