"""Traces: every moment of a step belongs to a part, reads in a lane do not overlap."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flashllm.cli.main import main
from flashllm.engine.local import Model, open_model
from flashllm.errors import CannotCreate
from flashllm.flash.manifest import read_manifest
from flashllm.system.clock import PARTS, PartClock
from flashllm.telemetry.step_trace import StepTrace, lanes_of
from flashllm.telemetry.trace_plot import draw
from tests.kv_cache.test_kv_memory import CONTEXT, IDS, limit


class Reads:
    """A reader that has noted some reads."""

    def __init__(self, *times: tuple[int, int]) -> None:
        self.times = np.asarray(times, np.int64).reshape(-1)
        self.calls: list[bool] = []

    def keep_read_times(self, keep: bool) -> None:
        self.calls.append(keep)

    def take_read_times(self) -> np.ndarray:
        return self.times


def test_reads_in_a_lane_follow_one_another(tmp_path: Path) -> None:
    reader = Reads((5, 9), (0, 4), (1, 6), (4, 5), (8, 12))
    pages = Reads((2, 3))
    with StepTrace(PartClock(), reader, {"kv read": pages, "kv write": Reads()}) as trace:
        pass
    assert reader.calls == pages.calls == [True, False]
    lanes = list(lanes_of(trace.reads))
    assert lanes == [(0, (0, 4)), (1, (1, 6)), (0, (4, 5)), (0, (5, 9)), (1, (8, 12))]
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {1: "compute", 2: "steps", 10: "read 1", 11: "read 2", 12: "kv read 1"}
    with pytest.raises(CannotCreate, match="cannot be written"):
        trace.write(tmp_path / "none" / "trace.json")


def test_an_answer_is_traced(model: Model, tmp_path: Path) -> None:
    model.generate([5, 17, 40], 3).complete()  # not traced
    with model.trace() as trace:
        answer = model.generate([7, 8, 9], 5).complete()
    model.generate([6], 3).complete()
    costs = answer.costs
    assert len(trace.steps) == 1 + len(costs)
    assert {one.name for one in trace.parts} <= set(PARTS)
    for step, cost in zip(trace.steps[1:], costs, strict=True):
        own = [one for one in trace.parts if step.begin_ns <= one.begin_ns < step.end_ns]
        for name, ns in cost.parts_ns.items():
            if name != "other":  # to which adding up is counted, too
                assert sum(one.end_ns - one.begin_ns for one in own if one.name == name) == ns
        ends = [one.end_ns for one in own[:-1]]
        assert ends == [one.begin_ns for one in own[1:]]
    reads = answer.prefill.bytes_read > 0
    assert (len(trace.reads) > 0) == reads
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(trace.steps) + len(trace.parts) + len(trace.reads)
    assert min(event["ts"] for event in slices if event["tid"] == 2) == 0


def test_pages_of_keys_and_values_have_lanes(sparse_model: Path, tmp_path: Path) -> None:
    with (
        open_model(
            sparse_model, context=CONTEXT, kv_memory=limit(read_manifest(sparse_model).spec)
        ) as model,
        model.trace() as trace,
    ):
        model.generate(IDS[:110], 4).complete()
    assert len(trace.transfers["kv read"])
    assert len(trace.transfers["kv write"])
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    for name, transfers in trace.transfers.items():
        own = [event for event in events if event["ph"] == "X" and event["name"] == name]
        assert len(own) == len(transfers)
        assert {event["tid"] for event in own} == {
            lane for called, lane in names.items() if called.rsplit(" ", 1)[0] == name
        }
    draw(trace, tmp_path / "trace.png")
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")


def test_run_and_batch_write_traces(
    sparse_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", str(sparse_model), "--ids", "5,6,7", "-n", "3", "--no-quick-profile"]
    assert main([*run, "--trace", str(tmp_path / "run.json")]) == 0
    assert "3 steps" in capsys.readouterr().err
    assert main([*run, "--trace", str(tmp_path / "run.png")]) == 0
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert main([*run, "--trace", str(tmp_path)]) == 73
    assert main([*run, "--trace", str(tmp_path / "none" / "t.json")]) == 73
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": [5, 6]}\n{"prompt": [7], "max_tokens": 2}\n')
    batch = ["batch", str(rows), str(tmp_path / "out.jsonl"), str(sparse_model), "--block", "2"]
    assert main([*batch, "-n", "3", "--trace", str(tmp_path / "batch.json")]) == 0
    assert len(json.loads((tmp_path / "batch.json").read_text())["traceEvents"]) > 10
