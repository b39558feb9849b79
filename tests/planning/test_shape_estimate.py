"""What a model takes, from its shape: against the paper's figures, and sums done by hand."""

from __future__ import annotations

import dataclasses

import pytest

from flashllm.flash.layout import BundleHeader
from flashllm.options import ModelOptions
from flashllm.planning.plan import make_plan
from flashllm.planning.shape_estimate import (
    Shares,
    Weights,
    predictor_bytes,
    sizes_of_shape,
    traffic,
    usual_selector,
)
from flashllm.spec import ModelSpec, Rope
from flashllm.units import MIB
from tests.support.specs import SPEC

OPT_6_7B = dataclasses.replace(
    SPEC,
    n_layers=32,
    d_model=4096,
    n_heads=32,
    n_kv_heads=32,
    head_dim=128,
    d_ffn=16384,
    vocab_size=50272,
    embed_dim=4096,
    max_positions=2048,
    attention_output_bias=True,
)
FALCON_7B = dataclasses.replace(
    OPT_6_7B,
    d_model=4544,
    n_heads=71,
    n_kv_heads=1,
    head_dim=64,
    d_ffn=4 * 4544,
    vocab_size=65024,
    embed_dim=4544,
    position_offset=0,
    attention_bias=False,
    attention_output_bias=False,
    ffn_bias=False,
    positions="rope",
    rope=Rope(theta=10000.0, dims=64),
    block="parallel",
    shared_norm=True,
)
DENSE = dataclasses.replace(
    FALCON_7B, activation="silu", gate="bundled", rows_per_neuron=3, block="sequential",
    shared_norm=False,
)  # fmt: skip


def test_the_papers_shares_give_the_papers_sums() -> None:
    # Section 4.1: 3 % embeddings, 32.3 % attention, 1.25 % predictors, 24 % of 64.62 % window.
    opt = Shares(embeddings=0.03, attention=0.323, predictors=0.0125, ffn=0.6462)
    assert opt.in_dram(0.24) == pytest.approx(0.5206, abs=5e-5)
    falcon = Shares(embeddings=0.042, attention=0.194, predictors=0.04, ffn=0.768)
    assert falcon.in_dram(0.33) == pytest.approx(0.5294, abs=5e-5)


def test_shapes_give_nearly_the_papers_shares() -> None:
    """The paper rounds its parts, and leaves out what is small; the shapes themselves do not."""
    opt = Weights.of(OPT_6_7B).shares(predictor_bytes(OPT_6_7B, [128] * 32))
    assert opt.embeddings == pytest.approx(0.0322, abs=1e-4)
    assert opt.attention == pytest.approx(0.3226, abs=5e-4)
    assert opt.predictors == pytest.approx(0.0126, abs=1e-4)
    assert opt.ffn == pytest.approx(0.6451, abs=5e-4)
    assert opt.in_dram(0.24) == pytest.approx(0.5206, abs=0.002)
    ranks = [256] * 28 + [1152] * 4
    falcon = Weights.of(FALCON_7B).shares(predictor_bytes(FALCON_7B, ranks))
    assert falcon.predictors == pytest.approx(0.0387, abs=1e-4)
    assert falcon.in_dram(0.33) == pytest.approx(0.5294, abs=0.003)


def test_weights_add_up() -> None:
    assert Weights.of(OPT_6_7B).total == pytest.approx(13.317e9, rel=1e-3)
    # Norms and biases are kept in f32, all else in 16 bits.
    gated = dataclasses.replace(
        DENSE, activation="relu", gate="resident", rows_per_neuron=2, d_ffn=512
    )
    weights = Weights.of(gated)
    assert weights.gate == 32 * 512 * 4544 * 2
    assert weights.ffn == 2 * weights.gate


def test_bundles_of_falcon_in_f32() -> None:
    header = BundleHeader.for_spec(dataclasses.replace(FALCON_7B, dtype="f32"), bytes(16))
    assert header.bundle_bytes == 36_352
    assert header.stride == 36_864
    padding = Weights.of(dataclasses.replace(FALCON_7B, dtype="f32")).padding
    assert padding == 32 * 18_176 * (36_864 - 36_352)


def test_a_plan_without_the_weights_is_the_planners_own() -> None:
    sizes = sizes_of_shape(OPT_6_7B, 200 * MIB)
    plan = make_plan(OPT_6_7B, sizes, ModelOptions(memory=8 << 30, select=usual_selector(OPT_6_7B)))
    assert plan.select == "predicted"
    assert plan.split["predictors"] == pytest.approx(0.0126 * 13.317e9, rel=0.01)
    assert traffic(OPT_6_7B, plan, sizes.stride).per_percent_bytes == pytest.approx(
        0.01 * 0.645 * 13.317e9, rel=0.01
    )


@pytest.mark.parametrize("ceiling", [6 << 30, 12 << 30, 1 << 40])
def test_a_dense_model_reads_what_is_not_pinned(ceiling: int) -> None:
    sizes = sizes_of_shape(DENSE, 200 * MIB)
    plan = make_plan(DENSE, sizes, ModelOptions(memory=ceiling, select=usual_selector(DENSE)))
    assert plan.select == "all"
    moved = traffic(DENSE, plan, sizes.stride)
    assert moved.layer_bytes == 32 * 18_176 * sizes.stride
    assert moved.pinned_bytes == plan.split["slots"] <= moved.layer_bytes
    # All that the ceiling leaves is used, but for less than a block a layer.
    spare = ceiling - sum(plan.split.values())
    assert moved.pinned_bytes == moved.layer_bytes or spare < 32 * plan.prefill.bundles * (
        sizes.stride
    )
    assert max(plan.slots_per_layer) - min(plan.slots_per_layer) <= plan.prefill.bundles


@pytest.mark.parametrize(
    ("spec", "selector"),
    [
        (OPT_6_7B, "predicted"),
        (DENSE, "all"),
        (
            dataclasses.replace(DENSE, activation="drelu", gate="resident", rows_per_neuron=2),
            "gate",
        ),
    ],
)
def test_the_usual_selector(spec: ModelSpec, selector: str) -> None:
    assert usual_selector(spec) == selector
