"""What a damaged manifest may not say: values that would end in no number, or in a crash."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import numpy as np
import pytest

from flashllm import core
from flashllm.core.numpy_twin import kernels
from flashllm.dtypes import DTYPES, row_bytes, tensor_bytes
from flashllm.errors import LayoutError, TensorMismatch
from flashllm.flash.raw_tensor import RawTensor
from flashllm.model.active_set_selectors import LowRank
from flashllm.spec import ModelSpec, Rope
from tests.planning.test_shape_estimate import OPT_6_7B
from tests.support.specs import SPEC


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


@pytest.mark.parametrize("core", [core, kernels])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_of_a_row_are_those_of_the_core(core: ModuleType, dtype: str) -> None:
    for columns in (1, 2, 31, 32, 33, 36, 64, 4095, 4096, 4544, 12288):
        assert row_bytes(dtype, columns) == core.row_bytes(dtype, columns)


def test_bytes_of_a_row_by_hand() -> None:
    assert [row_bytes(dtype, 33) for dtype in DTYPES] == [132, 66, 66, 68, 36, 34]
    assert tensor_bytes("int4", (10, 4096)) == 10 * 2304
    assert tensor_bytes("f32", (7,)) == 28


def test_an_encoding_of_its_own_is_kept_and_one_too_few_said_nothing_of() -> None:
    apart = dataclasses.replace(OPT_6_7B, dtype="int4", resident_dtype="int8")
    assert ModelSpec.from_json(apart.to_json()) == apart
    assert apart.matrix_dtype == "int8"
    assert apart.encoding_label == "int4, resident ones int8"
    # A version that does not know the key reads what it has always read.
    assert "resident_dtype" not in OPT_6_7B.to_json()
    assert OPT_6_7B.matrix_dtype == "f16"


@pytest.mark.parametrize("name", ["dtype", "resident_dtype"])
@pytest.mark.parametrize("value", ["int3", "q4_0", 4])
def test_encodings_that_there_are_not(name: str, value: object) -> None:
    with pytest.raises(LayoutError, match=f"spec: {name} is {value!r}; expected one of"):
        ModelSpec.from_json(OPT_6_7B.to_json() | {name: value})


ROPE = {"theta": 1e4, "dims": 64}
MOE = {"n_experts": 4, "per_token": 2, "d_ffn": 8}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rope": ROPE | {"scaling": "longrope"}, "positions": "rope"}, "rope scaling is"),
        ({"rope": ROPE | {"truncate": 1}, "positions": "rope"}, "rope truncate is 1"),
        ({"rope": ROPE | {"more": 1}, "positions": "rope"}, "rope: unknown keys .'more'"),
        ({"rope": {"dims": 8}, "positions": "rope"}, "rope: keys .'theta'. are missing"),
        ({"rope": 3, "positions": "rope"}, "rope: expected an object"),
        ({"rope": ROPE | {"dims": 256}, "positions": "rope"}, "rope dims are more than head_dim"),
        ({"rope": ROPE}, "rope belongs to positions of that kind"),
        ({"positions": "rope"}, "rope belongs to positions of that kind"),
        ({"n_kv_heads": 3}, "n_kv_heads does not divide n_heads"),
        ({"neurons_per_bundle": 3}, "neurons_per_bundle does not divide d_ffn"),
        ({"attention_scale": 0.0}, "attention_scale is 0.0"),
        ({"attention_scale": "1"}, "attention_scale is '1'"),
        ({"window_rope": ROPE}, "window_rope belongs to rotary positions"),
        ({"rope": ROPE, "window_rope": ROPE, "positions": "rope"}, "window_rope belongs to"),
        ({"window_rope": {"theta": 1e4}}, "window_rope: keys .'dims'. are missing"),
        ({"experts": []}, "experts: expected an object"),
        ({"experts": {**MOE, "per_token": 9}}, "experts: 9 are chosen for a token, of 4"),
        ({"experts": {**MOE, "n_experts": 0}}, "experts: n_experts is 0; expected 1 to 4096"),
        ({"experts": {**MOE, "score": "top"}}, "experts: score is 'top'"),
        ({"experts": {**MOE, "renormalise": 1}}, "experts: renormalise is 1"),
        ({"experts": {**MOE, "more": 1}}, "experts: unknown keys"),
        ({"experts": {**MOE, "router_input": "norm"}}, "experts: router_input is 'norm'"),
        ({"experts": {**MOE, "router_bias": "true"}}, "experts: router_bias is 'true'"),
        ({"experts": {**MOE, "gate_limit": -1.0}}, "experts: gate_limit is -1.0"),
        ({"experts": {**MOE, "weight_scale": 1}}, "experts: weight_scale is 1"),
        ({"experts": {**MOE, "groups": 0}}, "experts: groups is 0"),
        ({"experts": {**MOE, "groups": 3}}, "experts: groups is 3, and 4 experts are not"),
        ({"experts": {**MOE, "groups": 4}}, "experts: groups is 4, and 4 experts are not"),
        ({"experts": {**MOE, "groups_kept": 2}}, "experts: groups_kept is 2 of 1: more than"),
        ({"experts": {**MOE, "per_token": 3, "groups": 2}}, "1 of 2: .*too few for 3"),
        ({"experts": {**MOE, "shared_d_ffn": -1}}, "experts: shared_d_ffn is -1; expected 0 to"),
        ({"experts": {**MOE, "dense_layers": 1}}, "dense_layers and dense_d_ffn belong together"),
        ({"experts": {**MOE, "shared_gate": True}}, "shared_gate belongs to a shared expert"),
        ({"unrotated_layers": [0]}, "unrotated_layers belong to models with rotary positions"),
        ({"unrotated_layers": [4]}, "unrotated_layers is not a list of layers, ascending"),
        ({"unrotated_layers": [1, 1]}, "unrotated_layers is not a list of layers, ascending"),
        ({"unrotated_layers": [1, 0]}, "unrotated_layers is not a list of layers, ascending"),
        ({"unrotated_layers": 1}, "unrotated_layers is not a list of whole numbers"),
        ({"attention_sinks": 1}, "attention_sinks is 1; expected true or false"),
        ({"experts": MOE}, "d_ffn and neurons_per_bundle do not fit the experts"),
        ({"neurons_per_bundle": 2}, "neurons_per_bundle and qk_norm_whole belong to experts"),
        ({"qk_norm": True, "qk_norm_whole": True}, "neurons_per_bundle and qk_norm_whole belong"),
        ({"qk_norm_whole": True}, "qk_norm_whole belongs to models with qk_norm"),
        ({"rows_per_neuron": 3}, "rows_per_neuron does not fit the gate"),
        ({"gate": "bundled"}, "rows_per_neuron does not fit the gate"),
        ({"head_dim": 32}, "n_heads and head_dim do not fit d_model"),
        ({"activation": "drelu"}, "drelu needs a gate"),
        ({"shared_norm": True}, "shared_norm belongs to a parallel block"),
        ({"block": "parallel", "norm_placement": "post"}, "a parallel block has its norms"),
        ({"n_layers": 0}, "n_layers is 0; expected a whole number of 1 to"),
        ({"d_ffn": True}, "d_ffn is True"),
        ({"position_offset": 65}, "position_offset is 65"),
        ({"attention_windows": [8]}, "attention_windows is not a list of sizes, one a layer"),
        ({"attention_windows": [-1] * 4}, "attention_windows is not a list of sizes"),
        ({"attention_windows": 8}, "attention_windows is not a list of whole numbers"),
        ({"eos_ids": ["a"]}, "eos_ids is not a list of whole numbers"),
        ({"bos_id": "a"}, "bos_id has 'a'; expected 0 to"),
        ({"norm_eps": 1.0}, "norm_eps is 1.0"),
        ({"embed_scale": 0.0}, "embed_scale is 0.0"),
        ({"activation_threshold": -1.0}, "activation_threshold is -1.0"),
        ({"activation_threshold": 0.5}, "only fatrelu has an activation_threshold"),
        ({"tied_head": 1}, "tied_head is 1; expected true or false"),
        ({"block": "serial"}, "block is 'serial'; expected one of sequential, parallel"),
    ],
)
def test_features_that_do_not_go_together(changes: dict[str, object], match: str) -> None:
    with pytest.raises(LayoutError, match=f"spec: .*{match}"):
        ModelSpec.from_json(SPEC.to_json() | changes)


WITH_EXPERTS = {
    "positions": "rope",
    "rope": {"theta": 1e4, "dims": 64},
    "gate": "bundled",
    "rows_per_neuron": 3,
    "neurons_per_bundle": 8,
    "d_ffn": 32,
    "activation": "silu",
    "ffn_bias": False,
}


@pytest.mark.parametrize(
    ("changes", "experts", "match"),
    [
        ({}, {"dense_layers": 4, "dense_d_ffn": 8}, "dense_layers are all layers"),
        ({"activation": "relu"}, {"gate_slope": 1.5}, "gate_slope belongs to silu"),
        ({"ffn_bias": True}, {}, "experts have a gate of their own"),
        ({"norm_placement": "post"}, {}, "experts belong to sequential blocks"),
    ],
)
def test_experts_that_do_not_go_with_the_rest(
    changes: dict[str, object], experts: dict[str, object], match: str
) -> None:
    good = SPEC.to_json() | WITH_EXPERTS
    spec = ModelSpec.from_json(good | {"experts": MOE})
    assert ModelSpec.from_json(spec.to_json()) == spec
    with pytest.raises(LayoutError, match=match):
        ModelSpec.from_json(good | changes | {"experts": {**MOE, **experts}})


def test_later_fields_of_experts_are_written_where_they_say_something() -> None:
    more = {"router_input": "block", "groups": 2, "dense_layers": 1, "dense_d_ffn": 5}
    values = SPEC.to_json() | WITH_EXPERTS | {"experts": {**MOE, **more}}
    spec = ModelSpec.from_json(values)
    assert spec.to_json()["experts"] == {
        **MOE, **more, "score": "softmax", "renormalise": False
    }  # fmt: skip
    assert (spec.dense_layers, spec.bundled_layers) == (1, 3)
    assert SPEC.dense_layers == 0
    assert (spec.bundle_noun, SPEC.bundle_noun) == ("expert", "neuron")


def test_features_that_do() -> None:
    rotary = SPEC.to_json() | {"positions": "rope", "rope": ROPE, "attention_windows": [0, 4] * 2}
    spec = ModelSpec.from_json(rotary)
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert [spec.attention_window(layer) for layer in range(4)] == [0, 4, 0, 4]
    assert SPEC.attention_window(3) == 0
    assert (spec.gated, spec.sparse) == (False, True)
    assert spec.activation_label == "relu"
    assert spec.bundle_bytes == 2 * spec.row_bytes == 1024
    fat = dataclasses.replace(SPEC, activation="fatrelu", activation_threshold=0.25)
    assert fat.activation_label == "fatrelu above 0.25"


@pytest.mark.parametrize("value", [-1, 1 << 63, 10**30, True, 1.0, "2", OPT_6_7B.vocab_size])
def test_ids_that_the_vocabulary_does_not_have(value: object) -> None:
    for key, given in (("bos_id", value), ("eos_ids", [2, value])):
        with pytest.raises(LayoutError, match=f"spec: {key}"):
            ModelSpec.from_json(OPT_6_7B.to_json() | {key: given})
    highest = OPT_6_7B.vocab_size - 1
    kept = ModelSpec.from_json(OPT_6_7B.to_json() | {"bos_id": 0, "eos_ids": [highest]})
    assert (kept.bos_id, kept.eos_ids) == (0, (highest,))


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
