"""What a token is expected to cost: sums done by hand, and reads merged as they really are."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from typing import Any

import numpy as np
import pytest
from flashllm.convert.families.known_shapes import describe_shape

from flashllm.core.numpy_twin import reader
from flashllm.dtypes import DTYPES
from flashllm.hardware.machine_profile import Profile
from flashllm.options import ModelOptions
from flashllm.planning.activation_stats import Activity, assumed
from flashllm.planning.advisor import Scenario, advise, ceilings
from flashllm.planning.latency_model import TokenEstimate, expect
from flashllm.planning.plan import Plan
from flashllm.planning.shape_estimate import sizes_of_shape
from flashllm.planning.token_traffic import PlannedModel, PrefetchAccuracy, merged_reads
from flashllm.planning.ways_to_read import MAX_READ_BYTES
from flashllm.spec import ModelSpec
from flashllm.units import MIB
from tests.planning.test_shape_estimate import DENSE, OPT_6_7B
from tests.support.profiles import RATES, flash_profile, law
from tests.support.specs import SPEC

DISK = law(100e-6, 4e9)


def case(
    spec: ModelSpec = OPT_6_7B,
    memory: int | None = 8 << 30,
    select: Any = "predicted",
    profile: Profile | None = DISK,
    activity: Activity | None = None,
    overlap: Any = None,
) -> Scenario:
    known = None if select == "all" else activity or assumed(spec, select)
    sizes = sizes_of_shape(spec, 200 * MIB)
    options = ModelOptions(memory=memory, select=select, overlap=overlap)
    return Scenario(spec, sizes, known, options, profile)


def planned(given: Scenario) -> tuple[Plan, TokenEstimate]:
    plan = given.plan()
    return plan, given.expect(plan)


@pytest.mark.parametrize("gap", [0, 1, 2])
@pytest.mark.parametrize("loaded", [5, 60, 400])
def test_reads_are_merged_as_those_of_bundles_that_lie_anywhere(gap: int, loaded: int) -> None:
    rng = np.random.default_rng(gap)
    reads, bundles = [], []
    for _ in range(300):
        ids = np.sort(rng.choice(1024, loaded, replace=False))
        steps = np.diff(ids)
        joined = steps - 1 <= gap
        reads.append(1 + np.count_nonzero(~joined))
        bundles.append(loaded + (steps[joined] - 1).sum())
    expected = merged_reads(loaded, 1024, 16384, gap * 16384 + 5)
    assert expected[0] == pytest.approx(np.mean(reads), rel=0.03)
    assert expected[1] == pytest.approx(np.mean(bundles) * 16384, rel=0.03)


def test_no_read_is_longer_than_the_longest() -> None:
    assert merged_reads(1024, 1024, 16384, 0) == (32, 1024 * 16384)
    assert merged_reads(0.25, 1024, 16384, 0) == (0.25, 4096)


def test_where_anything_is_read_there_is_a_read() -> None:
    assert merged_reads(4, 4, 16384, 0) == (1, 4 * 16384)


@pytest.mark.parametrize("loaded", [0.3, 1.0])
def test_an_expert_is_as_many_reads_however_few_are_loaded(loaded: float) -> None:
    stride = 13 << 20  # 26 reads of 512 KiB
    assert merged_reads(loaded, 32, stride, 4096) == (26 * loaded, loaded * stride)
    more, _ = merged_reads(1.01, 32, stride, 4096)
    assert more == pytest.approx(26 * 1.01)
    small = dataclasses.replace(SPEC, activation="silu", d_ffn=64)
    _, expected = planned(case(small, None, "all"))
    assert 0 < expected.traffic.bytes_read < SPEC.n_layers * MAX_READ_BYTES
    assert expected.traffic.reads == SPEC.n_layers


def test_the_oracle_reads_every_neuron_whatever_its_slots_hold() -> None:
    tokens = []
    for memory in (8 << 30, 12 << 30):
        given = case(memory=memory, select="oracle", profile=law(1e-6, 4e9))
        plan, expected = planned(given)
        assert sum(plan.slots_per_layer) > 0
        assert expected.token is not None
        tokens.append(expected.token)
    assert tokens[0].flash == pytest.approx(tokens[1].flash)
    assert tokens[0].flash == pytest.approx(32 * 16384 * 16384 / 4e9, rel=0.02)


def test_a_token_by_hand() -> None:
    """One latency and then the rate of all threads, layer by layer; nothing overlaps."""
    flat = flash_profile({(16384, 1): 16384 / 1e-4, (16384, 32): 2e9, (65536, 32): 2e9})
    given = case(profile=flat, overlap="none")
    given = given.having(io_threads=32)
    plan, expected = planned(given)
    traffic, token = expected.traffic, expected.token
    assert token is not None
    assert given.activity is not None
    n_bundles = given.spec.bundles_per_layer
    loads = given.activity.loads_of_slots(0, plan.slots_per_layer[0], n_bundles)
    assert traffic.loaded == pytest.approx(32 * loads)
    per_layer = traffic.reads / 32
    one = traffic.bytes_read / traffic.reads
    latency = one / flat.throughput(one, 1)
    by_hand = 32 * (latency + (per_layer - 1) * one / flat.throughput(one, 32))
    assert token.flash == pytest.approx(by_hand)
    assert token.overhead == pytest.approx(32 * 1e-4 + 5e-4)
    assert token.dram == pytest.approx((expected.dram.total - expected.dram.loaded) / 8e9)
    assert token.total == pytest.approx(token.flash + token.dram + token.overhead)


def overlapped(overlap: str, speed: float = 4e9, **changes: Any) -> tuple[Plan, TokenEstimate]:
    given = case(overlap=overlap, profile=law(1e-7, speed), **changes)
    plan = given.plan()
    assert given.activity is not None
    model = PlannedModel(given.spec, given.sizes.stride, given.sizes.predictors, given.activity)
    perfect = dataclasses.replace(model, prefetch=PrefetchAccuracy(1.0, 1.0))
    return plan, expect(perfect, plan, given.profile)


@pytest.mark.parametrize("overlap", ["none", "hits"])
def test_each_number_of_missing_experts_by_hand(overlap: str) -> None:
    """Two of four experts a token, of which each is missing in a third of all tokens."""
    mixture = describe_shape("qwen3-30b-a3b", dtype="f16")
    assert mixture.experts is not None
    experts = dataclasses.replace(mixture.experts, per_token=2, n_experts=4)
    d_ffn = 4 * experts.d_ffn
    spec = dataclasses.replace(mixture, experts=experts, n_layers=2, d_ffn=d_ffn)
    third = Activity((1, 2), ((2, 2), (8 / 3, 8 / 3)), ((2, 2), (4, 4)), (2.0, 2.0))
    disk = law(1e-4, 8e9)
    given = case(spec, 4 << 30, "router", disk, third, overlap=overlap)
    plan = dataclasses.replace(given.plan(), slots_per_layer=(2, 2))
    expected = given.expect(plan)
    assert expected.token is not None
    assert expected.traffic.hit_rate == pytest.approx(2 / 3)
    size, largest = given.sizes.stride, MAX_READ_BYTES
    one, both = (
        disk.read_seconds(1, largest, 1)
        + (reads - 1) * largest / disk.throughput(largest, min(reads, 32))
        for reads in (size // largest, 2 * size // largest)
    )
    flash = 2 * (2 * (1 / 3) * (2 / 3) * one + (1 / 3) ** 2 * both)
    assert expected.token.flash == pytest.approx(flash, rel=0.02)
    # With one missing the other is computed meanwhile; with both nothing is.
    compute = size / 8e9
    hidden = 0.0 if overlap == "none" else 2 * 2 * (1 / 3) * (2 / 3) * min(one, compute)
    assert expected.token.overlap == pytest.approx(hidden, rel=0.02)


def together(expected: TokenEstimate) -> float:
    assert expected.token is not None
    return expected.token.overlap


def test_with_no_overlap_a_token_is_the_sum_of_its_parts() -> None:
    assert together(overlapped("none")[1]) == pytest.approx(0, abs=1e-12)


def test_hits_are_multiplied_by_all_but_their_down_rows_while_the_rest_is_read() -> None:
    _, found = overlapped("hits")
    traffic = found.traffic
    up_rows_of_hits = (traffic.used - traffic.loaded) * 4096 * 2
    assert together(found) == pytest.approx(up_rows_of_hits / 8e9)
    assert found.prefetch is None
    # A disk so fast that there is less to hide.
    fast = overlapped("hits", 4e13)[1]
    assert fast.token is not None
    assert together(fast) == pytest.approx(fast.token.flash)


def test_reads_guessed_before_attention_go_beside_it() -> None:
    _, found = overlapped("attention", 1e8)
    _, hits = overlapped("hits", 1e8)
    # Predictors are asked twice, and the second time is beside the reads.
    asked = (found.dram.total - hits.dram.total) / 8e9
    assert asked == pytest.approx(hits.dram.predictors / 8e9)
    attention = (found.dram.attention + found.dram.kv) / 8e9
    assert together(found) == pytest.approx(attention + asked)


@pytest.mark.parametrize("speed", [1e8, 1e13])
def test_reads_guessed_a_layer_ahead_leave_the_larger_of_reading_and_computing(
    speed: float,
) -> None:
    _, found = overlapped("layer", speed)
    token = found.token
    assert token is not None
    assert token.bound == ("flash" if speed == 1e8 else "dram")
    head = found.dram.head / 8e9
    larger = max(token.flash, token.dram - head)
    assert token.total == pytest.approx(larger + head + token.overhead)


def test_wrong_guesses_are_read_too_and_missed_ones_when_it_is_their_turn() -> None:
    given = case(overlap="layer", profile=law(1e-7, 1e8))
    plan, found = planned(given)
    perfect = overlapped("layer", 1e8)[1]
    assert found.prefetch == PrefetchAccuracy()
    assert found.traffic.loaded == perfect.traffic.loaded
    assert found.traffic.wasted == pytest.approx(0.05 * found.traffic.loaded)
    assert perfect.traffic.wasted == 0
    assert found.traffic.bytes_read == pytest.approx(1.05 * perfect.traffic.bytes_read)
    # Of a fast disk's reads only the missed ones are waited for.
    fast = case(overlap="layer", profile=law(1e-12, 1e13))
    fast_plan, quick = planned(fast)
    assert quick.token is not None
    waited = quick.token.total - quick.token.dram - quick.token.overhead
    assert waited == pytest.approx(quick.token.flash * 0.05 / 1.05, rel=1e-3)
    assert (plan.overlap, fast_plan.overlap) == ("layer", "layer")


def test_where_slots_are_short_nothing_is_guessed() -> None:
    given = case(memory=None, profile=law(1e-7, 1e8))
    found = planned(given)[1]
    none = planned(given.having(overlap="none"))[1]
    assert found.traffic.extra_rounds >= given.spec.n_layers
    assert found.traffic.wasted == 0
    assert found.traffic.bytes_read == none.traffic.bytes_read


def test_in_parallel_blocks_reads_are_known_and_not_guessed() -> None:
    parallel = dataclasses.replace(OPT_6_7B, block="parallel")
    found = planned(case(parallel, overlap="layer", profile=law(1e-7, 1e8)))[1]
    hits = planned(case(parallel, overlap="hits", profile=law(1e-7, 1e8)))[1]
    assert found.prefetch is None
    assert found.traffic == hits.traffic
    attention = (found.dram.attention + found.dram.kv) / 8e9
    assert together(found) == pytest.approx(attention + together(hits))


def test_more_overlap_is_advised_where_less_was_asked_for() -> None:
    given = case(profile=law(1e-7, 1e9), overlap="none")
    advice = {a.change: a.token_seconds for a in advise(given, *planned(given))}
    usual = planned(given.having(overlap=None))[1].token
    assert usual is not None
    told = next(seconds for change, seconds in advice.items() if "no --overlap" in change)
    assert told == usual.total
    unasked = given.having(overlap=None)
    assert not any("overlap" in a.change for a in advise(unasked, *planned(unasked)))


def test_everything_in_memory_reads_nothing() -> None:
    given = case(DENSE, 1 << 40, "all")
    plan, expected = planned(given)
    assert (expected.traffic.loaded, expected.traffic.hit_rate) == (0, 1)
    assert expected.token is not None
    assert expected.token.flash == 0
    assert expected.token.total == pytest.approx(expected.token.dram + expected.token.overhead)
    assert ceilings(given, plan).whole <= plan.ceiling_bytes


def test_a_streamed_token_takes_the_slower_of_reading_and_computing() -> None:
    """With a slow disk nearly what the bytes take; with a fast one, what computing takes."""
    slow = case(DENSE, 8 << 30, "all", law(100e-6, 0.5e9))
    _, expected = planned(slow)
    token = expected.token
    assert token is not None
    assert (token.bound, token.total) == ("flash", pytest.approx(token.flash, rel=0.05))
    assert token.total < token.flash + token.dram
    _, fast = planned(case(DENSE, 8 << 30, "all", law(1e-6, 100e9)))
    assert fast.token is not None
    assert fast.token.bound == "dram"
    assert fast.token.total == pytest.approx(fast.token.dram + fast.token.overhead, rel=0.05)


def test_more_memory_never_reads_more() -> None:
    found = []
    least = case(memory=None).plan().smallest_bytes
    for spare in range(0, 8 << 30, 256 << 20):
        _, expected = planned(case(memory=least + spare))
        found.append(expected.traffic.loaded)
    # Windows come in steps, and the slots that they want with them.
    assert all(late <= 1.02 * early for early, late in itertools.pairwise(found))
    assert found[-1] < found[0] / 3


def test_the_cliff_is_where_one_tokens_neurons_fit() -> None:
    given = case()
    plan = given.plan()
    cliff = ceilings(given, plan).cliff
    assert cliff is not None
    assert plan.smallest_bytes < cliff < plan.ceiling_bytes
    below = planned(case(memory=(plan.smallest_bytes + cliff) // 2))[1].traffic
    above = planned(case(memory=cliff + (64 << 20)))[1].traffic
    assert below.hit_rate < above.hit_rate / 2
    assert (below.extra_rounds > 16, above.extra_rounds) == (True, 0)


def test_without_a_profile_there_are_bytes_and_no_seconds() -> None:
    given = case(profile=None)
    plan, expected = planned(given)
    assert (expected.token, expected.first_token_seconds) == (None, None)
    assert expected.traffic.bytes_read > 0
    assert advise(given, plan, expected) == []
    measured_no_machine = case(profile=dataclasses.replace(DISK, rates=None))
    assert planned(measured_no_machine)[1].token is None


def test_behind_attention_the_last_layer_is_of_the_last_tokens() -> None:
    given = case(profile=law(1e-7, 5e10))
    plan = given.plan()
    assert (plan.prefill.tokens, plan.seed_tokens) == (512, 64)
    for tokens, asked in ((512, 64), (1024, 1 + 64)):
        found = given.expect(plan, prompt_tokens=tokens).first_token_seconds
        ffn, matrix = 16384 * 16384, 4096 * 4096 * 2
        products = tokens * (31 * ffn + (32 * 4 - 1) * matrix) + asked * (ffn + matrix)
        without = (
            dataclasses.replace(given, sizes=dataclasses.replace(given.sizes, predictors=0))
            .expect(plan, prompt_tokens=tokens)
            .first_token_seconds
        )
        assert without == pytest.approx(products / 1e11, rel=0.002)
        predicting = given.sizes.predictors * (31 * tokens + asked) / 32 / 1e11
        assert found is not None
        assert without is not None
        assert found - without == pytest.approx(predicting, rel=1e-6)


def test_the_first_token_takes_all_weights_once_a_chunk() -> None:
    given = case(profile=law(1e-6, 2e9))
    plan, expected = planned(given)
    ffn = 32 * 16384 * 16384
    assert expected.prompt_tokens == 128
    assert plan.prefill.tokens == 512
    assert expected.first_token_seconds is not None
    # Products at 1e11 bytes x tokens a second are slower than this disk.
    products = (ffn + 32 * 4 * 4096 * 4096 * 2) * 128 / 1e11
    assert expected.first_token_seconds == pytest.approx(products, rel=0.03)
    # A slow disk is read all the time, attention or not; with the smallest ring it waits for
    # attention once the ring is full.
    slow = case(profile=law(1e-6, 0.2e9))
    ring = slow.plan()
    assert ring.prefill_blocks * ring.prefill.bundles * 16384 == 24 * (4 << 20)
    assert planned(slow)[1].first_token_seconds == pytest.approx(ffn / 0.2e9, rel=0.03)
    least = case(memory=None, profile=law(1e-6, 0.2e9))
    assert least.plan().prefill_blocks == 2
    attention = 32 * 4 * 4096 * 4096 * 2 * 128 / 1e11
    ahead = 32 * 2 * (4 << 20) / 0.2e9
    expected_seconds = ffn / 0.2e9 + attention - ahead
    assert planned(least)[1].first_token_seconds == pytest.approx(expected_seconds, rel=0.03)


def test_a_second_chunk_reads_nothing_where_the_first_leaves_all_in_slots() -> None:
    ffn = 32 * 16384 * 16384
    for memory, reads in ((32 << 30, 1), (8 << 30, 2)):
        given = case(memory=memory, profile=law(1e-6, 0.2e9)).having(
            chunk_tokens=128, prompt_neurons="exact"
        )
        plan = given.plan()
        assert (min(plan.slots_per_layer) == 16384) == (reads == 1)
        estimate = given.expect(plan, prompt_tokens=256)
        products = (ffn + 32 * 4 * 4096 * 4096 * 2) * 128 / 1e11
        expected = ffn / 0.2e9 * reads + products * (2 - reads)
        assert estimate.first_token_seconds == pytest.approx(expected, rel=0.05)
        few, more, many = estimate.prompts
        assert (few.tokens, more.tokens, many.tokens) == (8, 64, 512)
        assert few.cold_seconds == pytest.approx(ffn / 0.2e9, rel=0.05)
        if reads == 1:
            assert more.warm_seconds == pytest.approx(products / 2, rel=0.05)
            assert many.cold_seconds == pytest.approx(ffn / 0.2e9 + 3 * products, rel=0.05)
        else:
            assert (many.warm_seconds, few.warm_seconds) == (many.cold_seconds, few.cold_seconds)


def test_few_tokens_through_selected_neurons_read_what_they_need() -> None:
    slow = case(profile=law(1e-6, 0.2e9)).having(prompt_neurons="exact")
    given = slow.having(prompt_neurons="selected")
    plan, expected = planned(given)
    assert given.activity is not None
    assert plan.needed_tokens == 64  # this disk is as fast here and there
    union = sum(given.activity.aggregate(layer, 8) for layer in range(32))
    few, _, many = expected.prompts
    assert few.cold_seconds == pytest.approx(union * 16384 / 0.2e9, rel=0.1)
    held = 1 - plan.slots_per_layer[0] / 16384
    assert few.warm_seconds == pytest.approx(few.cold_seconds * held, rel=0.1)
    exact = planned(slow)[1].prompts
    assert few.cold_seconds < exact[0].cold_seconds / 2
    # In tiles it takes as long, and what each token needs is predicted before.
    predicting = given.sizes.predictors * 512 / 1e11
    assert many.cold_seconds == pytest.approx(exact[2].cold_seconds + predicting, rel=0.003)


def test_many_tokens_through_selected_neurons_are_multiplied_with_their_own() -> None:
    rows = dataclasses.replace(RATES, rows_bytes_per_second=dict.fromkeys(DTYPES, 5e10))
    fast = dataclasses.replace(law(1e-6, 20e9), rates=rows)
    given = case(profile=fast).having(prompt_neurons="selected")
    plan, expected = planned(given)
    assert given.activity is not None
    assert plan.needed_tokens < 512
    attention, ffn = 32 * 4 * 4096 * 4096 * 2, 32 * 16384 * 16384
    used = sum(given.activity.used(layer) for layer in range(32)) / (32 * 16384)
    assert used < 0.5, "or tiles of all neurons would be faster"
    products = 512 * (attention / 1e11 + used * ffn / 5e10)
    assert expected.prompts[2].cold_seconds == pytest.approx(products, rel=0.05)
    few, union = expected.prompts[1], sum(given.activity.aggregate(i, 64) for i in range(32))
    assert plan.needed_tokens == 64, "a branch of its own"
    products = 64 * (attention / 1e11 + used * ffn / 5e10)
    assert few.cold_seconds == pytest.approx(products + union * 16384 / 20e9, rel=0.05)
    exact = planned(given.having(prompt_neurons="exact"))[1].prompts[2]
    assert exact.cold_seconds == pytest.approx(512 * (attention + ffn) / 1e11, rel=0.05)


def test_how_many_tokens_read_what_they_need_follows_from_disk_and_activity() -> None:
    # 16 KiB at a time this disk is a fifth as fast as in order.
    scattered = flash_profile({(16384, 32): 0.4e9, (1 << 19, 32): 2e9})
    for profile, expected in ((scattered, range(2, 9)), (None, range(4, 17))):
        given = case(profile=profile).having(prompt_neurons="selected")
        plan = given.plan()
        assert plan.needed_tokens in expected
        assert given.activity is not None
        share = given.activity.aggregate(0, plan.needed_tokens) / 16384
        twice = given.activity.aggregate(0, 2 * plan.needed_tokens) / 16384
        assert share <= (0.3 if profile is None else 0.21) < twice
    assert case().having(prompt_neurons="exact").plan().needed_tokens == 0
    gate = dataclasses.replace(OPT_6_7B, gate="resident", activation="relu")
    assert case(gate, 16 << 30, select="gate").plan().needed_tokens > 0
    assert case(gate, 16 << 30, select="all").plan().needed_tokens == 0


def test_more_tokens_read_what_they_need_where_slots_are_full() -> None:
    scattered = flash_profile({(16384, 32): 0.4e9, (1 << 19, 32): 2e9})
    some = []
    for memory in (6 << 30, 8 << 30, 10 << 30):
        given = case(memory=memory, profile=scattered).having(prompt_neurons="selected")
        plan = given.plan()
        some.append(plan.warm_needed_tokens)
        assert plan.needed_tokens <= plan.warm_needed_tokens <= 64
        few = given.expect(plan).prompts[0]
        if plan.needed_tokens < few.tokens <= plan.warm_needed_tokens:
            assert few.warm_seconds < few.cold_seconds
    assert some == sorted(some)
    assert some[-1] > plan.needed_tokens
    exact = case(profile=scattered).having(prompt_neurons="exact")
    assert exact.plan().warm_needed_tokens == 0
    plan = case(memory=32 << 30, profile=scattered).having(prompt_neurons="selected").plan()
    assert plan.warm_needed_tokens == plan.needed_tokens  # nothing is missing


def test_advice_is_what_planning_it_gives() -> None:
    slow = law(100e-6, 0.1e9)
    given = case(dataclasses.replace(OPT_6_7B, dtype="f32"), 15 << 30, profile=slow)
    plan, expected = planned(given)
    advice = advise(given, plan, expected)
    assert expected.token is not None
    assert [a.token_seconds for a in advice] == sorted(a.token_seconds for a in advice)
    words = " ".join(a.change for a in advice)
    assert "--dtype f16" in words
    assert "--memory 16384MiB" in words
    more = given.having(memory=16 << 30)
    told = next(a for a in advice if "16384MiB" in a.change)
    again = planned(more)[1].token
    assert again is not None
    assert told.token_seconds == pytest.approx(again.total)


def test_16_bits_of_a_converted_model_keep_what_was_recorded() -> None:
    """Converted again it has the same windows: what is told is what that model's plan gives."""
    spec, slow = dataclasses.replace(OPT_6_7B, dtype="f32"), law(100e-6, 0.5e9)
    activity = assumed(spec, "predicted")
    given = case(spec, 15 << 30, profile=slow, activity=activity)
    sizes = dataclasses.replace(given.sizes, activity=activity)
    given = dataclasses.replace(given, sizes=sizes, converted=True)
    told = next(a for a in advise(given, *planned(given)) if "16 bits" in a.change)
    assert "convert it with --dtype f16" in told.change
    half = dataclasses.replace(spec, dtype="f16")
    plan, expected = planned(case(half, 15 << 30, profile=slow, activity=activity))
    assert plan.window in activity.windows[1:]
    assert expected.token is not None
    assert told.token_seconds == pytest.approx(expected.token.total)


def test_a_smaller_encoding_of_keys_and_values_is_advised_where_it_helps() -> None:
    """What it leaves goes to slots; nothing is advised that is larger than what there is."""
    slow = law(100e-6, 0.5e9)
    given = case(OPT_6_7B, 7 << 30, profile=slow).having(kv_dtype="f32")
    advice = {a.change: a.token_seconds for a in advise(given, *planned(given))}
    for dtype in ("f16", "int8"):
        told = next(
            seconds for change, seconds in advice.items() if f"--kv-dtype {dtype}" in change
        )
        other = given.having(kv_dtype=dtype)
        token = other.expect(other.plan()).token
        assert token is not None
        assert told == token.total
    smallest = given.having(kv_dtype="int8")
    assert not any("kv-dtype" in a.change for a in advise(smallest, *planned(smallest)))


def test_predictors_are_advised_where_all_is_read() -> None:
    given = case(select="all", memory=16 << 30)
    plan, expected = planned(given)
    assert "--predictors train" in advise(given, plan, expected)[0].change
    small = dataclasses.replace(SPEC, activation="silu")
    dense = case(small, None, "all")
    assert not any("predictors" in a.change for a in advise(dense, *planned(dense)))


def test_rates_that_a_profile_lacks() -> None:
    """An older profile without the rate of narrow matrices still tells a token."""
    rates = dataclasses.replace(RATES, kernel_bytes_per_second={"f16": 8e9, "f32": 8e9})
    _, expected = planned(case(profile=dataclasses.replace(DISK, rates=rates)))
    assert expected.token is not None
    assert expected.first_token_seconds is None


@pytest.mark.parametrize(
    "lacking",
    [
        {"dram_bytes_per_second": {}},
        {"kernel_bytes_per_second": {"f32": 8e9}},
        {"rows_bytes_per_second": {"f32": 8e9}},
    ],
    ids=str,
)
def test_rates_of_other_encodings_tell_no_seconds(lacking: dict[str, Any]) -> None:
    """A profile that was measured for less than this model needs: bytes, and no KeyError."""
    rates = dataclasses.replace(RATES, **lacking)
    given = case(profile=dataclasses.replace(DISK, rates=rates))
    plan, expected = planned(given)
    assert (expected.token, expected.first_token_seconds) == (None, None)
    assert expected.traffic.bytes_read > 0
    assert advise(given, plan, expected) == []


def test_what_is_known_twice_is_the_same() -> None:
    """The core's default is no constant."""
    parameters = inspect.signature(reader.Reader).parameters
    assert parameters["max_read_bytes"].default == MAX_READ_BYTES
