"""Memory of keys and values: sums done by hand."""

from __future__ import annotations

import dataclasses

import pytest

from flashllm.errors import UsageError
from flashllm.kv_cache.layout import (
    kv_bytes,
    parse_kv_dtype,
    score_bytes,
)
from flashllm.options import KvDType, ModelOptions
from flashllm.planning.plan import make_plan
from flashllm.planning.prefill_shape import PrefillShape
from flashllm.planning.sizes import Sizes
from flashllm.units import MIB
from tests.planning.test_shape_estimate import OPT_6_7B
from tests.support.specs import SPEC

OPT_30B = dataclasses.replace(OPT_6_7B, n_layers=48, d_model=7168, n_heads=56, n_kv_heads=56)


@pytest.mark.parametrize(("dtype", "row"), [("f32", 4 * 64), ("f16", 2 * 64), ("int8", 64 + 2 * 2)])
def test_keys_and_values_of_a_context(dtype: KvDType, row: int) -> None:
    # keys and values x layers x heads x positions x bytes of a head's row
    assert kv_bytes(SPEC, 512, dtype) == 2 * 4 * 4 * 512 * row
    grouped = dataclasses.replace(SPEC, n_kv_heads=1)
    assert kv_bytes(grouped, 512, dtype) == 2 * 4 * 1 * 512 * row


def test_a_head_that_is_no_whole_number_of_groups_is_filled_up() -> None:
    odd = dataclasses.replace(SPEC, head_dim=80, d_model=320)
    assert kv_bytes(odd, 1, "int8") == 2 * 4 * 4 * 3 * (32 + 2)


def test_opt_30b_with_2048_tokens() -> None:
    gigabytes = [kv_bytes(OPT_30B, 2048, dtype) / 1e9 for dtype in ("f32", "f16", "int8")]
    assert gigabytes == pytest.approx([5.64, 2.82, 1.50], abs=0.005)


@pytest.mark.parametrize("dtype", ["f32", "f16", "int8"])
def test_the_plan_has_room_for_them(dtype: KvDType) -> None:
    sizes = Sizes(interpreter=200 * MIB, embeddings=0, attention=0, predictors=0, stride=1024)
    plan = make_plan(SPEC, sizes, ModelOptions(select="all", context=300, kv_dtype=dtype))
    assert plan.kv_dtype == dtype
    assert plan.split["kv"] == kv_bytes(SPEC, 300, dtype) + score_bytes(SPEC, 300)
    assert score_bytes(SPEC, 300) == 4 * 4 * 300
    shape = PrefillShape.of(SPEC, sizes.stride)
    assert plan.split["prefill"] == shape.bytes(SPEC, sizes.stride)


def test_f16_is_the_default() -> None:
    sizes = Sizes(interpreter=200 * MIB, embeddings=0, attention=0, predictors=0, stride=1024)
    plan = make_plan(SPEC, sizes, ModelOptions(select="all"))
    assert plan.kv_dtype == "f16"
    assert plan.to_json()["kv_dtype"] == "f16"


@pytest.mark.parametrize("name", ["", "F16", "bf16", "fp8"])
def test_other_encodings_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="expected one of f32, f16, int8, int4"):
        parse_kv_dtype(name)
