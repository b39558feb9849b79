"""The split of a ceiling: it adds up, it is honest about what is too small, and what is left over
makes larger chunks."""

import dataclasses
from dataclasses import replace
from typing import Literal

import pytest
from flashllm.convert.families.known_shapes import describe_shape
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.options import ModelOptions
from flashllm.planning.activation_stats import Activity, assumed
from flashllm.planning.plan import make_plan, smallest_ceiling
from flashllm.planning.prefill_shape import PrefillShape
from flashllm.planning.shape_estimate import sizes_of_shape, usual_selector
from flashllm.planning.sizes import Sizes
from flashllm.planning.ways_to_read import GAP_BYTES
from flashllm.spec import ModelSpec, Rope
from flashllm.units import MIB
from flashllm.weight_cache.blocks import smallest_slots
from tests.support.profiles import flash_profile, law
from tests.support.specs import SPEC

SIZES = Sizes(
    interpreter=200 * MIB,
    embeddings=2 * MIB,
    attention=4 * MIB,
    predictors=MIB,
    stride=1024,
    activity=Activity(
        windows=(1, 4, 16),
        s_agg=((30, 40, 50, 60), (80, 100, 120, 140), (250, 270, 290, 310)),
        slots_needed=((40, 50, 60, 70), (100, 120, 140, 160), (300, 320, 340, 360)),
        active=(10, 10, 10, 10),
    ),
)


WIDE = replace(SPEC, d_model=4096, embed_dim=4096, n_heads=64, n_kv_heads=64, d_ffn=16384)


def smallest(select: str = "predicted", spec: ModelSpec = SPEC) -> int:
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        make_plan(spec, SIZES, ModelOptions(memory=10 * MIB, select=select))
    return caught.value.smallest_bytes


@settings(deadline=None)
@given(st.integers(0, 64 * MIB), st.sampled_from(["predicted", "oracle", "all"]))
def test_the_split_stays_below_the_ceiling(spare: int, select: str) -> None:
    ceiling = smallest(select) + spare
    plan = make_plan(SPEC, SIZES, ModelOptions(memory=ceiling, select=select))
    assert sum(plan.split.values()) <= ceiling
    assert plan.split["slots"] == sum(plan.slots_per_layer) * SIZES.stride
    least = 0 if select == "all" else 64
    assert all(least <= slots <= SPEC.bundles_per_layer for slots in plan.slots_per_layer)


def test_the_smallest_is_accepted_and_one_byte_less_is_not() -> None:
    least = smallest()
    assert make_plan(SPEC, SIZES, ModelOptions(select="predicted")).ceiling_bytes == least
    assert (
        make_plan(SPEC, SIZES, ModelOptions(memory=least, select="predicted")).smallest_bytes
        == least
    )
    with pytest.raises(MemoryCeilingTooSmall, match=r"--memory \d+MiB"):
        make_plan(SPEC, SIZES, ModelOptions(memory=least - 1, select="predicted"))


def test_a_tokenizer_that_is_large_beside_the_model_can_be_read_before_the_weights() -> None:
    """While it is read it takes more than it does afterwards."""
    usual = make_plan(SPEC, SIZES, ModelOptions(select="predicted"))
    small = make_plan(SPEC, replace(SIZES, tokenizer=MIB), ModelOptions(select="predicted"))
    assert small.smallest_bytes == usual.smallest_bytes + MIB
    assert small.split["tokenizer"] == MIB
    large = replace(SIZES, tokenizer=100 * MIB, application=7 * MIB)
    plan = make_plan(SPEC, large, ModelOptions(select="predicted"))
    assert plan.smallest_bytes == plan.ceiling_bytes == (200 + 7 + 300) * MIB
    assert sum(plan.split.values()) <= plan.ceiling_bytes
    assert smallest_ceiling(SPEC, large, ModelOptions(select="predicted")) == plan.smallest_bytes
    with pytest.raises(MemoryCeilingTooSmall, match=r"reading the tokenizer \d+, the rest"):
        make_plan(SPEC, large, ModelOptions(select="predicted", memory=plan.ceiling_bytes - 1))


@pytest.mark.parametrize("shape", ["opt-6.7b", "opt-30b", "opt-175b", "llama-70b-relu"])
def test_the_smallest_of_a_large_model_leaves_its_slots_alone(shape: str) -> None:
    # Their least slots are many times a block of the prefill's ring, which may not grow into them.
    spec = describe_shape(shape)
    select = usual_selector(spec)
    sizes = replace(sizes_of_shape(spec, 200 * MIB), activity=assumed(spec, select))
    plan = make_plan(spec, sizes, ModelOptions(select=select))
    assert min(plan.slots_per_layer) >= smallest_slots(spec.bundles_per_layer)
    assert sum(plan.split.values()) <= plan.smallest_bytes


def test_the_window_is_the_largest_that_fits() -> None:
    fixed = smallest() - SPEC.n_layers * 64 * SIZES.stride

    def window(slots: int) -> int:
        ceiling = fixed + slots * SIZES.stride
        return make_plan(
            SPEC, SIZES, ModelOptions(memory=ceiling, select="predicted", policy="window")
        ).window

    assert window(4 * 64) == 1
    assert window(int(520 * 1.1) + 4) == 4
    assert window(int(1320 * 1.1) + 4) == 16


def test_a_window_asked_for_is_kept_though_slots_are_short() -> None:
    plan = make_plan(SPEC, SIZES, ModelOptions(memory=smallest(), select="predicted", window=16))
    assert plan.window == 16
    assert sum(plan.slots_per_layer) < plan.slots_wanted


def test_select_all_wants_every_bundle() -> None:
    plan = make_plan(SPEC, SIZES, ModelOptions(memory=1 << 30, select="all"))
    assert set(plan.slots_per_layer) == {SPEC.bundles_per_layer}
    assert plan.split["predictors"] == 0


@pytest.mark.parametrize("given_settings", [{"window": 0}, {"io_threads": 0}, {"context": 513}])
def test_settings_out_of_range(given_settings: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="expected 1 to"):
        make_plan(SPEC, SIZES, ModelOptions(memory=1 << 30, select="all", **given_settings))


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_a_larger_ceiling_has_larger_chunks(activation: Literal["relu", "silu"]) -> None:
    spec = dataclasses.replace(WIDE, activation=activation)
    least = smallest("all", spec)
    shape = PrefillShape.of(spec, SIZES.stride)
    assert shape.tokens == 128
    tokens = []
    for spare in range(0, 4 << 30, 64 << 20):
        plan = make_plan(spec, SIZES, ModelOptions(memory=least + spare, select="all"))
        tokens.append(plan.prefill.tokens)
        assert sum(plan.split.values()) <= plan.ceiling_bytes
        assert plan.prefill.bundles % shape.bundles == 0
        mine = shape.with_tokens(tokens[-1])
        grown = mine.bytes(spec, SIZES.stride) - shape.bytes(spec, SIZES.stride)
        assert 16 * grown <= spare
        # The next size would be too large.
        twice = shape.with_tokens(2 * tokens[-1]).bytes(spec, SIZES.stride)
        needed = 16 * (twice - shape.bytes(spec, SIZES.stride))
        assert tokens[-1] == 512 or needed > spare
    assert tokens == sorted(tokens)
    assert set(tokens) == {128, 256, 512}


LARGER = [
    (1, 16384, None),
    (32, 16384, None),
    (256, 4608, None),
    (64, 4608, 8192),
    (1, 4608, 65536),
]


@pytest.mark.parametrize(("contexts", "stride", "chunk_tokens"), LARGER)
def test_blocks_are_larger_where_the_ring_has_enough(
    contexts: int, stride: int, chunk_tokens: int | None
) -> None:
    spec, sizes = replace(WIDE, n_layers=32), replace(SIZES, stride=stride, activity=None)
    options = ModelOptions(contexts=contexts, context=64, chunk_tokens=chunk_tokens)
    options = options.having(select="predicted")
    least, shape = smallest_ceiling(spec, sizes, options), PrefillShape.of(spec, stride)
    times = []
    for spare in range(0, 3 << 30, 48 << 20):
        plan = make_plan(spec, sizes, options.having(memory=least + spare))
        assert sum(plan.split.values()) <= plan.ceiling_bytes
        assert min(plan.slots_per_layer) > 0
        times.append(plan.prefill.bundles // shape.bundles)
        assert plan.prefill.bundles == times[-1] * shape.bundles
        if times[-1] > 1:
            assert plan.prefill_blocks >= 5
            # No more of it has memory of its own than with small blocks: slots lend the others.
            assert plan.own_blocks == 2 or min(plan.slots_per_layer) == spec.d_ffn
    assert times[0] == 1
    assert times[-1] == 4


def test_blocks_of_many_layers_are_no_larger_than_what_a_layer_lends() -> None:
    sizes, options = replace(SIZES, stride=16384, activity=None), ModelOptions(select="predicted")
    options = options.having(context=64)
    for layers in (8, 80):
        spec = replace(WIDE, n_layers=layers)
        least = smallest_ceiling(spec, sizes, options)
        plan = make_plan(spec, sizes, options.having(memory=least + (1 << 30)))
        assert plan.prefill.bundles == (1024 if layers == 8 else 512)
        assert max(plan.slots_per_layer) < 1024 or layers == 8
        assert plan.own_blocks == 2


@pytest.mark.parametrize("select", ["all", "router"])
def test_blocks_of_experts_and_of_what_is_pinned_stay_small(
    select: Literal["all", "router"],
) -> None:
    spec = describe_shape("qwen3-30b-a3b") if select == "router" else WIDE
    sizes = sizes_of_shape(spec, 35 * MIB)
    plan = make_plan(spec, sizes, ModelOptions(memory=12 << 30, select=select))
    assert plan.prefill.bundles == PrefillShape.of(spec, sizes.stride).bundles


def test_a_chunk_that_was_asked_for() -> None:
    options = ModelOptions(memory=1 << 30, select="all", chunk_tokens=700)
    plan, usual = (make_plan(SPEC, SIZES, one) for one in (options, options.having(chunk_tokens=1)))
    assert (plan.prefill.tokens, usual.prefill.tokens) == (700, 1)
    assert plan.split["prefill"] > usual.split["prefill"]
    with pytest.raises(UsageError, match="chunk_tokens is 0; expected 1 to 65536"):
        make_plan(SPEC, SIZES, options.having(chunk_tokens=0))


def test_a_step_of_a_block_has_room_for_all_of_its_rows() -> None:
    """Activations of a token of each row, which goes beside a chunk of as many tokens."""
    options = ModelOptions(select="all", context=64)
    one = make_plan(WIDE, SIZES, options)
    shape = PrefillShape.of(WIDE, SIZES.stride)
    for rows, chunk in ((2, 128), (300, 256), (1000, 512)):
        plan = make_plan(WIDE, SIZES, options.having(contexts=rows))
        assert plan.prefill.tokens == chunk
        beyond = (rows + chunk - 128) * shape.token_bytes(WIDE)
        assert plan.split["prefill"] - one.split["prefill"] == beyond
        asked = make_plan(WIDE, SIZES, options.having(contexts=rows, chunk_tokens=128))
        assert asked.prefill.tokens == 128
        assert asked.split["prefill"] - one.split["prefill"] == rows * shape.token_bytes(WIDE)


def test_the_ceiling_decides_how_many_blocks_a_prefill_holds() -> None:
    least = smallest("predicted")
    plans = [make_plan(SPEC, SIZES, ModelOptions(memory=least + spare, select='predicted'))
             for spare in range(0, 2 << 30, 32 << 20)]  # fmt: skip
    blocks = [plan.prefill_blocks for plan in plans]
    assert blocks == sorted(blocks)
    assert (blocks[0], blocks[-1]) == (2, 24)
    for plan in plans:
        assert sum(plan.split.values()) <= plan.ceiling_bytes
        ring = plan.prefill.bundles * SIZES.stride * (plan.prefill_blocks - 2)
        assert plan.split["prefill"] == plans[0].split["prefill"] + ring
        assert 12 * ring <= plan.ceiling_bytes - least


def test_a_prefill_has_room_for_heads_wider_than_the_model() -> None:
    """Query, its turned halves, its scaled copy, what attention makes, in rows: six at least."""
    rope = dataclasses.replace(SPEC, positions="rope", rope=Rope(1e4, 64))
    wide = dataclasses.replace(rope, n_heads=16)
    shape = PrefillShape.of(wide, SIZES.stride)
    extra = shape.bytes(wide, SIZES.stride) - shape.bytes(rope, SIZES.stride)
    assert extra >= 6 * shape.tokens * (16 - 4) * 64 * 4


def test_a_profile_chooses_threads_and_gap_that_were_not_asked_for() -> None:
    slow_start = law(1e-3, 4e9, 1, 8, 64)
    plan = make_plan(SPEC, SIZES, ModelOptions(memory=1 << 30, select="predicted"), slow_start)
    assert plan.io_threads == slow_start.best_threads(SIZES.stride) == 64
    assert plan.gap_bytes == slow_start.gap_bytes(SIZES.stride, 64) > GAP_BYTES
    asked = make_plan(
        SPEC, SIZES, ModelOptions(memory=1 << 30, select="predicted", io_threads=8), slow_start
    )
    assert asked.io_threads == 8
    assert asked.gap_bytes == slow_start.gap_bytes(SIZES.stride, 8)
    usual = make_plan(SPEC, SIZES, ModelOptions(memory=1 << 30, select="predicted"))
    assert (usual.io_threads, usual.gap_bytes) == (32, GAP_BYTES)


def test_a_profile_that_was_ended_early_chooses_nothing() -> None:
    """It may have come to one thread only."""
    early = dataclasses.replace(law(1e-3, 4e9, 1), complete=False)
    plan = make_plan(SPEC, SIZES, ModelOptions(memory=1 << 30, select="predicted"), early)
    assert (plan.io_threads, plan.gap_bytes) == (32, GAP_BYTES)
    whole = dataclasses.replace(early, complete=True)
    chosen = make_plan(SPEC, SIZES, ModelOptions(memory=1 << 30, select="predicted"), whole)
    assert (chosen.io_threads, chosen.gap_bytes > GAP_BYTES) == (1, True)


def test_every_neuron_is_read_with_the_threads_for_blocks() -> None:
    one_is_enough = flash_profile(
        {(1024, 1): 1e6, (1024, 16): 1e7, (1 << 19, 1): 2e9, (1 << 19, 16): 2e9}
    )
    assert (
        make_plan(SPEC, SIZES, ModelOptions(memory=1 << 30, select="all"), one_is_enough).io_threads
        == 1
    )
    sparse = make_plan(SPEC, SIZES, ModelOptions(memory=1 << 30, select="predicted"), one_is_enough)
    assert sparse.io_threads == 16


def test_gaps_have_a_place_to_land_and_the_ceiling_pays_for_it() -> None:
    slow_start = law(1e-3, 4e9, 64)
    plan = make_plan(SPEC, SIZES, ModelOptions(memory=1 << 30, select="predicted"), slow_start)
    usual = make_plan(SPEC, SIZES, ModelOptions(memory=1 << 30, select="predicted", io_threads=64))
    more = 64 * (plan.gap_bytes - GAP_BYTES)
    assert plan.split["reserve"] == usual.split["reserve"] + more
    assert sum(plan.split.values()) <= 1 << 30


def test_a_profile_never_makes_a_ceiling_too_small() -> None:
    """Where there is no room for what the profile wants, it is read as without one."""
    slow_start = law(1e-3, 4e9, 128)
    least = smallest()
    tight = make_plan(SPEC, SIZES, ModelOptions(memory=least, select="predicted"), slow_start)
    assert (tight.io_threads, tight.gap_bytes, tight.smallest_bytes) == (32, GAP_BYTES, least)
    one = law(1e-7, 4e9, 1)
    with pytest.raises(MemoryCeilingTooSmall) as caught:
        make_plan(SPEC, SIZES, ModelOptions(memory=10 * MIB, select="predicted"), one)
    # One thread takes less than 32; what is named is then accepted.
    assert caught.value.smallest_bytes < least
    named = caught.value.smallest_bytes
    assert (
        make_plan(SPEC, SIZES, ModelOptions(memory=named, select="predicted"), one).io_threads == 1
    )


def test_slots_and_prefill_do_not_depend_on_the_profile() -> None:
    plans = [
        make_plan(SPEC, SIZES, ModelOptions(select="predicted", window=4), profile)
        for profile in (None, law(1e-3, 4e9, 64))
    ]
    assert plans[0].prefill == plans[1].prefill
    assert plans[0].window == plans[1].window
