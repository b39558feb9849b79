"""What a damaged manifest may not say: values that would end in no number, or in a crash."""

from __future__ import annotations

import numpy as np
import pytest

from flashllm.errors import LayoutError, TensorMismatch
from flashllm.flash.store import RawTensor
from flashllm.model.select import LowRank
from flashllm.spec import Rope
from tests.unit.test_estimate import OPT_6_7B


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"scaling": "llama3", "low_freq_factor": 4.0}, "high_freq_factor"),
        ({"scaling": "llama3", "original_positions": 0}, "original_positions"),
        ({"scaling": "yarn", "theta": 1.0}, "theta"),
        ({"factor": float("nan")}, "factor"),
        ({"factor": 1e-300, "scaling": "linear"}, "factor"),
        ({"dims": 7}, "dims"),
    ],
)
def test_positions_that_cannot_be(values: dict[str, object], named: str) -> None:
    usual: dict[str, object] = {"theta": 1e4, "dims": 8, "original_positions": 128}
    with pytest.raises(LayoutError, match=f"rope {named}"):
        Rope(**usual | values)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(), (0, 4096)])
def test_a_predictor_without_a_rank(shape: tuple[int, ...]) -> None:
    def tensor(dtype: str, *shape: int) -> RawTensor:
        return RawTensor(np.zeros(0, np.uint8), dtype, shape)

    tensors = {
        "layers.0.down": tensor("f16", *shape),
        "layers.0.up": tensor("f16", OPT_6_7B.d_ffn, 0),
        "layers.0.bias": tensor("f32", OPT_6_7B.d_ffn),
        "layers.0.threshold": tensor("f32", 1),
    }
    with pytest.raises(TensorMismatch, match="layer 0 has shapes"):
        LowRank.of(tensors, 0, OPT_6_7B)
