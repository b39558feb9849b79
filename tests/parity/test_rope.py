"""Each kind of rope scaling, by new keys and by old ones, at positions where it matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert

from flashllm.flash.manifest import read_manifest
from tests.support.compare import check_prefill, check_steps, oracle, prompt
from tests.support.tiny import rewrite_config, tiny

SIZES: dict[str, Any] = {
    "intermediate_size": 50,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_size": 32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "factor": 3.5, "rope_theta": 100.0},
    "llama3": {**LLAMA3, "rope_theta": 50.0},
    "yarn": {**YARN, "rope_theta": 100.0},
    "yarn, fine": {
        **YARN,
        "rope_theta": 200.0,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "truncate": False,
    },
    "yarn, attention factor": {**YARN, "rope_theta": 100.0, "attention_factor": 1.3},
    "yarn, two scales": {**YARN, "rope_theta": 100.0, "mscale": 1.4, "mscale_all_dim": 0.7},
    "yarn, one scale": {**YARN, "rope_theta": 100.0, "mscale": 1.4},
}


def save(model: Any, source: Path, keys: str) -> None:
    """The checkpoint, with the scaling under new keys, old ones, or still older ones."""
    model.save_pretrained(source)
    if keys == "new":
        return
    old = dict(model.config.rope_parameters)
    outer = {"rope_theta": old.pop("rope_theta")}
    if (share := old.pop("partial_rotary_factor", None)) is not None:
        outer["partial_rotary_factor"] = share
    if keys == "type":
        old["type"] = old.pop("rope_type")
    plain = old in ({"type": "default"}, {"rope_type": "default"})
    rewrite_config(
        source, {**outer, "rope_scaling": None if plain else old}, remove=("rope_parameters",)
    )


@pytest.mark.parametrize("keys", ["new", "rope_type", "type"])
@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("model_type", ["llama", "nemotron"])
def test_scaling(tmp_path: Path, model_type: str, name: str, keys: str) -> None:
    parameters = dict(SCALINGS[name])
    if model_type == "nemotron":
        parameters["partial_rotary_factor"] = 0.5
    model = tiny(model_type, **SIZES, rope_parameters=dict(parameters))
    save(model, tmp_path / "source", keys)

    convert(tmp_path / "source", tmp_path / "out")

    rope = read_manifest(tmp_path / "out").spec.rope
    assert rope is not None
    assert rope.scaling == parameters["rope_type"].replace("default", "none")
    assert rope.dims == (8 if model_type == "nemotron" else 16)
    check_prefill(oracle(model), tmp_path / "out", 120)
    if keys == "new":
        check_steps(oracle(model), tmp_path / "out", "all", 100)


def test_scalings_differ_where_they_are_compared() -> None:
    ids = prompt(120, 97)
    last = [
        oracle(tiny("llama", **SIZES, rope_parameters=dict(scaling)))(ids)[-1]
        for scaling in SCALINGS.values()
    ]
    # The last two are the same but for what one mscale alone does: nothing.
    for i, first in enumerate(last):
        for j, second in enumerate(last[:i]):
            same = {list(SCALINGS)[i], list(SCALINGS)[j]} == {"yarn", "yarn, one scale"}
            assert (np.abs(first - second).max() < 1e-3) == same, (i, j)


def test_the_same_for_every_kind_of_layer_may_be_nested(tmp_path: Path) -> None:
    model = tiny("llama", **SIZES, rope_parameters=dict(SCALINGS["yarn"]))
    save(model, tmp_path / "source", "new")
    each = SCALINGS["yarn"]
    rewrite_config(
        tmp_path / "source",
        {"rope_parameters": {"full_attention": each, "sliding_attention": each}},
    )

    convert(tmp_path / "source", tmp_path / "out")

    check_prefill(oracle(model), tmp_path / "out", 120)


def test_original_length_defaults_to_the_longest(tmp_path: Path) -> None:
    """As transformers has it: a yarn that says nothing was trained for all positions."""
    short = {key: value for key, value in SCALINGS["yarn"].items() if "original" not in key}
    model = tiny("llama", **SIZES, rope_parameters=dict(short))
    save(model, tmp_path / "source", "type")

    convert(tmp_path / "source", tmp_path / "out")

    rope = read_manifest(tmp_path / "out").spec.rope
    assert rope is not None
    assert rope.original_positions == 128
    check_prefill(oracle(model), tmp_path / "out", 120)
