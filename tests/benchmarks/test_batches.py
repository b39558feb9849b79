"""Benchmarks of batches: what they compare, bound, cover and draw."""

from __future__ import annotations

import dataclasses
import itertools
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from flashllm.convert.families.known_shapes import describe_shape

from benchmarks import batch_equal, batches
from benchmarks.batch_policies import Compared
from benchmarks.batch_policies import table as policies_table
from benchmarks.batch_report import Measured, draw
from benchmarks.batch_runs import BatchBound, Case, parse_case, random_prompts, write_rows
from benchmarks.batches import ACCELERATE, BLOCKS, ONE_BY_ONE, Run
from flashllm.flash.store import Store
from flashllm.planning.cost_model import CHUNK, OWN
from flashllm.planning.model_facts import recorded_activity
from tests.support.profiles import RATES, law

CASE = Case(256, 32)


def test_blocks_are_compared_with_the_others_of_their_case() -> None:
    runs = [
        Run(ONE_BY_ONE, "--block 1", 8, CASE, 256, 128.0, 256e9, 64.0, 96.0, 160.0),
        Run(ACCELERATE, "batch 8", 8, CASE, 256, 512.0, None),
        Run(BLOCKS, "--block 64", 64, CASE, 2048, 256.0, 128e9, 192.0, 192.0, 384.0),
        Run(ACCELERATE, "batch 1", 8, Case(32, 128), problem="out of memory"),
    ]
    lines = [
        [cell.strip() for cell in line.split("|")] for line in batches.table(runs, 64).split("\n")
    ]
    one, peer, block, failed = (line for line in lines[2:] if len(line) > 1)
    assert one[5:7] == ["2", "1024 (extrapolated)"]
    assert one[8:13] == ["1", "0.50", "0.75", "1.25", "4.00 in tokens/s, 16.0 in tokens/GB"]
    assert peer[6:13] == ["4096 (extrapolated)", "unknown", "", "", "", "", "16.00 in tokens/s"]
    assert block[5:7] == ["8", "256"]
    assert block[9:13] == ["0.75", "0.75", "1.50", ""]
    assert failed[5] == "out of memory"


def test_the_bound_is_the_larger_of_products_and_reads() -> None:
    spec, profile = describe_shape("llama-2-7b"), law(1e-9, 2e9)
    report: dict[str, Any] = {"completion_tokens": 10, "prompt_tokens": 90, "bytes_per_token": 1e9}
    stride = spec.bundle_bytes
    bound = BatchBound.of(spec, stride, profile, report, 1.0)
    assert bound.disk_seconds == pytest.approx(10e9 / 2e9, rel=0.01)
    weights = 2 * (6_738_415_616 - 2 * spec.vocab_size * spec.d_model)
    head = 2 * spec.vocab_size * spec.d_model
    # Of a prompt the last layer needs keys and values alone.
    last = weights / spec.n_layers - 2 * 2 * spec.d_model**2
    rate = RATES.kernel_bytes_per_second[CHUNK.format("f16")]
    assert bound.product_seconds == pytest.approx(
        (100 * weights - 90 * last + 10 * head) / rate, rel=1e-3
    )
    assert bound.seconds == max(bound.disk_seconds, bound.product_seconds)
    assert bound.own_seconds == bound.seconds, "each token is multiplied with all rows"
    assert bound.all_seconds == bound.seconds


def test_own_rows_are_multiplied_at_their_rate_or_all_in_tiles() -> None:
    spec, profile = describe_shape("opt-6.7b"), law(1e-9, 2e9)
    assert profile.rates is not None
    kernels = dict(profile.rates.kernel_bytes_per_second)
    report: dict[str, Any] = {"completion_tokens": 10, "prompt_tokens": 90, "bytes_per_token": 0}
    bundles = (100 * 31 + 10) * spec.bundles_per_layer * spec.bundle_bytes
    rate = kernels[CHUNK.format("f16")]

    def of(own_rate: float) -> BatchBound:
        kernels[OWN.format("f16")] = own_rate
        rates = dataclasses.replace(profile.rates, kernel_bytes_per_second=kernels)
        known = dataclasses.replace(profile, rates=rates)
        return BatchBound.of(spec, spec.bundle_bytes, known, report, 0.1)

    quarter, slow = of(rate / 4), of(rate / 40)
    more = quarter.own_seconds - quarter.seconds
    assert more == pytest.approx(0.3 * bundles / rate)
    assert slow.own_seconds - slow.seconds == pytest.approx(0.9 * bundles / rate)
    assert slow.all_seconds == pytest.approx(slow.own_seconds), "in tiles, all of them"


def test_a_token_uses_what_was_recorded_or_else_what_it_selected(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(sparse_model) as store:
        spec, activity = store.spec, recorded_activity(store, "predicted")
    assert activity is not None
    neurons = spec.bundles_per_layer
    assert batches.recorded_share(sparse_model) == activity.used_share(neurons)
    monkeypatch.setattr(batches, "recorded_activity", lambda *_: None)
    assert batches.recorded_share(sparse_model) is None
    decode = {"hits": 9, "misses": 3, "tokens": 4}
    assert batches.selected_share(spec, decode) == 3 / (neurons * spec.bundled_layers)
    assert batches.selected_share(spec, decode | {"tokens": 0}) is None


def test_settings_have_each_pair_and_full_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_equal, "least_mib", lambda _: 100)
    some = list(batch_equal.settings("m", full=False))
    ceilings = ((), ("--memory", "164MiB"), ("--memory", "228MiB"))
    schedules = [("--schedule", name) for name in batch_equal.SCHEDULES]
    overlaps = [("--overlap", name) for name in batch_equal.OVERLAPS]
    kinds = (batch_equal.POLICIES, ceilings, schedules, overlaps)
    every = {sum(chosen, ()): chosen for chosen in itertools.product(*kinds)}
    assert set(batch_equal.settings("m", full=True)) == set(every)
    assert len(every) == 5 * 3 * 3 * 2
    for one, other in itertools.combinations(range(len(kinds)), 2):
        pairs = {(every[flags][one], every[flags][other]) for flags in some}
        assert pairs == set(itertools.product(kinds[one], kinds[other]))
    assert 15 <= len(some) <= 18


def test_rows_are_the_same_each_time_and_share_no_beginning(tmp_path: Path) -> None:
    prompts = random_prompts(600, 20, Case(12, 3))
    assert prompts == random_prompts(600, 20, parse_case("12+3"))
    assert len({tuple(ids[:2]) for ids in prompts}) == 20
    assert write_rows(tmp_path / "rows", prompts, 3).read_text().count('"max_tokens": 3') == 20


def test_errors_of_predictions_are_signed() -> None:
    one = Compared("1,1,0,100,0,100,0,100", (), 1, 1.2, 1.0, 10, 1.1)
    assert one.error == pytest.approx(0.2)
    assert "+20%" in policies_table([one, Compared("x", (), 4, problem="too small")])


def test_a_report_is_drawn(tmp_path: Path) -> None:
    report = {
        "completion_tokens": 20,
        "bytes_per_token": 5e5,
        "prefill": {"wall_ns": 4_000_000},
        "decode": {"parts_ns": {"attention": 6_000_000, "ffn": 10_000_000}},
    }
    ways = [Measured(f"{n} rows", n, (), [n, 3.0, n], [report] * 3) for n in (1, 4)]
    assert ways[1].tokens_per_second == 5
    assert ways[0].tokens_per_megabyte == 2
    assert ways[0].parts == {"prompts": 0.2, "attention": 0.3, "ffn": 0.5}
    options = Namespace(model=Path("m"), case=CASE)
    path = draw(ways, ways[:1], tmp_path / "batches.png", options)
    assert path.read_bytes().startswith(b"\x89PNG")
