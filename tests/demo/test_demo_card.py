"""The demos' cards: what they say follows from logs and scores."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tools.demo.card import make_card
from tools.demo.kinds import KINDS
from tools.demo.train import Recipe

FOLDER = Path(__file__).parents[2] / "flashllm" / "demo"
CALIBRATED = {
    "words_asked": 10,
    "words_kept": 9,
    "others_asked": 8,
    "others_kept": 7,
    "unknown_asked": 6,
    "unknown_explained": 5,
}
SCORE = {
    "asked": {"definition": 4},
    "right": {"definition": 0.75},
    "sparsity": 0.875,
    "sparsity_by_layer": [0.9, 0.85],
    "busiest_expert_by_layer": [1.25, 2.0],
    "idlest_expert_by_layer": [0.5, 0.25],
}
NATURAL = {
    "questions": 300,
    "right_or_refused": 0.9,
    "invented": 0.1,
    "by_kind": {"known": {"right": 2}},
    "verdicts": {"right": 2},
}


def write_build(folder: Path, kind: str, calibrated: bool) -> Path:
    """What a run and its scores leave behind."""
    (folder / "run").mkdir(parents=True)
    (folder / "corpus").mkdir()
    shape = asdict(KINDS[kind].shape(8192))
    recipe = asdict(Recipe(steps=30, lr=0.5))
    stages: list[dict[str, Any]] = [
        {"from_step": 0, "recipe": recipe, "shape": shape, "is_calibrated": False},
        {"from_step": 20, "recipe": recipe, "shape": shape, "is_calibrated": calibrated},
    ]
    for stage in stages if kind != "opt" else ():  # the first runs named no kind
        stage["kind"] = kind
    line = {"loss": 1.5, "definition_loss": 0.1, "other_loss": 0.2, "sparsity": 0.9, "busiest": 1.5}
    log = [{"step": n, "tokens": 4096 * n, "seconds": 60.0 * n, **line} for n in range(1, 31)]
    for name, records in (("stages", stages), ("log", log)):
        (folder / "run" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    if calibrated:
        (folder / "corpus" / "calibrated.json").write_text(json.dumps(CALIBRATED))
    (folder / "score.json").write_text(json.dumps(SCORE))
    (folder / "natural.json").write_text(json.dumps(NATURAL))
    return folder


def test_the_demos_card_has_the_passages_of_the_one_that_is_there(tmp_path: Path) -> None:
    made = make_card(write_build(tmp_path / "build", "opt", calibrated=True), FOLDER)
    there = (FOLDER / "README.md").read_text(encoding="utf-8")
    for title in ("# The demo model", "## Files", "## Data and licence", "## Predictors"):
        begin, end = (text.index(title) for text in (made, there))
        passage = made[begin : made.index("\n## ", begin + 5)]
        assert passage == there[end : end + len(passage)]
    assert "| definition | 4 | 75.0% |" in made
    assert "FFN sparsity" in made
    assert "defined 9 rightly" in made
    assert "--steps 30 --lr 0.5  # to step 20\n    python -m tools.demo.calibrate\n" in made


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_card_of_experts_speaks_of_experts(tmp_path: Path, calibrated: bool) -> None:
    made = make_card(write_build(tmp_path / "build", "qwen3_moe", calibrated), FOLDER)
    assert "16 experts a layer, of which a token\ngoes through 2." in made
    assert "| 30 | 0.1 | 30 | 1.500 | 0.100 | 0.200 | 1.50 × |" in made
    assert "choices that it would have if all were used alike, the idlest 0.50, 0.25 (by" in made
    assert "1.25, 2.00 times" in made
    assert ("defined 9 rightly" in made) == calibrated
    calibrate = "tools.demo.calibrate --corpus build/demo-moe/corpus --run build/demo-moe/run\n"
    assert (calibrate in made) == calibrated
    assert "--steps 30 --lr 0.5 --kind qwen3_moe --export flashllm/demo_moe\n" in made
    assert "ReLU" not in made
    assert "{" not in made
