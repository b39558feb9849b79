"""The split of a ceiling: it adds up, it is honest about what is too small, and the prefill's
shape never depends on it."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.flash.plan import MIB, PrefillShape, Sizes, kv_bytes, make_plan
from flashllm.spec import Rope
from tests.specs import SPEC

SIZES = Sizes(
    interpreter=200 * MIB,
    embeddings=2 * MIB,
    attention=4 * MIB,
    predictors=MIB,
    stride=1024,
    windows=(1, 4, 16),
    slots_needed=((40, 50, 60, 70), (100, 120, 140, 160), (300, 320, 340, 360)),
)


def smallest(select: str = "predicted") -> int:
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        make_plan(SPEC, SIZES, 10 * MIB, select=select)
    return caught.value.smallest_bytes


@given(st.integers(0, 64 * MIB), st.sampled_from(["predicted", "oracle", "all"]))
def test_the_split_stays_below_the_ceiling(spare: int, select: str) -> None:
    ceiling = smallest(select) + spare
    plan = make_plan(SPEC, SIZES, ceiling, select=select)
    assert sum(plan.split.values()) <= ceiling
    assert plan.split["slots"] == sum(plan.slots_per_layer) * SIZES.stride
    least = 0 if select == "all" else 64
    assert all(least <= slots <= SPEC.bundles_per_layer for slots in plan.slots_per_layer)


def test_the_smallest_is_accepted_and_one_byte_less_is_not() -> None:
    least = smallest()
    assert make_plan(SPEC, SIZES, None, select="predicted").ceiling_bytes == least
    assert make_plan(SPEC, SIZES, least, select="predicted").smallest_bytes == least
    with pytest.raises(MemoryCeilingTooSmall, match=r"--memory \d+MiB"):
        make_plan(SPEC, SIZES, least - 1, select="predicted")


def test_the_window_is_the_largest_that_fits() -> None:
    fixed = smallest() - SPEC.n_layers * 64 * SIZES.stride

    def window(slots: int) -> int:
        return make_plan(SPEC, SIZES, fixed + slots * SIZES.stride, select="predicted").window

    assert window(4 * 64) == 1
    assert window(int(520 * 1.1) + 4) == 4
    assert window(int(1320 * 1.1) + 4) == 16


def test_a_window_asked_for_is_kept_though_slots_are_short() -> None:
    plan = make_plan(SPEC, SIZES, smallest(), select="predicted", window=16)
    assert plan.window == 16
    assert sum(plan.slots_per_layer) < plan.slots_wanted


def test_select_all_wants_every_bundle() -> None:
    plan = make_plan(SPEC, SIZES, 1 << 30, select="all")
    assert set(plan.slots_per_layer) == {SPEC.bundles_per_layer}
    assert plan.split["predictors"] == 0


@pytest.mark.parametrize("settings", [{"window": 0}, {"io_threads": 0}, {"context": 513}])
def test_settings_out_of_range(settings: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="expected 1 to"):
        make_plan(SPEC, SIZES, 1 << 30, select="all", **settings)


def test_the_prefill_follows_from_the_shape() -> None:
    shapes = {
        make_plan(SPEC, SIZES, ceiling, select="all").prefill
        for ceiling in (smallest("all"), 1 << 30, 1 << 40)
    }
    assert shapes == {PrefillShape.of(SPEC, SIZES.stride)}


def test_a_prefill_has_room_for_heads_wider_than_the_model() -> None:
    """Query, its turned halves, its scaled copy, what attention makes, in rows: six at least."""
    rope = dataclasses.replace(SPEC, positions="rope", rope=Rope(1e4, 64))
    wide = dataclasses.replace(rope, n_heads=16)
    shape = PrefillShape.of(wide, SIZES.stride)
    extra = shape.bytes(wide, SIZES.stride, 512) - shape.bytes(rope, SIZES.stride, 512)
    assert extra >= 6 * shape.tokens * (16 - 4) * 64 * 4


def test_kv_cache_of_a_context() -> None:
    # keys and values x layers x width x positions x 4 bytes
    assert kv_bytes(SPEC, 512) == 2 * 4 * 256 * 512 * 4
    grouped = dataclasses.replace(SPEC, n_kv_heads=1)
    assert kv_bytes(grouped, 512) == 2 * 4 * 64 * 512 * 4
