"""The ablation's rows: what they read against counts made apart, and that they answer the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert

from flashllm.bench.ablation import report
from flashllm.bench.ablation import run as ablation_module
from flashllm.bench.ablation.active_sets import ActiveSets
from flashllm.bench.ablation.resident_reread import ResidentStream
from flashllm.bench.ablation.rows import ADDITIONS, Addition, added_rows, table_rows
from flashllm.bench.ablation.run import Ablation, Settings
from flashllm.cli.main import main
from flashllm.errors import MemoryCeilingTooSmall, UsageError
from flashllm.flash.manifest import read_manifest
from flashllm.flash.store import Store
from flashllm.weight_cache.blocks import smallest_slots

# The demo's bundles have two rows of 640 bytes, and reads are of whole blocks of 512.
BUNDLE_PADDING = 1536 / 1280 - 1
ROW_PADDING = 2 * 1024 / 1280 - 1
TEXT = list(np.random.default_rng(0).integers(3, 90, 64))


def nothing(*_: object) -> None:
    pass


def run(directory: Path, text: list[int] = TEXT, **settings: object):
    ablation = Ablation(directory, text, Settings(**settings))
    results = []
    for results in ablation.run(nothing):  # noqa: B007
        pass
    return ablation, results, report.report(ablation, results, complete=True)


@pytest.fixture(scope="module")
def demo_report(demo: Path):
    return run(demo, [5 + i * 37 % 4000 for i in range(80)], tokens=24, runs=2)


def test_each_row_reads_what_the_formula_says(demo_report) -> None:
    _, _, found = demo_report
    assert [row["key"] for row in found["rows"]] == [
        "flash", "half", "predictor", "window", "bundling",
    ]  # fmt: skip
    for row in found["rows"]:
        padding = ROW_PADDING if row["key"] in ("predictor", "window") else BUNDLE_PADDING
        least = 0.0 if row["key"] in ("flash", "half") else padding  # other weights have none
        assert least - 0.02 < row["off"] < padding + 0.02, row["title"]
        assert row["spilled"] == row["passes"] == 0
    assert not found["within_formula"], "the formula knows no padding"


def test_rows_that_compute_the_same_neurons_answer_the_same(demo_report) -> None:
    _, results, found = demo_report
    dense = {run.answers for result in results[:2] for run in result.runs}
    sparse = {run.answers for result in results[2:] for run in result.runs}
    assert len(dense) == len(sparse) == 1
    assert dense != sparse, "predictors leave something out"
    assert found["same_answers"]


def test_each_row_moves_fewer_bytes_or_makes_fewer_reads(demo_report) -> None:
    _, _, found = demo_report
    moved = [row["bytes_a_token"]["median"] for row in found["rows"]]
    reads = [row["reads_a_token"]["median"] for row in found["rows"]]
    assert moved[0] > moved[1] > moved[2] > moved[3] > moved[4]
    assert moved[3] / moved[4] == pytest.approx((1 + ROW_PADDING) / (1 + BUNDLE_PADDING))
    assert reads[2] > reads[3] > 1.5 * reads[4], "two rows of a neuron, apart or together"


def test_half_of_the_weights_is_held_in_the_second_row(demo_report) -> None:
    ablation, _, found = demo_report
    none, half = found["rows"][:2]
    assert none["held_bytes"] == 0
    block = ablation.spec.bundle_bytes * 4096
    assert abs(half["held_bytes"] - found["model_bytes"] / 2) <= block


def test_the_window_needs_no_more_slots_than_it_gets(demo_report) -> None:
    ablation, _, _ = demo_report
    rows = {one.row.key: ablation._plan_of(one.row) for one in ablation.expected()}
    assert sum(rows["predictor"].slots_per_layer) < sum(rows["window"].slots_per_layer)
    assert rows["window"].slots_per_layer == rows["bundling"].slots_per_layer


def test_a_report_tells_of_rows_that_are_off_and_of_different_answers(demo_report) -> None:
    ablation, results, found = demo_report
    worse = json.loads(json.dumps(found))
    worse |= {"within_formula": False, "same_answers": False, "each_faster_than_above": False}
    worse["complete"] = False
    text = report.table(worse)
    assert "Not every row reads within 2%" in text
    assert "DIFFERENT LOGITS" in text
    assert "Interrupted" in text
    results[3].formula_bytes *= 1.05
    assert not report.report(ablation, results, complete=True)["within_formula"]
    results[3].formula_bytes /= 1.05


def test_the_first_row_computes_from_what_it_has_just_read(sparse_model: Path) -> None:
    ablation = Ablation(sparse_model, TEXT, Settings(tokens=4, runs=1))
    wanted = iter(range(1000))

    class Spoiled(ResidentStream):
        def __init__(self, store: Store, image: Any, direct: bool) -> None:
            super().__init__(store, image, direct)
            self.content = image.array()

        def read(self, layer: int) -> None:
            next(wanted)
            kept = self.content.copy()
            for start, end in self._ranges[layer]:
                self.content[start:end] = 0
            super().read(layer)
            assert (self.content == kept).all()

    def first_answers() -> str:
        return next(ablation.run(lambda *_: None))[0].runs[0].answers

    answers = first_answers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation_module, "ResidentStream", Spoiled)
        assert first_answers() == answers
    assert next(wanted) == (1 + 2) * (ablation.spec.n_layers + 1), "each layer and the head, once"


def test_what_the_first_row_reads_is_the_whole_resident_file(sparse_model: Path) -> None:
    with Store(sparse_model) as store:
        _, image = store.load_resident_image(direct=True)
        stream = ResidentStream(store, image, direct=True)
        for layer in range(store.spec.n_layers + 1):
            stream.read(layer)
        size = (sparse_model / "resident.safetensors").stat().st_size
        slack = 2 * 4096 * (store.spec.n_layers + 2)
        assert size - slack <= stream.stats()["bytes_read"] <= size + slack
        stream.close()


def test_windows_are_counted_as_by_the_other_definition() -> None:
    from flashllm.predictors.evaluation.windows import WindowMeter

    generator = np.random.default_rng(3)
    sets = [
        [np.flatnonzero(generator.random(50) < 0.2).astype(np.int32) for _ in range(30)]
        for _ in range(3)
    ]
    nothing_held = [np.empty(0, np.int32)] * 3
    for window in (1, 2, 5, 9):
        loads, needed = 0.0, []
        for layer in sets:
            meter = WindowMeter(50)
            for token, ids in enumerate(layer):
                meter.add(ids, counted=token >= 9)
            loads += float(meter.loads[window - 1])
            whole = WindowMeter(50)
            whole.add_all(layer, np.ones(30, np.bool_))
            needed.append(int(whole.slots_needed[window - 1]))
        counted = ActiveSets(sets, 50, 9, nothing_held)
        assert counted.loads(window) == pytest.approx(loads)
        assert counted.slots_needed(window) == needed
    assert ActiveSets(sets, 50, 9, nothing_held).loads(0) == pytest.approx(
        sum(len(ids) for layer in sets for ids in layer[9:]) / 21
    )


def test_what_a_prompt_leaves_takes_slots_until_the_window_has_passed_it() -> None:
    sets = [[np.array([1], np.int32)] * 3]
    held = [np.array([4, 5, 6], np.int32)]
    assert ActiveSets(sets, 8, 0, held).slots_needed(2) == [4]
    assert ActiveSets(sets, 8, 0, held).slots_needed(1) == [1]


def test_rows_of_a_bundle_read_apart_are_the_same_bytes(sparse_model: Path) -> None:
    from flashllm import core

    pools = []
    for apart in (False, True):
        with Store(sparse_model) as store:
            store.open_reader(True, 4, rows_apart=apart)
            stride = store.header.stride
            buffer = core.Buffer(8 * stride)
            ids = np.array([3, 7, 150], np.int32)
            places = np.array([0, 5, 2], np.int64) * stride
            store.wait_bundles(1, store.submit_bundles(1, ids, buffer, places))
            rows = buffer.array().reshape(8, stride)[:, : store.spec.bundle_bytes]
            pools.append(rows.copy())
            if apart:
                assert store.reader.stats()["bytes_useful"] == 3 * store.spec.bundle_bytes
    assert (pools[0] == pools[1]).all()
    assert pools[0][5].any()


def test_each_addition_stands_alone_on_the_last_row_and_then_all_together(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = [5 + i * 37 % 4000 for i in range(80)]
    monkeypatch.setattr(ablation_module, "ADDITIONS", (*ADDITIONS, FEWER))
    ablation, results, found = run(demo, text, tokens=8, runs=2, add=True, io_threads=3)
    rows = {row["key"]: row for row in found["rows"]}
    overlaps = ["overlap-hits", "overlap-attention", "overlap-layer"]
    assert list(rows)[4:] == ["bundling", "gap", "policy", *overlaps, "kv", "fewer", "all"]
    assert all(row["paper"] is None for row in found["rows"][5:])
    exact = [row for row in found["rows"][2:] if row["key"] not in ("kv", "all")]
    assert len({answer for row in exact for answer in row["answers"]}) == 1
    assert rows["kv"]["answers"] == rows["all"]["answers"] != exact[0]["answers"]
    assert found["same_answers"]
    reads = {key: row["reads_a_token"]["median"] for key, row in rows.items()}
    assert reads["gap"] <= reads["bundling"] == reads["fewer"] == reads["overlap-hits"]
    bytes_read = {key: row["bytes_a_token"]["median"] for key, row in rows.items()}
    assert bytes_read["overlap-hits"] == bytes_read["bundling"] < bytes_read["overlap-layer"]
    assert rows["bundling"]["off"] == pytest.approx(BUNDLE_PADDING, abs=0.02)
    plans = {one.row.key: ablation._plan_of(one.row) for one in ablation.expected()}
    for key in ("predictor", "window", "bundling", "gap"):
        assert (plans[key].policy, plans[key].overlap) == ("window", "none"), "as in the paper"
    assert plans["policy"] == replace(plans["bundling"], policy="blend")
    assert [plans[key].overlap for key in overlaps] == ["hits", "attention", "layer"]
    together = (plans["all"].policy, plans["all"].overlap, plans["all"].kv_dtype)
    assert together == ("blend", "layer", "int8")
    added = {one["key"]: one for one in found["added"]}
    assert list(added) == list(rows)[5:]
    for key, one in added.items():
        assert one["base"] == "bundling"
        own, base = (next(r.runs for r in results if r.row.key == k) for k in (key, "bundling"))
        speeds = [b.seconds / o.seconds for b, o in zip(base, own, strict=True)]
        assert one["speed"]["samples"] == pytest.approx(speeds)
        assert one["reads"]["median"] == pytest.approx(reads[key] / reads["bundling"])
    everything = ablation.expected()[-1].row
    assert (everything.gap_bytes, everything.io_threads) == (results[5].row.gap_bytes, 2)
    table = report.table(found)
    assert "added to the last row" in table
    assert f"{added['gap']['speed']['median']:.3f}x" in table
    fewer = results[-2]
    assert fewer.row.key == "fewer"
    fewer.row = replace(fewer.row, precision="other")
    fewer.runs[:] = [replace(run, answers="other") for run in fewer.runs]
    assert report.report(ablation, results, complete=True)["same_answers"]
    fewer.row = replace(fewer.row, precision="")
    assert not report.report(ablation, results, complete=True)["same_answers"]


FEWER = Addition("fewer", "{window} and two threads", lambda _: {"io_threads": 2})


def test_predictors_of_another_conversion_are_an_addition_that_may_answer_otherwise(
    demo: Path, tmp_path: Path, sparse_model: Path
) -> None:
    other = tmp_path / "other{}"
    source = Path(__file__).parents[2] / "flashllm" / "demo"
    convert(source, other, predictors=source / "predictors.safetensors", predictor_dtype="int8")
    text = [5 + i * 37 % 4000 for i in range(80)]
    ablation, _, found = run(demo, text, tokens=8, runs=1, add=True, beside=(other,), io_threads=3)
    row = next(row for row in found["rows"] if row["key"].startswith("predictors:"))
    assert row["title"] == "+ predictors of other{}"
    assert row["answers"] != found["rows"][4]["answers"]
    files = [read_manifest(model).files["predictors.safetensors"].bytes for model in (demo, other)]
    sets, least = ablation._sets, smallest_slots(ablation.spec.bundles_per_layer)
    slots = [sum(max(n, least) for n in sets[model].slots_needed(5)) for model in (demo, other)]
    saved = files[0] - files[1] + (slots[0] - slots[1]) * ablation.stride
    assert found["rows"][4]["held_bytes"] - row["held_bytes"] == saved
    off = pytest.approx(BUNDLE_PADDING, abs=0.02)
    assert row["off"] == off, "the formula is that of its own active sets"
    assert found["same_answers"], "within one precision"
    assert ablation.expected()[-1].row.directory == other
    assert ablation.expected()[-1].row.precision == f"keys and values in int8, {other}"
    with pytest.raises(UsageError, match="differs in --predictor-dtype only"):
        Ablation(demo, text, Settings(add=True, beside=(sparse_model,)))
    assert main(["bench", "ablation", str(demo), "--beside", str(other)]) == 2


def test_changes_of_one_kind_are_merged_and_those_that_change_nothing_left_out() -> None:
    names = ("gap_bytes", "io_threads", "kv_dtype")
    plan = SimpleNamespace(gap_bytes=0, io_threads=32, kv_dtype="int8", __slots__=names)
    same_here = [one for one in ADDITIONS if one.key in ("gap", "threads", "kv")]
    additions = (
        *same_here,
        Addition("overlap", "hits meanwhile", lambda _: {"plan": {"overlap": "hits"}}),
        Addition("policy", "least used", lambda _: {"plan": {"policy": "lfu"}}),
    )
    last = table_rows(5, 32)[-1]
    rows = added_rows(last, plan, additions)
    assert [row.key for row in rows] == ["overlap", "policy", "all"]
    assert [row.plan for row in rows] == [
        {"overlap": "hits"},
        {"policy": "lfu"},
        {"overlap": "hits", "policy": "lfu"},
    ]
    assert {row.base for row in rows} == {"bundling"}
    assert added_rows(last, plan, same_here) == []


def test_a_model_that_needs_every_neuron_has_two_rows(sparse_model: Path) -> None:
    _, _, found = run(sparse_model, tokens=4, runs=1, select="all")
    assert [row["key"] for row in found["rows"]] == ["flash", "half"]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"select": "oracle"}, UsageError, "reads every neuron"),
        ({"tokens": 9999}, UsageError, "positions"),
        ({"tokens": 40}, UsageError, "longer --text"),
        ({"tokens": 4, "memory": 1 << 20}, MemoryCeilingTooSmall, "more --memory than that"),
    ],
)
def test_what_cannot_be_run_is_said_first(
    sparse_model: Path, settings: dict, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        run(sparse_model, TEXT[:50], runs=1, **settings)


def test_a_ceiling_that_is_too_small_names_what_all_rows_need(demo: Path) -> None:
    text = [5 + i * 37 % 4000 for i in range(80)]
    settings = Settings(tokens=4, runs=1, add=True, memory=1 << 20)
    refused = Ablation(demo, text, settings)
    with pytest.raises(MemoryCeilingTooSmall, match="and 1 MiB are allowed") as raised:
        next(refused.run(lambda *_: None))
    first, *needs = [row.needed_bytes for row in refused.expected()]
    assert first == 0, "it holds nothing"
    assert raised.value.smallest_bytes == max(needs) > min(needs)
    # What the prompt leaves in the slots is more where there are more of them.
    enough = max(needs) * 11 // 10
    assert next(Ablation(demo, text, replace(settings, memory=enough)).run(lambda *_: None))


def test_an_interrupted_run_keeps_what_there_is(
    demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Ablation._measure, iter(range(100))

    def interrupted(ablation: Ablation, row: object) -> object:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return original(ablation, row)

    monkeypatch.setattr(Ablation, "_measure", interrupted)
    text = Path(__file__).parents[2] / "flashllm" / "demo" / "heldout.jsonl"
    arguments = ["bench", "ablation", str(demo), "--text", str(text), "-n", "4", "--json"]
    assert main(arguments) == 130
    found = json.loads(capsys.readouterr().out)
    assert not found["complete"]
    assert [row["key"] for row in found["rows"]] == ["flash", "half", "predictor"]


def test_the_command_prints_a_table_and_draws_it(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(__file__).parents[2] / "flashllm" / "demo" / "heldout.jsonl"
    arguments = ["bench", "ablation", str(demo), "--text", str(text), "-n", "4", "--runs", "1"]
    assert main([*arguments, "--plot", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for title in ("all from flash", "half resident", "+ predictor", "+ window of 5", "+ bundling"):
        assert out.count(title) == 2, "ours and the paper's"
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_of_the_users_own_needs_a_text(
    sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "ablation", str(sparse_model)]) == 2
    assert "--text" in capsys.readouterr().err
