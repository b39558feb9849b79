"""`benchmarks.second_turn`: what a second turn reads, against what had no slot before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import second_turn
from flashllm.bench.prompt.runs import random_ids
from flashllm.engine.local import Model, open_model
from tests.support import lent_slots

PROMPT = 24
GENERATE = Model.generate


def test_a_second_turn_reads_nothing_of_what_is_in_memory(
    sparse_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert second_turn.main([str(sparse_model), "--prompt", str(PROMPT), "--rounds", "2"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    for turn in report["second_turns"]:
        assert turn["first_turn_bytes_read"] > 0, "each round begins with empty slots"
        assert (turn["bytes_read"], turn["bytes_missing"]) == (0, 0)
        assert turn["read_tokens"] >= second_turn.NEW_TOKENS
        assert turn["read_tokens"] + turn["reused_tokens"] > PROMPT + second_turn.NEW_TOKENS
        assert turn["reused_tokens"] >= PROMPT, "the first turn goes on"
    assert len(report["second_turns"]) == 2


@pytest.mark.parametrize("is_short", [False, True])
def test_what_it_reads_is_what_the_reader_counts(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch, is_short: bool
) -> None:
    lent_slots.shorten_blocks(monkeypatch, sparse_model)
    opened = lent_slots.short_of_slots if is_short else open_model
    with opened(sparse_model) as model:
        spec, stride = model.info.spec, model.info.bundle_stride_bytes
        bundles = spec.bundled_layers * spec.bundles_per_layer
        spare = bundles - sum(model.plan.slots_per_layer)
        counted = []
        monkeypatch.setattr(
            Model, "generate", lambda *given, **named: _counted(counted, *given, **named)
        )
        turn = second_turn.second_turn(model, random_ids(spec.vocab_size), PROMPT)
        read = model.reader_stats()["bytes_read"] - counted[-1]
    assert len(counted) == 2, "a turn, and the second one"
    assert turn.bytes_read == read >= turn.bytes_useful
    assert turn.bytes_missing >= spare * stride, "what has no slot"
    assert (turn.bytes_missing > 0) == is_short == (read > 0)


def _counted(counted: list[int], model: Model, *given: Any, **named: Any) -> Any:
    counted.append(model.reader_stats()["bytes_read"])
    return GENERATE(model, *given, **named)


def test_a_turn_that_reads_what_was_in_memory_is_an_error(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = second_turn.bytes_missing

    def counted_and_lost(model: Model) -> int:
        """The slots lose what they held once it was counted, so that it is read again."""
        missing = real(model)
        model.decoder.pool.clear()
        return missing

    monkeypatch.setattr(second_turn, "bytes_missing", counted_and_lost)
    assert second_turn.main([str(sparse_model), "--prompt", str(PROMPT), "--rounds", "1"]) == 1
    shown = capsys.readouterr()
    assert "read more than what was not in slots" in shown.err
    assert "| NO |" in shown.out
