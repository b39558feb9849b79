"""Advice for a ceiling that is too small: what is said to fit is what the planner accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flashllm.convert.families.known_shapes import SHAPES, describe_shape

from flashllm.errors import MemoryCeilingTooSmall
from flashllm.options import ModelOptions
from flashllm.planning.activation_stats import assumed
from flashllm.planning.advisor import Scenario, narrower_encodings
from flashllm.planning.plan import make_plan, smaller_options, smallest_ceiling
from flashllm.planning.shape_estimate import sizes_of_shape, usual_selector
from flashllm.units import GIB, MIB


def scenario(name: str, memory: int | None, dtype: str | None = None) -> Scenario:
    spec = describe_shape(name, dtype=dtype)
    select = usual_selector(spec)
    activity = assumed(spec, select) if spec.sparse and select != "all" else None
    options = ModelOptions(memory=memory, select=select)
    return Scenario(spec, sizes_of_shape(spec, 230 * MIB), activity, options, None)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_smallest_ceiling_is_the_planners(name: str) -> None:
    for dtype in ("f16", "int4"):
        made = scenario(name, None, dtype)
        for options in (made.options, *(o for _, o in smaller_options(made.spec, made.options))):
            smallest = smallest_ceiling(made.spec, made.sizes, options)
            assert make_plan(made.spec, made.sizes, options).smallest_bytes == smallest
            with pytest.raises(MemoryCeilingTooSmall):
                make_plan(made.spec, made.sizes, options.having(memory=smallest - 1))


def test_the_cheapest_change_comes_first() -> None:
    """Eight bits where these are enough, fewer only where they are not."""
    found = narrower_encodings(scenario("opt-13b", 8 * GIB))
    assert [encoding.fits for encoding in found] == [True, True]
    assert found[0].change == "weights in 8 bits, which are rounded: --dtype int8"
    found = narrower_encodings(scenario("opt-13b", 5 * GIB))
    assert [encoding.fits for encoding in found] == [False, True]
    assert found[1].change.endswith("--dtype int4")
    found = narrower_encodings(scenario("opt-13b", 3 * GIB))
    assert found[-1].change.endswith("--dtype int4 --ctx-size 512 --kv-dtype int8")


def test_a_converted_model_is_to_be_converted_again() -> None:
    made = replace(scenario("opt-13b", 8 * GIB), converted=True)
    assert narrower_encodings(made)[0].change.endswith("convert it again with --dtype int8")
