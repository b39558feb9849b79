"""`flashllm bench prompt`: what is run, what is counted, and the bound."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert
from flashllm.convert.families.known_shapes import describe_shape

from flashllm.bench.prompt import machine as prompt_machine
from flashllm.bench.prompt.machine import PromptMachine
from flashllm.bench.prompt.report import (
    PromptRates,
    PromptWeights,
    bound_ns,
    own_products_ns,
    report_rows,
)
from flashllm.bench.prompt.runs import PromptRun, fitting_lengths, measure, random_ids
from flashllm.engine.local import Model, open_model
from flashllm.errors import UsageError
from flashllm.planning.cost_model import ResidentBytes
from tests.support.tiny import tiny
from tests.support.token_fakes import FakeProbe

RATES = PromptRates(2e9, 1e10, 4e10, 8e10)
WEIGHTS = PromptWeights(resident_bytes=1e9, bundle_bytes=3e9)


def test_each_length_is_read_cold_and_then_from_slots(sparse_model: Path) -> None:
    with open_model(sparse_model) as model:
        ids = random_ids(model.info.spec.vocab_size)
        runs = list(measure(model, ids, [3, 20], rounds=2))
        spec = model.info.spec
        whole = spec.n_layers * spec.bundles_per_layer * model.info.bundle_stride_bytes
    assert [(run.round, run.tokens, run.kind) for run in runs] == [
        (number, tokens, kind)
        for number in range(2) for tokens in (3, 20) for kind in ("cold", "warm")
    ]  # fmt: skip
    for run in runs:
        missing, read = (whole, whole) if run.kind == "cold" else (0, 0)
        assert (run.bytes_missing, run.bytes_read) == (missing, read), "all have slots here"
        assert run.first_token_ns > 0


def test_each_prompt_begins_an_empty_context(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lengths = Model.generate, []

    def listening(model: Model, *arguments: Any, **options: Any) -> Any:
        lengths.append(model.decoder.context.length)
        return real(model, *arguments, **options)

    monkeypatch.setattr(Model, "generate", listening)
    with open_model(sparse_model) as model:
        list(measure(model, itertools.repeat(7), [5], rounds=2))
        assert model.decoder.context.length == 5
    assert lengths == [0, 0, 0, 0]


def test_what_is_missing_is_what_has_no_slot(sparse_model: Path) -> None:
    with open_model(sparse_model, window=1) as whole, pytest.MonkeyPatch.context() as patch:
        # A map that has a quarter of all neurons in memory.
        picture = whole.neuron_map()
        quarter = picture.__class__(
            **{name: getattr(picture, name) for name in picture.__slots__ if name != "totals"},
            totals=(0.25, 0.0, 0.0),
        )
        patch.setattr(Model, "neuron_map", lambda _: quarter)
        spec = whole.info.spec
        bundles = spec.n_layers * spec.bundles_per_layer
        found = next(measure(whole, itertools.count(5), [4], rounds=1))
    assert found.bytes_missing == round(0.75 * bundles) * whole.info.bundle_stride_bytes


def test_of_experts_a_prompt_needs_those_that_its_tokens_chose(tmp_path: Path) -> None:
    sizes = {"num_experts": 16, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    tiny("qwen3_moe", moe_intermediate_size=32, **sizes).save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "model")
    ids = [7, 30, 31]
    chosen: set[tuple[int, int]] = set()

    def add(layer: int, of_tokens: list[Any]) -> None:
        chosen.update((layer, int(expert)) for expert in np.concatenate(of_tokens))

    with open_model(tmp_path / "model") as model:
        stride = model.info.bundle_stride_bytes
        cold, warm = measure(model, iter(ids * 2), [3], rounds=1)
        list(model.decoder.logits_blocks(ids, "selected", chosen=add))
        bundles = model.info.spec.bundled_layers * model.info.spec.bundles_per_layer
    assert 0 < len(chosen) < bundles
    assert cold.bytes_needed == cold.bytes_missing == cold.bytes_read == len(chosen) * stride
    assert (warm.bytes_needed, warm.bytes_missing) == (len(chosen) * stride, 0)


def test_a_stop_ends_it_between_two_prompts(model: Model) -> None:
    stops = iter([False, False, True])
    found = list(measure(model, random_ids(100), [3], 5, lambda: next(stops)))
    assert len(found) == 2


def test_lengths_are_those_that_fit(model: Model) -> None:
    assert fitting_lengths(model, None) == [n for n in (8, 64, 512) if n < model.plan.context]
    assert fitting_lengths(model, [9, 3, 9]) == [3, 9]
    with pytest.raises(UsageError, match=r"--lengths 4000: the context of \d+ holds a prompt of"):
        fitting_lengths(model, [4, 4000])


def test_random_ids_are_the_same_each_time_and_in_the_vocabulary() -> None:
    first, again = (list(itertools.islice(random_ids(40), 3000)) for _ in range(2))
    assert first == again
    assert min(first) >= 8
    assert max(first) == 39
    assert set(itertools.islice(random_ids(1), 5)) == {0}


@pytest.mark.parametrize(
    ("tokens", "missing", "expected"),
    [
        (1, 3_000_000_000, {"flash": 1.5e9, "DRAM": 0.4e9, "products": 6.25e7}),
        (100, 0, {"flash": 0.0, "DRAM": 0.4e9, "products": 6.25e9}),
    ],
)
def test_the_bound_by_hand(tokens: int, missing: int, expected: dict[str, float]) -> None:
    assert bound_ns(WEIGHTS, RATES, tokens, missing, 4_000_000_000) == pytest.approx(expected)


def test_without_a_rate_of_flash_the_others_are_the_bound() -> None:
    unknown = PromptRates(None, 1e10, 4e10, 8e10)
    assert bound_ns(WEIGHTS, unknown, 1, 5, 9)["flash"] is None
    assert bound_ns(WEIGHTS, unknown, 1, 0, 9)["flash"] == 0
    runs = [PromptRun(0, 100, "cold", 10**10, 3, 3, 3, None)]
    (row,) = report_rows(runs, WEIGHTS, unknown)
    assert (row["binds"], row["flash_ns"]) == ("products", None)
    assert row["bound_share"] == pytest.approx(0.625)


def test_rows_have_medians_in_order() -> None:
    runs = [
        PromptRun(number, tokens, kind, wall * 10**9, nbytes, 400, nbytes, None)
        for number, (wall, nbytes) in enumerate([(9, 100), (2, 300), (4, 200)])
        for tokens in (64, 8)
        for kind in ("warm", "cold")
    ]
    rows = report_rows(runs, WEIGHTS, RATES)
    assert [(row["tokens"], row["kind"]) for row in rows] == [
        (8, "cold"), (8, "warm"), (64, "cold"), (64, "warm"),
    ]  # fmt: skip
    assert rows[0]["first_token_ns"]["median"] == 4e9
    assert rows[0]["tokens_per_second"] == 2
    assert rows[0]["bytes_read"] == rows[0]["bytes_missing"] == 200


def test_silent_neurons_leave_out_their_down_rows(model: Model) -> None:
    spec, resident = model.info.spec, ResidentBytes.of(model.info.spec)
    whole = spec.n_layers * spec.bundles_per_layer * spec.bundle_bytes
    assert spec.rows_per_neuron == 2
    half = PromptWeights.of(spec, {"sparsity": 0.5})
    assert half.bundle_bytes == pytest.approx(0.75 * whole)
    assert half.resident_bytes == resident.attention + resident.gate
    assert PromptWeights.of(spec, None).bundle_bytes == pytest.approx(0.5 * whole)
    selected = PromptWeights.of(spec, {"sparsity": 0.5}, selected=True)
    assert selected.bundle_bytes * selected.multiplied_share == pytest.approx(0.5 * whole)
    assert half.multiplied_share == 1
    of_selected, of_all = (bound_ns(each, RATES, 64, 0, whole) for each in (selected, half))
    assert of_selected["DRAM"] == of_all["DRAM"], "all are wanted by some token"
    assert of_selected["products"] < of_all["products"]
    everything = PromptWeights(
        half.resident_bytes, whole, 1.0, half.last_resident_bytes, whole / spec.n_layers
    )
    for weights in (half, selected):
        found = weights.with_silent()
        assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(everything))


def test_a_program_that_leaves_nothing_out_has_a_bound_beside() -> None:
    weights = PromptWeights(1e9, 3e9, 0.2, silent_bytes=1e9)
    runs = [PromptRun(0, 100, "cold", 5 * 10**9, 3, 3, 3, None)]
    (row,) = report_rows(runs, weights, RATES)
    assert row["all_weights_ns"] == pytest.approx(1e9 * (100 / 40 + 4 * 100 / 80))
    assert row["all_weights_share"] == pytest.approx(1.5)
    (row,) = report_rows(runs, dataclasses.replace(weights, silent_bytes=0.0), RATES)
    assert row["all_weights_ns"] is row["all_weights_share"] is None


def test_a_token_is_multiplied_with_the_experts_that_it_chose() -> None:
    """Those that any token chose move through memory."""
    spec = describe_shape("qwen3-30b-a3b")
    weights = PromptWeights.of(spec, None)
    assert weights.bundle_bytes == 48 * 128 * spec.bundle_bytes
    found = bound_ns(weights, RATES, 64, 0, 5e9)
    assert found["DRAM"] == 1e9 * (weights.resident_bytes + 5e9) / 1e10
    multiplied = weights.resident_bytes / 4e10 + 48 * 8 * spec.bundle_bytes / 8e10
    # Of all tokens but the last one the last layer needs keys and values alone.
    behind = (weights.resident_bytes / 48 - 2 * 2048 * 4 * 128 * 2) / 4e10
    behind += 8 * spec.bundle_bytes / 8e10
    assert found["products"] == pytest.approx(1e9 * (64 * multiplied - 63 * behind), rel=1e-4)


def test_behind_keys_and_values_the_last_layer_is_of_the_last_token() -> None:
    weights = PromptWeights(1e9, 3e9, 0.5, last_resident_bytes=2e8, last_bundle_bytes=1e9)
    found = bound_ns(weights, RATES, 11, 0, 4e9)
    multiplied = (11 * 1e9 - 10 * 2e8) / 4e10 + 0.5 * (11 * 3e9 - 10 * 1e9) / 8e10
    assert found["products"] == pytest.approx(1e9 * multiplied)
    assert found["DRAM"] == 1e9 * 4e9 / 1e10, "all of it moves through memory"


def test_products_of_own_rows_take_the_kernel_that_has_less_work() -> None:
    weights = PromptWeights(1e9, 4e9, multiplied_share=0.1)
    assert own_products_ns(weights, RATES, 100) is None
    slow = PromptRates(2e9, 1e10, 4e10, 8e10, own_products_per_second=2e10)
    assert own_products_ns(weights, slow, 100) == pytest.approx(1e9 * (2.5 + 40 / 20))
    slower = dataclasses.replace(slow, own_products_per_second=4e9)
    assert own_products_ns(weights, slower, 100) == pytest.approx(1e9 * (2.5 + 400 / 80))
    runs = [PromptRun(0, 100, "cold", 9 * 10**9, 3, 3, 3, None)]
    (row,) = report_rows(runs, weights, slow)
    assert row["own_share"] == pytest.approx(0.5)
    (row,) = report_rows(runs, weights, RATES)
    assert row["own_share"] is None


def test_rates_are_medians_of_what_was_seen(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_machine, "chunk_rate", lambda *_: 3.0)
    monkeypatch.setattr(prompt_machine, "own_rate_of", lambda *_: 5.0)
    seen = PromptMachine(model.info.spec, 2, selected=True)
    probe = FakeProbe()
    for problem in (None, "the ceiling leaves no memory to measure it"):
        probe.problem = problem
        seen.look(probe, 32)  # type: ignore[arg-type]
    assert seen.rates == PromptRates(2e9, 1e10, 3.0, 3.0, 5.0)
    of_all = PromptMachine(model.info.spec, 2, selected=False)
    of_all.look(FakeProbe(), 32)  # type: ignore[arg-type]
    assert of_all.rates.own_products_per_second is None
