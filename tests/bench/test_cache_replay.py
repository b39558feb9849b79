"""Replayed policies: the optimum against every way of evicting, traces against decoding."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm.bench.ablation.active_sets import RecordingSelector
from flashllm.bench.cache import traces
from flashllm.bench.cache.belady import KnownRates
from flashllm.bench.cache.replay import (
    LONGEST,
    OPTIMUM,
    RATES,
    Replay,
    misses,
    optimal_replacement,
    rates,
)
from flashllm.bench.cache.traces import Trace
from flashllm.cli.main import main
from flashllm.engine.loading import load_decoder
from flashllm.errors import UsageError
from flashllm.options import DEFAULT_POLICY, POLICIES
from flashllm.planning.activation_stats import Activity
from flashllm.weight_cache.policies import Pinned, make_policy

N_BUNDLES = 6
small_sets = st.lists(st.sets(st.integers(0, N_BUNDLES - 1), max_size=4), min_size=1, max_size=7)


def ids_of(active: set[int]) -> np.ndarray:
    return np.array(sorted(active), dtype=np.int32)


def fewest(tokens: list[set[int]], slots: int) -> int:
    """By trying everything: after each token any residents may stay beside its own bundles."""

    @functools.cache
    def from_here(number: int, held: frozenset[int]) -> int:
        if number == len(tokens):
            return 0
        active = frozenset(tokens[number])
        others = held - active
        room = min(slots - len(active), len(others))
        kept = itertools.combinations(sorted(others), room)
        rest = min(from_here(number + 1, active | frozenset(some)) for some in kept)
        return len(active - held) + rest

    return from_here(0, frozenset())


@settings(max_examples=150, deadline=None)
@given(small_sets, st.integers(4, N_BUNDLES))
def test_nothing_loads_less_than_the_optimum(tokens: list[set[int]], slots: int) -> None:
    sets = [ids_of(active) for active in tokens]
    least = fewest(tokens, slots)
    assert sum(misses(sets, N_BUNDLES, slots, optimal_replacement(sets, N_BUNDLES, slots))) == least
    hot = np.arange(N_BUNDLES) < 2
    others = [make_policy(name, N_BUNDLES, 2) for name in POLICIES]
    for policy in [*others, Pinned(hot), KnownRates(rates(sets, N_BUNDLES))]:
        assert sum(misses(sets, N_BUNDLES, slots, policy)) >= least


def test_a_set_that_does_not_fit_is_loaded_in_passes() -> None:
    everything = np.arange(256, dtype=np.int32)
    sets = [everything] * 3
    for policy in (make_policy(DEFAULT_POLICY, 256, 5), optimal_replacement(sets, 256, 128)):
        first, *later = misses(sets, 256, 128, policy)
        assert first == 256
        assert all(128 <= n <= 256 for n in later)


def made_up(tokens: int = 120, layers: int = 3, n_bundles: int = 512) -> Trace:
    rng = np.random.default_rng(5)
    likely = np.minimum(rng.pareto(1.2, (layers, n_bundles)) * 0.05, 0.95)
    sets = tuple(
        tuple(np.flatnonzero(rng.random(n_bundles) < rate).astype(np.int32) for _ in range(tokens))
        for rate in likely
    )
    return Trace("made up", "predicted", n_bundles, 4096, sets)


def nothing(_: object) -> None:
    pass


def test_rows_of_a_budget_are_those_of_the_policies() -> None:
    trace = made_up()
    replay = Replay(trace, None)
    budget = replay.run(replay.budget(0.25), nothing)
    assert budget.slots_per_layer == (128, 128, 128)
    assert budget.expected is None
    assert {*POLICIES, OPTIMUM, RATES, LONGEST} - {"window"} <= {r.policy for r in budget.results}
    policies = [make_policy("lru", 512, 5) for _ in trace.sets]
    by_hand = sum(
        sum(misses(sets, 512, 128, policy)[60:])
        for sets, policy in zip(trace.sets, policies, strict=True)
    )
    assert budget.of("lru").misses == by_hand / 60
    best = budget.of(OPTIMUM)
    assert best.ratio == 1
    assert all(result.ratio >= 1 for result in budget.results)
    # Uses by chance alone, at rates that never change: who knows them loads least of those who
    # do not know the future, and who counts is near.
    blind = [r for r in budget.results if r.policy != OPTIMUM]
    assert blind[0].policy == RATES
    assert budget.of(DEFAULT_POLICY).misses < budget.of("lru").misses


def test_a_short_trace_is_refused() -> None:
    with pytest.raises(UsageError, match="20 are needed"):
        Replay(made_up(tokens=19), None)


def test_slots_are_divided_by_what_was_recorded() -> None:
    trace = made_up()
    activity = Activity(
        (1, 2, 4),
        ((10.0, 90.0, 90.0), (12.0, 140.0, 140.0), (13.0, 200.0, 200.0)),
        ((20, 120, 120), (30, 180, 180), (40, 300, 300)),
        (10.0, 90.0, 90.0),
    )
    quiet, loud, same = Replay(trace, activity).budget(0.3)
    assert (quiet, loud) == (64, same)
    assert 0.3 * 3 * 512 - 3 <= quiet + loud + same <= 0.3 * 3 * 512
    budget = Replay(trace, activity).run([64, 150, 150], nothing)
    assert budget.expected == pytest.approx(
        sum(activity.loads_of_slots(i, n, 512) for i, n in enumerate([64, 150, 150]))
    )


def test_a_trace_is_kept_as_it_was(tmp_path: Path) -> None:
    trace = made_up(tokens=7)
    traces.save(trace, tmp_path / "trace.npz")
    found = traces.load(tmp_path / "trace.npz")
    assert (found.model, found.select, found.n_bundles, found.stride) == (
        "made up", "predicted", 512, 4096,
    )  # fmt: skip
    for layer, same in zip(trace.sets, found.sets, strict=True):
        for ids, again in zip(layer, same, strict=True):
            assert again.dtype == np.int32
            assert ids.tolist() == again.tolist()
    assert list(tmp_path.iterdir()) == [tmp_path / "trace.npz"]


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"ids": np.array([0, 900, 1], np.int32)},
        {"ids": np.array([0, 1], np.int32)},
        {"ids": np.array([0, 2, 1], np.int32)},
        {"ids": np.array([0.0, 1.0, 2.0])},
        {"ids": np.array([{}, {}, {}], dtype=object)},
        {"lengths": np.array([1, 2], np.int32)},
        {"lengths": np.array([[-1, 4]], np.int32)},
        {"n_bundles": 0},
        {"select": None},
    ],
    ids=str,
)
def test_what_is_no_trace_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    values: dict[str, object] = {
        "format": 1, "model": "m", "select": "gate", "n_bundles": 512, "stride": 4096,
        "lengths": np.array([[1, 2]], np.int32), "ids": np.array([0, 1, 2], np.int32),
    }  # fmt: skip
    path = tmp_path / "trace.npz"
    np.savez(path, **values)
    assert traces.load(path).tokens == 2
    values = {name: value for name, value in (values | changes).items() if value is not None}
    np.savez(path, **values)
    with pytest.raises(UsageError, match="is no trace"):
        traces.load(path)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    for content in (b"", b"PK\x03\x04 and no more", b"text"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="is no trace"):
            traces.load(path)


def test_a_trace_is_what_decoding_selects(sparse_model: Path) -> None:
    ids = np.random.default_rng(1).integers(4, 96, 24).tolist()
    trace = traces.record(sparse_model, [ids])
    assert trace.select == "predicted"
    decoder, _, store = load_decoder(sparse_model)
    with store:
        selector = decoder.selector
        assert selector is not None
        recorder = RecordingSelector(selector, decoder.spec.n_layers)
        decoder.use(recorder)
        decoder.prefill(ids[:1])
        for token in ids[1:]:
            decoder.decode(token)
    for layer, decoded in zip(trace.sets, recorder.sets, strict=True):
        assert [ids.tolist() for ids in layer[1:]] == [ids.tolist() for ids in decoded]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.ids"
    ids = np.random.default_rng(0).integers(4, 96, (12, 100))
    path.write_text("\n".join(" ".join(map(str, line)) for line in ids))
    return path


def test_the_command_records_once_and_replays(
    capsys: pytest.CaptureFixture[str], sparse_model: Path, text: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.npz"
    common = ["bench", "cache", str(sparse_model), "--trace", str(trace), "--slots", "30%,60%"]
    assert main([*common, "--text", str(text), "--tokens", "1000", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["trace"]["tokens"] >= 900
    assert [len(b["policies"]) for b in first["budgets"]] == [9 + 1, 9 + 1]
    assert main([*common, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert main(common) == 0
    table = capsys.readouterr().out
    assert f"{DEFAULT_POLICY} *" in table
    assert "30% of bundles" in table
    assert main([*common, "--text", str(text)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_the_command_takes_the_slots_of_a_ceiling(
    capsys: pytest.CaptureFixture[str], sparse_model: Path, text: Path
) -> None:
    words = ["--text", str(text), "--tokens", "1000", "--memory", "4GiB", "--json"]
    assert main(["bench", "cache", str(sparse_model), *words]) == 0
    (budget,) = json.loads(capsys.readouterr().out)["budgets"]
    assert budget["share"] == 1
    assert {row["ratio"] for row in budget["policies"].values()} >= {1.0}


def test_a_text_is_needed(capsys: pytest.CaptureFixture[str], sparse_model: Path) -> None:
    assert main(["bench", "cache", str(sparse_model)]) == 2
    assert "give --text FILE" in capsys.readouterr().err


def test_a_trace_of_another_model(
    capsys: pytest.CaptureFixture[str], sparse_model: Path, tmp_path: Path
) -> None:
    traces.save(made_up(), tmp_path / "other.npz")
    assert main(["bench", "cache", str(sparse_model), "--trace", str(tmp_path / "other.npz")]) == 2
    assert "has other layers" in capsys.readouterr().err
