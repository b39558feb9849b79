"""Slots of layers by recorded routing: what is learnt, and what replays make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.expert_slots import (
    ALIKE,
    FREQUENCIES,
    POLICIES,
    TOGETHER,
    activity_of,
    compare_policies,
    frequency_curves,
    main,
    measure,
)
from benchmarks.synthetic_experts.routing import Recording

EXPERTS, TOKENS = 16, 80


def uneven() -> np.ndarray:
    """A layer that needs two experts alone, and one that goes through twelve in turn."""
    few = np.tile([3, 7], (TOKENS, 1))
    many = np.array([[2 * token % 12, (2 * token + 1) % 12] for token in range(TOKENS)])
    return np.stack([few, many]).astype(np.int32)


def test_slots_go_where_experts_differ() -> None:
    (row,) = measure(Recording("test", uneven(), EXPERTS), [0.45])
    assert (row["slots"], row["spread"]) == (7, (2, 12))
    assert row["hits"][FREQUENCIES] == 1.0
    assert 0.5 <= row["hits"][ALIKE] < 0.9


def test_one_list_for_all_layers_misses_all_below_a_cycle() -> None:
    """Six slots a layer: layer 0 needs two, and twelve pass through layer 1 in turn."""
    small, large = compare_policies(Recording("test", uneven(), EXPERTS), [0.375, 0.45])
    assert small["hits"][TOGETHER] == 0.5, "12 slots, 14 experts in turn: what layer 0 needs"
    assert large["hits"][TOGETHER] == 1.0, "14 slots"
    assert small["hits"]["lru"] == large["hits"]["lru"] == 0.5
    assert all(0.5 <= row["hits"][name] < 1.0 for row in (small, large) for name in POLICIES)


def test_what_is_learnt_by_hand() -> None:
    sets = uneven()
    activity = activity_of(sets, EXPERTS)
    for number, window in enumerate(activity.windows):
        distinct = [
            len(set(sets[1, first : first + window].ravel().tolist()))
            for first in range(TOKENS - window + 1)
        ]
        assert activity.s_agg[number] == (2.0, pytest.approx(np.mean(distinct)))
        assert activity.slots_needed[number] == (2, max(distinct))
    few, many = frequency_curves(sets, 2, EXPERTS)
    assert few[0] == (2.0, 0.0)
    assert many[0][1] == pytest.approx(2 - 2 * (14 / 80), abs=0.01)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["phase,step,layer,expert"]
    for layer, tokens in enumerate(uneven().tolist()):
        for step, experts in enumerate(tokens):
            lines += [f"1,{step},{layer},{expert}" for expert in experts]
    (tmp_path / "recorded.csv").write_text("\n".join(lines))
    assert main([str(tmp_path / "recorded.csv"), "--shares", "0.6"]) == 0
    assert "| 7 |" in capsys.readouterr().out
    assert main([str(tmp_path / "recorded.csv"), "--shares", "0.6", "--policies"]) == 0
    assert "| 7 | 58.3% | 100.0% | 50.0% |" in capsys.readouterr().out
