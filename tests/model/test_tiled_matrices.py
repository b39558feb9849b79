"""Which resident matrices lie in tiles, and that their rows are still found."""

from __future__ import annotations

import numpy as np
import pytest

from flashllm import core
from flashllm.flash.raw_tensor import RawTensor
from flashllm.model.encoded_rows import Table
from flashllm.model.tiled_matrices import tile_matrices
from tests.support.encodings import encode

ROWS, COLUMNS = 64, 96


def tensors(dtype: str, *names: str) -> dict[str, RawTensor]:
    values = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), dtype=np.float32)
    return {name: RawTensor(encode(values, dtype), dtype, (ROWS, COLUMNS)) for name in names}


@pytest.mark.parametrize("dtype", ["f16", "int8", "int4", "mxfp4"])
@pytest.mark.parametrize("others", [(), ("head.weight",)])
def test_an_embedding_lies_in_tiles_where_it_is_the_head(
    dtype: str, others: tuple[str, ...]
) -> None:
    kernels = core.Kernels(threads=2)
    has_tiles = kernels.tile_rows(dtype) > 0
    before = tensors(dtype, "embed.weight", "layers.0.attention.q", *others)
    ids = [ROWS - 1, 0, 17, 17]
    expected = Table(before["embed.weight"], kernels)(ids)
    after = tile_matrices(before, kernels)
    assert after["embed.weight"].is_tiled == (has_tiles and not others)
    assert after["layers.0.attention.q"].is_tiled == has_tiles
    assert all(after[name].is_tiled == has_tiles for name in others)
    assert np.array_equal(Table(after["embed.weight"], kernels)(ids), expected)
