"""The law of how soon experts are used again: fitted to what follows it, it is found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.expert_reuse import Counted, count, extended, main, together
from benchmarks.synthetic_experts.routing import Recording
from flashllm.planning.expert_reuse import reuse_features

LAYERS, TOKENS, USED, EXPERTS = 3, 40, 3, 16


def recorded(seed: int) -> Recording:
    """By weight, not by id; the heaviest expert stays for four tokens."""
    random = np.random.default_rng(seed)
    sets = np.array(
        [
            [random.permutation(EXPERTS)[:USED] for _ in range(TOKENS)]
            for _ in range(LAYERS)
        ],
        np.int32,
    )  # fmt: skip
    for layer, token in np.ndindex(LAYERS, TOKENS):
        first = sets[layer, token // 4 * 4, 0]
        if first not in sets[layer, token]:
            sets[layer, token, 0] = first
    return Recording("test", sets, EXPERTS)


def test_the_law_of_what_follows_it() -> None:
    random = np.random.default_rng(0)
    law = random.normal(size=len(reuse_features(2, 0.1, 0)))
    places = [(w, s, n) for w in (2, 5, 9, 30) for s in (0.01, 0.05, 0.2) for n in range(6)]
    features = np.array([reuse_features(*place) for place in places])
    counted = Counted(features, features @ law)
    assert counted.fit() == pytest.approx(law)
    assert counted.errors(law) == pytest.approx((0, 0), abs=1e-12)
    mean, spread = together([counted, counted]).errors(law * 1.1)
    assert mean == pytest.approx(0.1 * counted.growths.mean())
    assert spread == pytest.approx(0.1 * counted.growths.std())


def test_the_heaviest_experts_alone_are_routing_too() -> None:
    recording = recorded(1)
    counted = count(recording, EXPERTS)
    windows = len(counted.growths) // LAYERS // USED
    assert windows == 10, "2 to 20 tokens"
    pairs = [
        [
            len({*recording.sets[layer, at, :2], *recording.sets[layer, at + 1, :2]})
            for at in range(TOKENS - 1)
        ]
        for layer in range(LAYERS)
    ]
    found = np.exp(counted.growths.reshape(USED, windows, LAYERS)[1, 0]) * 2
    assert found == pytest.approx(np.mean(pairs, axis=1))
    assert counted.features[windows * LAYERS].tolist() == list(reuse_features(2, 2 / EXPERTS, 0))


def test_what_is_drawn_to_experts_returns_about_as_they_do() -> None:
    mean, spread = extended(recorded(2), EXPERTS)
    assert abs(mean) < 0.12
    assert 0 < spread < 0.2


def test_the_command_reads_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for seed in (1, 2):
        lines = ["phase,step,layer,slot,expert"]
        for (layer, token, slot), expert in np.ndenumerate(recorded(seed).sets):
            lines.append(f"1,{token},{layer},{slot},{expert}")
        names.append(tmp_path / f"{seed}.csv")
        names[-1].write_text("\n".join(lines))
    assert main([*map(str, names), "--experts", str(EXPERTS)]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    both = together([count(recorded(seed), EXPERTS) for seed in (1, 2)])
    assert found["coefficients"] == pytest.approx(both.fit().tolist())
    second = count(recorded(2), EXPERTS)
    held_out = second.errors(count(recorded(1), EXPERTS).fit())
    assert found["rows"][1]["held_out"] == pytest.approx(held_out)
