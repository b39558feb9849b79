"""The runs of `bench tokens` on a small model, with a machine that needs no measuring."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flashllm.bench import page_cache
from flashllm.bench.tokens import runs as runs_module
from flashllm.bench.tokens.process import ProcessCounts
from flashllm.bench.tokens.runs import TokenSettings, measure
from flashllm.bench.tokens.samples import (
    AGAIN,
    COLD,
    PLAIN,
    WARM,
    ProbeSample,
    RunSample,
    Sample,
    TokenSample,
)
from flashllm.bench.tokens.summary import summarize
from flashllm.engine.local import Model
from flashllm.errors import UsageError
from flashllm.kv_cache.context_tokens import ContextTokens
from flashllm.system.clock import PARTS
from tests.support.token_fakes import FakeProbe

IDS = [5, 17, 40, 8, 61]
FEW = TokenSettings(tokens=20, runs=2, paired_tokens=100)


def runs_of(samples: list[Sample]) -> list[RunSample]:
    return [sample for sample in samples if isinstance(sample, RunSample)]


@pytest.fixture
def samples(model: Model) -> list[Sample]:
    model.release_slots(1 << 40)  # with a slot for each neuron no token reads anything
    return list(measure(model, IDS, FEW, FakeProbe()))


def test_runs_take_turns_until_there_are_enough_pairs(samples: list[Sample]) -> None:
    kinds = [run.kind for run in runs_of(samples)]
    assert kinds == [COLD, WARM, PLAIN, PLAIN, WARM, *2 * [AGAIN, PLAIN, PLAIN, AGAIN]][:11]
    assert [run.run for run in runs_of(samples)] == list(range(11))
    probes = [sample for sample in samples if isinstance(sample, ProbeSample)]
    assert [probe.run for probe in probes] == [1, 4]
    assert isinstance(samples[0], TokenSample)


def test_tokens_are_the_same_with_telemetry_and_without(samples: list[Sample]) -> None:
    runs = runs_of(samples)
    assert len({run.token_ids for run in runs}) == 1
    assert len(runs[0].token_ids) == 21
    assert all(len(run.tokens) == 20 and run.complete for run in runs)
    for run in runs:
        measured = run.kind != PLAIN
        assert [token.cost is not None for token in run.tokens] == [measured] * 20
        assert (run.prefill is not None) is measured


def test_each_run_reads_its_whole_prompt(model: Model) -> None:
    """Also one of several chunks, which would stay in the context otherwise."""
    decoder = model.decoder
    decoder.context.tokens = ContextTokens(2)
    samples = list(measure(model, IDS, FEW, FakeProbe()))
    read = [run.prefill.bytes_read for run in runs_of(samples) if run.prefill is not None]
    assert len(read) > 2
    assert read == [read[0]] * len(read)


def test_the_reader_counts_what_tokens_cost(samples: list[Sample]) -> None:
    for run in runs_of(samples):
        reads = sum(cost.reads for cost in run.costs)
        if run.kind != PLAIN:
            assert run.reader.bytes_read == sum(cost.bytes_read for cost in run.costs) > 0
            assert run.reader.reads == reads
        assert run.latencies.n == run.reader.reads > 0


def test_parts_close_against_a_clock_outside(samples: list[Sample]) -> None:
    run = runs_of(samples)[0]
    for token in run.tokens:
        assert token.cost is not None
        assert tuple(token.cost.parts_ns) == PARTS
        assert sum(token.cost.parts_ns.values()) <= token.cost.wall_ns <= token.wall_ns


def test_without_twins_there_is_no_figure_for_telemetry(model: Model) -> None:
    settings = dataclasses.replace(FEW, telemetry_cost=False)
    samples = list(measure(model, IDS, settings, FakeProbe()))
    assert [run.kind for run in runs_of(samples)] == [COLD, WARM, WARM]
    assert summarize(model, samples, 1)["telemetry"] is None


def test_a_run_that_is_stopped_keeps_what_it_has(model: Model) -> None:
    samples: list[Sample] = []
    for sample in measure(model, IDS, FEW, FakeProbe(), lambda: len(samples) >= 30):
        samples.append(sample)
    cold, cut = runs_of(samples)
    assert (cold.complete, len(cold.tokens)) == (True, 20)
    assert (cut.complete, cut.finish_reason) == (False, "cancelled")
    assert 0 < len(cut.tokens) < 20
    assert samples[-1] is cut
    summary = summarize(model, samples, 1)
    assert summary["measured"] == WARM
    assert summary["decode"]["tokens"] == len(cut.tokens)
    assert summary["bound"] is None


def test_stopped_before_the_first_token(model: Model) -> None:
    samples: list[Sample] = []
    for sample in measure(model, IDS, FEW, FakeProbe(), lambda: True):
        samples.append(sample)
    assert [(run.complete, len(run.tokens)) for run in runs_of(samples)] == [(False, 0)]
    assert summarize(model, samples, 1)["decode"]["ns_per_token"] is None


def test_cancel_during_the_prompt(model: Model) -> None:
    stopped: list[bool] = []
    steps = measure(model, IDS, FEW, FakeProbe(), lambda: bool(stopped))
    next(steps)
    stopped.append(True)
    model.cancel()
    assert [run.complete for run in runs_of(list(steps))] == [False]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(1, "expected 2 or more"), (156, "the most is 155"), (10_000, "beyond the context of 160")],
)
def test_a_length_that_cannot_be(model: Model, tokens: int, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        next(measure(model, IDS, TokenSettings(tokens=tokens), FakeProbe()))


def test_the_longest_run_fills_the_context(model: Model) -> None:
    settings = TokenSettings(tokens=155, runs=1, telemetry_cost=False)
    runs = runs_of(list(measure(model, IDS, settings, FakeProbe())))
    assert [(run.complete, len(run.tokens)) for run in runs] == [(True, 155)] * 2


def end_at(model: Model, token: int) -> None:
    """From now on this token ends an answer."""
    spec = dataclasses.replace(model.info.spec, eos_ids=(token,))
    model.info = dataclasses.replace(model.info, spec=spec)


@pytest.mark.parametrize("steps", [0, 1])
def test_an_answer_that_ends_at_once(model: Model, steps: int) -> None:
    first = list(model.generate(IDS, max_tokens=5))[steps].id
    end_at(model, first)
    with pytest.raises(UsageError, match=r"the answer ended .*; give another prompt"):
        list(measure(model, IDS, FEW, FakeProbe()))


def test_the_step_that_ends_an_answer_counts(model: Model) -> None:
    drawn = [token.id for token in model.generate(IDS, max_tokens=21)]
    end = next(i for i in range(3, 21) if drawn[i] not in drawn[:i])
    end_at(model, drawn[end])
    runs = runs_of(list(measure(model, IDS, FEW, FakeProbe())))
    for run in runs:
        assert [token.id for token in run.tokens] == [*drawn[1:end], None]
        assert run.finish_reason == "stop"


def test_memory_counts_looks_at_the_machine(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    peak_bytes = 1000

    class Hungry(FakeProbe):
        def look(self, run: RunSample) -> ProbeSample:
            nonlocal peak_bytes
            peak_bytes += 50
            return super().look(run)

    monkeypatch.setattr(runs_module, "rss_peak_bytes", lambda: peak_bytes)
    one = dataclasses.replace(FEW, telemetry_cost=False)
    found = runs_of(list(measure(model, IDS, one, Hungry())))
    assert [run.rss_peak_bytes for run in found] == [1000, 1000, 1050]


def test_a_system_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_PROCESS_IO", Path("/nowhere/io"))
    first = ProcessCounts.now()
    assert first.device_bytes_read is None
    assert ProcessCounts.now().since(first).device_bytes_read is None
