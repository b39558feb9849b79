"""`benchmarks.decode_reads`: it reads what decoding reads, and is laid beside fio by turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import decode_reads
from benchmarks.decode_reads import BACK_TO_BACK, WAITED, DecodeReads, Pattern, interleaved, ratios
from flashllm.bench.disk import probe
from flashllm.bench.disk.fio import FioResult
from flashllm.errors import BenchmarkInvalid, UsageError
from flashllm.flash.layout import read_header
from flashllm.flash.store import Store

PATTERN = Pattern((3, 5, 4), 4, 2)


@pytest.fixture
def reads(sparse_model: Path) -> Any:
    probe.forget(sparse_model / "ffn.bundles")
    with Store(sparse_model) as store:
        yield DecodeReads(store, PATTERN, pool_bytes=64 * store.header.stride)


def test_bundles_of_the_right_layer_land_whole_in_slots_of_their_own(
    reads: DecodeReads, sparse_model: Path
) -> None:
    bundles = sparse_model / "ffn.bundles"
    content, header = bundles.read_bytes(), read_header(bundles)
    for layer, count in enumerate(PATTERN.loads):
        offsets, destinations = reads._places(layer, count)
        first = header.offset(layer, 0)
        assert len(set(destinations.tolist())) == len(set(offsets.tolist())) == count
        assert (np.diff(offsets) > 0).all()
        size = header.bundles_per_layer * reads.stride
        assert first <= offsets[0] <= offsets[-1] < first + size
        reads.reader.read(offsets, reads.stride, reads._pool, destinations)
        pool = reads._pool.array()
        for offset, place in zip(offsets.tolist(), destinations.tolist(), strict=True):
            found = pool[place : place + reads.stride].tobytes()
            assert found == content[offset : offset + reads.stride]


def test_calls_under_way_share_no_slot(reads: DecodeReads) -> None:
    calls = [reads._places(layer % 3, PATTERN.loads[layer % 3])[1] for layer in range(60)]
    for first in range(len(calls) - 11):
        places = np.concatenate(calls[first : first + 12])
        assert len(set(places.tolist())) == len(places) <= 64
    everywhere = np.concatenate(calls)
    assert len(set(everywhere.tolist())) == 64, "slots all over the pool"


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_rate_is_of_bundles_that_arrived(reads: DecodeReads, ahead: int) -> None:
    before = int(reads.reader.stats()["bytes_useful"])
    rate = reads.run(0.05, ahead)
    moved = int(reads.reader.stats()["bytes_useful"]) - before
    assert rate > 0
    assert 0 < moved <= rate * 60, "no more than what arrived is counted"
    assert moved % reads.stride == 0


def test_ours_stand_between_two_of_fio() -> None:
    clock = iter(range(1, 100))
    order: list[str] = []

    def taking(name: str) -> float:
        order.append(name)
        return float(next(clock))

    ours = {name: (lambda name=name: taking(name)) for name in ("a", "b")}
    fio, found = interleaved(2, lambda: taking("fio"), ours)
    assert order == ["fio", "a", "b", "fio", "b", "a", "fio"]
    assert fio == [1, 4, 7]
    assert found == {"a": [2, 6], "b": [3, 5]}
    assert ratios(found["a"], fio) == pytest.approx([2 / 2.5, 6 / 5.5])


@pytest.mark.parametrize(("rate", "code"), [(1.0, 0), (1e15, 1)])
def test_the_command_says_how_far_it_is_from_fio(
    rate: float,
    code: int,
    sparse_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[tuple[int, int]] = []

    def fio(name: str, path: Path, size: int, threads: int, seconds: float) -> FioResult:
        asked.append((size, threads))
        return FioResult(size, threads, rate, {})

    monkeypatch.setattr(decode_reads, "find_fio", lambda: "fio")
    monkeypatch.setattr(decode_reads, "run_fio", fio)
    monkeypatch.setattr(decode_reads, "POOL_BYTES", 1 << 20)
    monkeypatch.setattr(decode_reads.DecodeReads.__init__, "__defaults__", (1 << 20,))
    arguments = [str(sparse_model), "--batch", "4", "--threads", "3", "--rounds", "2"]
    assert decode_reads.main([*arguments, "--seconds", "0.02", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert asked == [(found["read_bytes"], 3)] * 3
    assert found["bundles_a_layer"] == 4
    assert set(found["ours"]) == {WAITED, BACK_TO_BACK}
    medians = found["ours"][WAITED]["samples"]
    assert found["ratios"][WAITED]["samples"] == pytest.approx([one / rate for one in medians])
    assert "over fio" in decode_reads.table(found)


def test_what_cannot_be_compared_is_said(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_reads, "find_fio", lambda: None)
    with pytest.raises(UsageError, match="fio is not installed"):
        decode_reads.main([str(sparse_model)])
    monkeypatch.setattr(decode_reads, "find_fio", lambda: "fio")
    monkeypatch.setattr(decode_reads, "recorded_activity", lambda *_: None)
    with pytest.raises(UsageError, match="give --batch"):
        decode_reads.main([str(sparse_model)])
    monkeypatch.setattr(decode_reads, "run_fio", lambda *_: "fio failed: no")
    with pytest.raises(BenchmarkInvalid, match="fio failed"):
        decode_reads.main([str(sparse_model), "--batch", "1"])
