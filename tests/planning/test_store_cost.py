"""Our own cost model of a block: by what a profile measured, for a runtime without a device."""

from __future__ import annotations

import dataclasses

import pytest
from flashllm.convert.families.known_shapes import describe_shape

from flashllm.dtypes import DTYPES
from flashllm.errors import ProfileError
from flashllm.kv_cache.layout import PageShape, kv_bytes, staged_heads
from flashllm.options import ModelOptions, PromptNeurons
from flashllm.planning.activation_stats import assumed
from flashllm.planning.advisor import Scenario
from flashllm.planning.batch.batch_plan import plan_policy, plan_search
from flashllm.planning.batch.block_cost import BlockCost
from flashllm.planning.batch.placement import Placement
from flashllm.planning.batch.policy import Block, Workload, parse_batch_policy
from flashllm.planning.batch.store_cost import BlockOverheads, StoreModel
from flashllm.planning.batch.tiered_cost import COMPRESSED
from flashllm.planning.cost_model import Encodings, ResidentBytes, dram_bytes_a_token, dram_seconds
from flashllm.planning.plan import smallest_ceiling
from flashllm.planning.shape_estimate import sizes_of_shape, usual_selector
from flashllm.units import GIB, MIB
from tests.support.profiles import FLAT, RATES, law

RATE = 2e9
ROW_LAYER_SECONDS = 3e-5
WORK = Workload(256, 32)
DRAM = Placement(0, 1, 0, 0, 1, 0, 0, 1, 0)
FLASH = Placement(0, 0, 1, 0, 0, 1, 0, 1, 0)
INTERPRETER = 200 * MIB


def store_model(
    name: str = "llama-2-7b", dram_bytes: float = 64 * GIB, **changes: bool
) -> StoreModel:
    spec = describe_shape(name)
    select = usual_selector(spec)
    activity = None if select == "all" else assumed(spec, select, None)
    options = ModelOptions(select=select, io_threads=32)
    profile = law(1e-6, RATE)
    scenario = Scenario(spec, sizes_of_shape(spec, INTERPRETER), activity, options, profile)
    overheads = BlockOverheads(0.0, ROW_LAYER_SECONDS, 0.0)
    return StoreModel(scenario, WORK, float(dram_bytes), 1e12, overheads=overheads, **changes)


def parts(cost: BlockCost, placement: Placement) -> dict[str, float]:
    """Seconds of one token of all rows."""
    return {
        name: seconds / (WORK.new_tokens - 1)
        for name, seconds in cost.decode.breakdown(placement).items()
    }


def test_one_row_computes_what_a_decoded_token_does() -> None:
    """The same products as those of the model of a single token, where each neuron is used."""
    model = store_model()
    spec, stride = model.scenario.spec, model.scenario.sizes.stride
    resident = ResidentBytes.of(spec)
    bundles = spec.bundled_layers * spec.bundles_per_layer
    seen = WORK.prompt_tokens + WORK.new_tokens / 2
    moved = dram_bytes_a_token(spec, resident, bundles, 0, stride, seen)
    expected = dram_seconds(RATES, Encodings.of(spec), moved)
    found = parts(model.cost(Block(1, 1)), DRAM)
    assert found["products"] == pytest.approx(
        expected.attention + expected.gate + expected.ffn, rel=1e-6
    )
    assert found["attention"] == pytest.approx(expected.kv, rel=0.01)
    layer_seconds = RATES.layer_overhead_ns / 1e9 + ROW_LAYER_SECONDS
    assert found["overhead"] == pytest.approx(spec.n_layers * layer_seconds)
    assert found["weights from flash"] == found["kv from flash"] == 0


def test_what_is_on_flash_is_read_once_for_all_rows() -> None:
    model = store_model()
    sizes, spec = model.scenario.sizes, model.scenario.spec
    ffn = spec.bundled_layers * spec.bundles_per_layer * sizes.stride
    few, many = (parts(model.cost(Block(8, n)), FLASH) for n in (1, 4))
    assert few["weights from flash"] == many["weights from flash"]
    assert few["weights from flash"] == pytest.approx(ffn / RATE, rel=0.05)
    seen = WORK.prompt_tokens + WORK.new_tokens / 2
    kv = 8 * kv_bytes(spec, 1, "f16") * seen
    assert few["kv from flash"] == pytest.approx(kv / RATE, rel=0.05)
    assert many["kv from flash"] == pytest.approx(4 * few["kv from flash"])
    assert many["products"] == pytest.approx(4 * few["products"])
    assert many["overhead"] == pytest.approx(4 * few["overhead"])
    half = dataclasses.replace(FLASH, wc=0.5, wd=0.5)
    assert parts(model.cost(Block(8, 1)), half)["weights from flash"] == pytest.approx(
        few["weights from flash"] / 2
    )
    compressed = parts(store_model(compress=True).cost(Block(8, 1)), FLASH)
    assert compressed["kv from flash"] == pytest.approx(COMPRESSED * few["kv from flash"], rel=0.01)


def test_rows_together_are_faster_until_products_bind() -> None:
    """Weights go through memory once a batch; from some rows on, products take all of the time."""
    model = store_model()
    costs = [model.cost(Block(rows, 1)) for rows in (1, 2, 4, 8, 64, 512)]
    seconds = [parts(cost, DRAM)["products"] / cost.block.rows for cost in costs]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] / seconds[1] == pytest.approx(2)
    assert seconds[-1] == pytest.approx(seconds[-2])
    assert seconds[-1] == pytest.approx(seconds[0] * FLAT / 1e11, rel=0.05)


def test_tokens_of_selected_prompts_are_multiplied_with_their_own_neurons() -> None:
    """Where that takes less time than tiles of all of them."""
    model, rows = store_model("opt-6.7b"), 2e10
    rates = dataclasses.replace(RATES, rows_bytes_per_second=dict.fromkeys(DTYPES, rows))
    assert model.scenario.profile is not None
    profile = dataclasses.replace(model.scenario.profile, rates=rates)
    model = dataclasses.replace(
        model, scenario=dataclasses.replace(model.scenario, profile=profile)
    )
    spec, activity = model.scenario.spec, model.scenario.activity
    assert activity is not None
    used = sum(activity.used(layer) for layer in range(spec.n_layers))
    share = used / (spec.n_layers * spec.bundles_per_layer)
    ffn = spec.n_layers * spec.bundles_per_layer * model.scenario.sizes.stride
    resident = ResidentBytes.of(spec)
    tokens = 8 * WORK.prompt_tokens
    # The last layer's output of attention, and neurons, are of the last token of each row.
    output = resident.attention / (4 * spec.n_layers)
    attention = (tokens * resident.attention - (tokens - 8) * output) / 1e11
    fewer = 1 - (tokens - 8) / tokens / spec.n_layers
    ffn *= fewer
    expected: dict[PromptNeurons, float] = {
        "exact": tokens * ffn / 1e11,
        "selected": tokens * ffn * share / rows,
    }
    sizes = model.scenario.sizes
    for neurons, bundles in expected.items():
        scenario = model.scenario.having(prompt_neurons=neurons)
        with_, without = (
            dataclasses.replace(model, scenario=dataclasses.replace(scenario, sizes=each))
            .cost(Block(8, 1))
            .prefill.breakdown(DRAM)["products"]
            for each in (sizes, dataclasses.replace(sizes, predictors=0))
        )
        assert without == pytest.approx(attention + bundles, rel=0.003)
        # What each needs is predicted first, in the last layer for the last token of each row.
        predicting = sizes.predictors * tokens * fewer / 1e11 if neurons == "selected" else 0.0
        assert with_ - without == pytest.approx(predicting, rel=1e-6)
    assert share / rows < 1 / 1e11, "or both are the same"


def test_predictors_are_multiplied_with_all_rows_together() -> None:
    """From memory once, until products take longer; measured as what there is beyond none."""
    model = store_model("opt-6.7b")
    profile, sizes = model.scenario.profile, model.scenario.sizes
    assert profile is not None
    narrow, one, many = sizes.predictor_dtype, 1e10, 1e11
    kernels = RATES.kernel_bytes_per_second | {narrow: one, f"{narrow} chunk": many}
    rates = dataclasses.replace(RATES, kernel_bytes_per_second=kernels)
    scenario = dataclasses.replace(
        model.scenario, profile=dataclasses.replace(profile, rates=rates)
    )
    for rows in (1, 4, 64):
        with_, without = (
            dataclasses.replace(model, scenario=dataclasses.replace(scenario, sizes=each))
            for each in (sizes, dataclasses.replace(sizes, predictors=0))
        )
        found = parts(with_.cost(Block(rows, 1)), DRAM)["products"]
        found -= parts(without.cost(Block(rows, 1)), DRAM)["products"]
        expected = max(sizes.predictors / one, sizes.predictors * rows / many)
        assert found == pytest.approx(expected, rel=1e-6)


def test_a_sparse_model_reads_what_any_row_needs() -> None:
    """Less than all neurons for few rows, all of them for many, whose rows are independent."""
    model = store_model("opt-6.7b")
    read = [
        parts(model.cost(Block(rows, 1)), FLASH)["weights from flash"] for rows in (1, 4, 16, 512)
    ]
    sizes, spec = model.scenario.sizes, model.scenario.spec
    ffn = spec.bundled_layers * spec.bundles_per_layer * sizes.stride
    assert read == sorted(read)
    assert read[0] < 0.5 * ffn / RATE
    assert read[-1] == pytest.approx(ffn / RATE, rel=0.05)


def test_a_step_of_few_rows_reads_first_and_then_computes() -> None:
    """What any of them needs is known when a layer's input is; guesses and layers come ahead."""
    model = store_model("opt-6.7b")
    sizes, spec = model.scenario.sizes, model.scenario.spec
    whole = spec.bundles_per_layer * sizes.stride / RATE
    half = Placement(0, 0.5, 0.5, 0, 1, 0, 0, 1, 0)
    for rows, is_few in ((1, False), (2, True), (64, True), (65, False), (512, False)):
        decode = model.cost(Block(rows, 1)).decode
        part = decode.breakdown(half)
        read = part["weights from flash"] / decode.steps
        computed = sum(part[name] for name in ("products", "attention", "overhead")) / decode.steps
        assert 0 < read <= whole / 2 * 1.05
        took = (decode.seconds(half) - decode.beside_seconds) / decode.steps
        assert took == pytest.approx(read + computed if is_few else max(read, computed))
    few = model.cost(Block(8, 1))
    assert few.decode.binding(half) == "weights from flash, then compute"
    assert few.prefill.lanes.keys() == {"flash", "compute"}


def test_memory_is_that_of_a_single_row_and_what_rows_add() -> None:
    model = store_model()
    spec, sizes = model.scenario.spec, model.scenario.sizes
    tokens = WORK.prompt_tokens + WORK.new_tokens
    one, many = (
        model.cost(Block(rows, 1)).peak_bytes(dataclasses.replace(FLASH, cc=1, cd=0))
        for rows in (1, 9)
    )
    options = model.scenario.options.having(context=tokens)
    least = smallest_ceiling(spec, sizes, options, model.scenario.profile)
    assert one["dram"] == pytest.approx(least, rel=0.01)
    assert one["dram"] >= least
    added = 8 * kv_bytes(spec, tokens, "f16")
    assert many["dram"] - one["dram"] == pytest.approx(added, rel=0.1)
    assert (one["device"], one["flash"]) == (0, many["flash"])
    ffn = spec.bundled_layers * spec.bundles_per_layer * sizes.stride
    pinned = model.cost(Block(1, 1)).peak_bytes(DRAM)
    assert pinned["dram"] - one["dram"] == pytest.approx(ffn)
    spilled = model.cost(Block(9, 1)).peak_bytes(FLASH)
    assert spilled["flash"] - many["flash"] == pytest.approx(9 / 8 * added)
    # Of what is on flash, a few heads of one row are computed and a few are read.
    pages = PageShape.of(spec, "f16")
    staged = 2 * staged_heads(pages, tokens) * pages.blocks(tokens) * pages.page_bytes
    kept = many["dram"] - 9 / 8 * added
    assert spilled["dram"] - kept == pytest.approx(staged)


@pytest.mark.parametrize(("dram_bytes", "chunk"), [(64 * GIB, 512), (0, 128)])
def test_prompts_read_each_layer_once_a_chunk(dram_bytes: float, chunk: int) -> None:
    model = store_model(dram_bytes=dram_bytes)
    sizes, spec = model.scenario.sizes, model.scenario.spec
    ffn = spec.bundled_layers * spec.bundles_per_layer * sizes.stride
    read = model.cost(Block(8, 1)).prefill.breakdown(FLASH)["weights from flash"]
    passes = 8 * WORK.prompt_tokens // chunk
    assert read == pytest.approx(passes * ffn / RATE, rel=0.05)


def test_the_first_block_of_a_process_fills_the_slots() -> None:
    later = store_model()
    overheads = dataclasses.replace(later.overheads, start_seconds=0.25)
    first = dataclasses.replace(later, overheads=overheads, begins_empty=True)
    sizes, spec = first.scenario.sizes, first.scenario.spec
    ffn = spec.bundled_layers * spec.bundles_per_layer * sizes.stride
    for placement, passes in ((DRAM, 1), (FLASH, 8 * WORK.prompt_tokens // 512)):
        prefill = first.cost(Block(8, 1)).prefill
        read = prefill.breakdown(placement)["weights from flash"]
        assert read == pytest.approx(passes * ffn / RATE, rel=0.05)
        assert prefill.beside_seconds == later.cost(Block(8, 1)).prefill.beside_seconds + 0.25
    assert later.cost(Block(8, 1)).prefill.breakdown(DRAM)["weights from flash"] == 0
    assert first.cost(Block(8, 1)).decode == later.cost(Block(8, 1)).decode


def test_a_step_of_several_rows_decodes_the_weights_for_all_of_them() -> None:
    plain = store_model()
    overheads = dataclasses.replace(plain.overheads, panel_layer_seconds=0.002)
    model = dataclasses.replace(plain, overheads=overheads)
    for rows, panels in ((Block(1, 1), 0), (Block(8, 1), 1), (Block(4, 3), 3), (Block(1, 3), 0)):
        found, without = (parts(one.cost(rows), DRAM) for one in (model, plain))
        more = 0.002 * panels * model.scenario.spec.n_layers
        assert found["overhead"] == pytest.approx(without["overhead"] + more)


def test_the_best_block_within_a_ceiling() -> None:
    """Less memory is no faster and holds less, and a policy for a device is refused."""
    speeds, held = [], []
    for dram_bytes in (5 * GIB, 8 * GIB):
        model = store_model(dram_bytes=dram_bytes)
        made = plan_search(model)
        assert made.chosen is not None
        assert made.chosen.fits
        assert made.chosen.policy.placement.hc == 1
        speeds.append(made.chosen.tokens_per_second)
        held.append(made.chosen.policy.placement.wc)
    assert speeds == sorted(speeds)
    assert held[0] < held[-1]
    refused = plan_policy(store_model(), parse_batch_policy("4,1,50,50,0,100,0,100"))
    assert "nothing can be placed on a device" in refused.reason
    refused = plan_policy(store_model(), parse_batch_policy("4,1,0,50,0,100,0,50"))
    assert "keeps activations in DRAM" in refused.reason
    short = plan_search(store_model(dram_bytes=2 * GIB))
    assert short.chosen is None
    assert "of DRAM would be enough" in short.reason


def test_without_rates_it_says_what_to_measure() -> None:
    model = store_model()
    for profile in (None, law(1e-6, RATE)):
        bare = profile and dataclasses.replace(profile, rates=None)
        scenario = dataclasses.replace(model.scenario, profile=bare)
        with pytest.raises(ProfileError, match="flashllm bench io"):
            StoreModel(scenario, WORK, 1e9, 1e9)
