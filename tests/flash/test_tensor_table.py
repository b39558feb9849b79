"""Tables of resident tensors, their encodings, orders of neurons: what fits and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashllm.errors import LayoutError
from flashllm.flash.neuron_order import NeuronOrder, read_order
from flashllm.flash.safetensors_file import TensorRecord, pack_tensor_header
from flashllm.flash.tensor_table import (
    check_resident,
    encoding_of,
    predictor_columns,
    resident_bytes,
    resident_dtype,
    stored_as,
    tensor_table,
)
from flashllm.spec import ModelSpec, Rope
from tests.support.specs import SPEC

PATH = Path("model/file")
GATED = replace(
    SPEC,
    positions="rope",
    rope=Rope(theta=1e4, dims=64),
    gate="resident",
    embed_dim=128,
    tied_head=False,
    head_bias=True,
    norm_bias=False,
    qk_norm=True,
    attention_output_bias=True,
    dtype="int4",
    resident_dtype="int8",
)
BARE = replace(GATED, ffn_bias=False, attention_bias=False, attention_output_bias=False,
               final_norm=False, norm_affine=False, qk_norm=False, block="parallel",
               shared_norm=True, gate="none", head_bias=False, tied_head=True)  # fmt: skip


def index_of(spec: ModelSpec) -> dict[str, TensorRecord]:
    """What a file with exactly the right tensors holds."""
    index = {}
    for name, shape in tensor_table(spec).items():
        dtype, stored = stored_as(resident_dtype(name, shape, spec), shape)
        index[name] = TensorRecord(dtype, stored, 0, resident_bytes(name, shape, spec))
    return index


def test_the_tensors_that_features_ask_for() -> None:
    assert tensor_table(SPEC).keys() >= {"embed.positions", "layers.0.ffn_norm.bias"}
    gated = tensor_table(GATED)
    assert gated["embed.project_in.weight"] == (256, 128)
    assert gated["head.weight"] == (4096, 128)
    assert gated["head.bias"] == (4096,)
    assert gated["layers.3.ffn.gate.weight"] == (1024, 256)
    assert gated["layers.3.ffn.gate.bias"] == (1024,)
    assert gated["layers.3.attn.q_norm.weight"] == (64,)
    assert gated["layers.3.attn.o.bias"] == (256,)
    assert "layers.3.attn_norm.bias" not in gated
    assert "embed.positions" not in gated
    bare = tensor_table(BARE)
    assert not [name for name in bare if "bias" in name or "norm" in name]


@pytest.mark.parametrize("spec", [SPEC, GATED, BARE, replace(SPEC, dtype="int8")])
def test_a_file_that_holds_them_fits(spec: ModelSpec) -> None:
    check_resident(index_of(spec), spec, PATH)


def test_a_file_that_does_not() -> None:
    index = index_of(SPEC)
    with pytest.raises(LayoutError, match=r"unexpected .'more'"):
        check_resident(index | {"more": index["embed.weight"]}, SPEC, PATH)
    with pytest.raises(LayoutError, match=r"model/file: tensors absent .'embed.weight'"):
        check_resident({n: r for n, r in index.items() if n != "embed.weight"}, SPEC, PATH)
    wrong = replace(index["embed.weight"], dtype="f32")
    with pytest.raises(LayoutError, match=r"embed.weight is .'f32'.*the manifest asks for .'f16'"):
        check_resident(index | {"embed.weight": wrong}, SPEC, PATH)


def test_encodings_are_recognised_by_the_bytes_of_a_row() -> None:
    def record(dtype: str, *shape: int) -> TensorRecord:
        return TensorRecord(dtype, shape, 0, 0)

    assert encoding_of(record("u8", 3, 68), 64) == "int8"
    assert encoding_of(record("u8", 3, 36), 64) == "int4"
    assert encoding_of(record("u8", 3, 34), 64) == "mxfp4"
    assert encoding_of(record("u8", 3, 37), 64) == "u8"
    assert encoding_of(record("u8", 37), 64) == "u8"
    assert encoding_of(record("f16", 3, 64), 64) == "f16"


def test_columns_of_predictors() -> None:
    def record(*shape: int) -> TensorRecord:
        return TensorRecord("f16", shape, 0, 0)

    index = {
        "layers.0.down": record(32, 256),
        "layers.0.up": record(1024, 32),
        "layers.1.down": record(0, 256),
        "layers.1.up": record(1024, 0),
        "layers.2.down": record(32),
    }
    assert predictor_columns(index, SPEC) == {
        "layers.0.down": 256,
        "layers.0.up": 32,
        "layers.1.down": 256,
    }


def test_orders_of_neurons(tmp_path: Path) -> None:
    spec = replace(SPEC, d_ffn=8)
    neurons = np.tile(np.arange(8, dtype=np.int32)[::-1], (4, 1))
    order = NeuronOrder(neurons, np.full((4, 8), 0.5, np.float32))
    path = tmp_path / "order.safetensors"
    path.write_bytes(order.to_bytes())
    found = read_order(path, spec)
    assert (found.neurons == neurons).all()
    assert (found.rates == 0.5).all()
    with pytest.raises(LayoutError, match=r"no order of \(4, 1024\) neurons"):
        read_order(path, SPEC)
    neurons[2, 3] = neurons[2, 4]
    path.write_bytes(NeuronOrder(neurons, order.rates).to_bytes())
    with pytest.raises(LayoutError, match="is missing or occurs twice"):
        read_order(path, spec)
    path.write_bytes(pack_tensor_header([("neurons", "i32", (0,))]))
    with pytest.raises(LayoutError, match="no order of"):
        read_order(path, spec)
