"""Writes the model card from what was measured: `python -m tools.demo.card`.

It reads the run's recipe and log, the scores that `tools.demo.score --json` kept and the exported
folder; no number in the card is typed in by hand.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from . import card_text
from .choices import UNKNOWN
from .kinds import KINDS, OPT
from .lexicon import GLOSS_WORDS_MAX
from .train import Recipe

CURVE_ROWS = 12
TRAINED_ON = "two shared cores"
NOT_OF_THE_KIND = {
    "opt": ("balance",),
    "qwen3_moe": ("sparsity_from", "sparsity_to", "sparsity_goal"),
}
"""Settings that change nothing for models of a kind."""


def read_log(path: Path) -> list[dict[str, Any]]:
    """Lines of the log by step; of two lines for one step, as a resumed run leaves, the later."""
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    by_step = {record["step"]: record for record in records}
    return [by_step[step] for step in sorted(by_step)]


def curve_rows(log: Sequence[dict[str, Any]], kind: str) -> str:
    """A dozen rows of the log, evenly spaced, the last one included."""
    use = "{sparsity:.1%}" if kind == OPT.name else "{busiest:.2f} ×"
    picked = [log[round(i * (len(log) - 1) / CURVE_ROWS)] for i in range(1, CURVE_ROWS + 1)]
    return "\n".join(
        f"| {r['step']} | {r['tokens'] / 1e6:.1f} | {r['seconds'] / 60:.0f} | {r['loss']:.3f} |"
        f" {r['definition_loss']:.3f} | {r['other_loss']:.3f} | {use.format_map(r)} |"
        for r in picked
    )


def score_rows(score: dict[str, Any]) -> str:
    """One row an intent."""
    return "\n".join(
        f"| {intent.replace('_', ' ')} | {score['asked'][intent]:,} | {right:.1%} |"
        for intent, right in score["right"].items()
    )


def setting_rows(recipe: dict[str, Any], shape: dict[str, Any], kind: str) -> str:
    """Shape and recipe as rows of a table."""
    settings = {k: v for k, v in {**shape, **recipe}.items() if k not in NOT_OF_THE_KIND[kind]}
    return "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in settings.items())


def read_stages(path: Path) -> list[dict[str, Any]]:
    """What each stage of the run was given; stages that left no step behind are dropped."""
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    by_step = {record["from_step"]: record for record in records}
    return [by_step[step] for step in sorted(by_step)]


def commands(stages: Sequence[dict[str, Any]]) -> str:
    """The trainer's command for each stage, with the options that are not the defaults."""
    defaults = asdict(Recipe())
    kind = kind_of_run(stages)
    folder, places = "flashllm/demo", ""
    if kind != OPT.name:
        folder = "flashllm/demo_moe"
        places = "--corpus build/demo-moe/corpus --folder build/demo-moe/run "
    lines = []
    is_calibrated = False
    for stage, following in zip_longest(stages, stages[1:]):
        changed = {k: v for k, v in stage["recipe"].items() if v != defaults[k]}
        if kind != OPT.name:
            sizes = {k: v for k, v in stage["shape"].items() if k in KINDS[kind].sizes}
            usual = asdict(KINDS[kind].shape(vocab_size=0))
            changed |= {"kind": kind} | {k: v for k, v in sizes.items() if v != usual[k]}
        options = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in changed.items())
        end = f"  # to step {following['from_step']}" if following else f" --export {folder}"
        if stage["is_calibrated"] and not is_calibrated:
            is_calibrated = True
            calibrated = places.replace("--folder", "--run")
            lines.append(f"    python -m tools.demo.calibrate {calibrated}".rstrip())
        lines.append(f"    python -m tools.demo.train {places}{options}{end}")
    return "\n".join(lines)


def kind_of_run(stages: Sequence[dict[str, Any]]) -> str:
    """The kind of model that a run trains; the first runs named none."""
    kind: str = stages[-1].get("kind", OPT.name)
    return kind


def count_lines(path: Path) -> int:
    """Lines of a text file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def count_parameters(path: Path) -> int:
    """Elements of all tensors, by the header of a safetensors file."""
    with path.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    header.pop("__metadata__", None)
    total = 0
    for tensor in header.values():
        count = 1
        for size in tensor["shape"]:
            count *= size
        total += count
    return total


def natural_rows(natural: dict[str, Any]) -> str:
    """One row a kind of question, by what the answers were."""
    rows = {**natural["by_kind"], "all": natural["verdicts"]}
    columns = ("right", "refused", "not asked", "invented")
    return "\n".join(
        f"| {kind.replace('_', ' ')} | {' | '.join(str(counts.get(c, 0)) for c in columns)} |"
        for kind, counts in rows.items()
    )


def make_card(build: Path, folder: Path) -> str:
    """The card's text; `build` holds the run, the corpus and the scores."""
    stages = read_stages(build / "run" / "stages.jsonl")
    kind, recipe, shape = kind_of_run(stages), stages[-1]["recipe"], stages[-1]["shape"]
    score = json.loads((build / "score.json").read_text(encoding="utf-8"))
    natural = json.loads((build / "natural.json").read_text(encoding="utf-8"))
    calibrated = build / "corpus" / "calibrated.json"
    counts: dict[str, Any] = {"words_asked": count_lines(folder / "words.txt")}
    if calibrated.exists():
        counts = json.loads(calibrated.read_text(encoding="utf-8"))
    values = dict(
        **shape,
        **counts,
        balance=recipe.get("balance"),
        definition=score["right"]["definition"],
        words=count_lines(folder / "words.txt"),
        parameters=count_parameters(folder / "model.safetensors"),
        calibration=count_lines(folder / "calibration.jsonl"),
        held_out=count_lines(folder / "heldout.jsonl"),
        choices=count_lines(folder / "choices.jsonl"),
        unknown=UNKNOWN,
        settings=setting_rows(recipe, shape, kind),
        curve=curve_rows(read_log(build / "run" / "log.jsonl"), kind),
        scores=score_rows(score),
        sparsity=score["sparsity"],
        by_layer=", ".join(f"{value:.2%}" for value in score["sparsity_by_layer"]),
        busiest=", ".join(f"{x:.2f}" for x in score.get("busiest_expert_by_layer", ())),
        idlest=", ".join(f"{x:.2f}" for x in score.get("idlest_expert_by_layer", ())),
        commands=commands(stages),
        gloss_words=GLOSS_WORDS_MAX,
        threads=TRAINED_ON,
        natural_count=natural["questions"],
        natural_fine=natural["right_or_refused"],
        natural_invented=natural["invented"],
        natural=natural_rows(natural),
        seed=recipe["seed"],
    )
    passages = {
        "heading": card_text.HEADINGS,
        "training": card_text.TRAINING,
        "curve_head": card_text.CURVE_HEADS,
        "use": card_text.USES,
        "asked_by": card_text.ASKED,
        "predictors": card_text.PREDICTORS,
        "making": card_text.MAKING,
    }
    filled = {name: texts[kind].format(**values) for name, texts in passages.items()}
    about = card_text.CALIBRATED.format(**values) if calibrated.exists() else ""
    return card_text.TEXT.format(**values, **filled, calibrated=about)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/demo"))
    parser.add_argument("--folder", type=Path, default=Path("flashllm/demo"))
    args = parser.parse_args()
    card = make_card(args.build, args.folder)
    (args.folder / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
