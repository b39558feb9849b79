"""What fewer bits cost in quality: `python -m benchmarks.precision [--json]`, on the demo.

The demo's checkpoint is converted to each precision of COMBINATIONS, in a temporary directory, and
evaluated on held-out text and questions. Perplexity and the divergence (Kullback-Leibler, nats a
token) are over the same tokens, beside the exact answer of the first combination: f32 throughout,
keys and values included. With --source, another checkpoint of the user's own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flashllm.convert import convert
from flashllm.predictors.calibration_texts import ContextLimits
from flashllm.predictors.evaluation import EvaluatedModel, TaskSettings, evaluate_tasks
from flashllm.predictors.evaluation.likelihood import DensePassage, LikelihoodMeter
from flashllm.predictors.evaluation.texts import Passage, TextSettings, read_passages
from flashllm.predictors.evaluation.whole import count_blocks

import flashllm
from benchmarks.own_command import ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.flash.file_names import BUNDLES_FILE, PREDICTORS_FILE, RESIDENT_FILE
from flashllm.flash.manifest import read_manifest
from flashllm.progress import SilentProgress
from flashllm.settings.values import parse_positive

NAME = "precision"
DEMO = Path(flashllm.__file__).parent / "demo"
TOKENS = 6000
QUESTIONS = 300
GROUP = "definition"
"""What the demo is for; it gets other questions, such as for examples, wrong in any precision."""
_TITLES = [
    "bundles", "resident", "predictors", "further", "flash, MB", "resident, MB",
    "perplexity (of f32)", "divergence, nats", "likeliest the same", "perplexity, predicted",
    "answers right", "predicted",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Combination:
    """Encodings of one conversion, and what it is opened with."""

    bundles: str
    resident: str
    predictors: str = "f16"
    options: dict[str, Any] = field(default_factory=dict)
    """Of `open_decoder` and `open_model`, such as the encoding of keys and values."""

    @property
    def conversion(self) -> tuple[str, str, str]:
        """What decides about the files."""
        return self.bundles, self.resident, self.predictors


COMBINATIONS = (
    Combination("f32", "f32", options={"kv_dtype": "f32"}),
    Combination("f16", "f16"),
    Combination("f16", "f16", options={"kv_dtype": "int8"}),
    Combination("bf16", "bf16"),
    Combination("f16", "int8"),
    Combination("int8", "f16"),
    Combination("int8", "int8"),
    Combination("int8", "int8", "int8"),
    Combination("f16", "int4"),
    Combination("int4", "f16"),
    Combination("int4", "int8"),
    Combination("int4", "int4"),
)
"""The first is what the others are compared with."""


@dataclass(slots=True)
class Reference:
    """What the first combination says of each passage, to be laid beside the others."""

    passages: list[Passage]
    dense: list[DensePassage]


def convert_to(source: Path, directory: Path, wanted: Combination) -> None:
    """One conversion, with the predictors that lie beside the checkpoint."""
    predictors = source / PREDICTORS_FILE
    options: dict[str, Any] = {}
    if wanted.resident != wanted.bundles:
        options["resident_dtype"] = wanted.resident
    if wanted.predictors != "f16":
        options["predictor_dtype"] = wanted.predictors
    chosen = predictors if predictors.is_file() else "none"
    convert(source, directory, dtype=wanted.bundles, predictors=chosen, **options)


def evaluate(
    directory: Path,
    wanted: Combination,
    reference: Reference | None,
    options: argparse.Namespace,
) -> tuple[dict[str, Any], Reference]:
    """One row, and the reference: this model's own where there is none yet."""
    with EvaluatedModel.open(directory, None, **wanted.options) as model:
        if reference is None:
            reference = _reference(model, options)
        meters = {name: LikelihoodMeter() for name in model.modes if name != "oracle"}
        for passage, dense in zip(reference.passages, reference.dense, strict=True):
            for name, meter in meters.items():
                blocks = model.decoder.logits_blocks(passage.ids, mode=model.modes[name])
                count_blocks(blocks, passage, meter, dense)
        limits = TaskSettings(options.questions)
        tasks = evaluate_tasks(model, options.tasks, limits, SilentProgress())
    manifest = read_manifest(directory)
    sizes = {name: record.bytes for name, record in manifest.files.items()}
    row = {
        **asdict(wanted),
        "flash_bytes": sizes[BUNDLES_FILE],
        "resident_bytes": sizes[RESIDENT_FILE],
        "predictor_bytes": sizes.get(PREDICTORS_FILE, 0),
        "selector": model.selector,
        "tokens": next(iter(meters.values())).tokens,
        "text": {name: meter.to_json() for name, meter in meters.items()},
        **_answers(tasks),
    }
    return row, reference


def _reference(model: EvaluatedModel, options: argparse.Namespace) -> Reference:
    spec = model.decoder.spec
    limits = ContextLimits(
        spec.vocab_size, model.decoder.context_tokens, options.tokens, spec.bos_id
    )
    settings = TextSettings(tokens=options.tokens)
    text = read_passages(options.text, model.tokenizer, limits, settings, SilentProgress())
    passages = list(text.passages)
    return Reference(passages, [DensePassage(spec.vocab_size) for _ in passages])


def _answers(tasks: dict[str, Any]) -> dict[str, Any]:
    """Shares right by way of computing, of the definitions where there are any, or of all."""
    found = tasks.get("generation") or tasks["multiple_choice"]
    chosen = found.get("groups", {}).get(GROUP, found)
    return {
        "questions": chosen["questions"],
        "group": GROUP if chosen is not found else None,
        "answers": next(iter(chosen["measures"].values())),
    }


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every combination, as it is done; files are gone afterwards."""
    reference = None
    for number, wanted in enumerate(COMBINATIONS):
        remark(NAME, f"{number + 1} of {len(COMBINATIONS)}: {' / '.join(wanted.conversion)}")
        with tempfile.TemporaryDirectory(prefix="flashllm-precision-") as parent:
            directory = Path(parent) / "model"
            convert_to(options.source, directory, wanted)
            row, reference = evaluate(directory, wanted, reference, options)
        yield row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    return markdown([_TITLES, *map(_cells, rows)])


def _cells(row: dict[str, Any]) -> list[str]:
    dense = row["text"]["dense"]
    selected = row["text"].get(row["selector"])
    answers = row["answers"]
    return [
        row["bundles"],
        row["resident"],
        row["predictors"] if row["predictor_bytes"] else "",
        ", ".join(f"{name} {value}" for name, value in row["options"].items()),
        f"{row['flash_bytes'] / 1e6:.2f}",
        f"{row['resident_bytes'] / 1e6:.2f}",
        f"{dense['perplexity']:.4f} ({dense['ratio']:.4f} ± {dense['ratio_stderr']:.4f})",
        f"{dense['divergence_nats']:.2e}",
        f"{dense['same_token']:.2%}",
        f"{selected['perplexity']:.4f}" if selected else "",
        _right(answers.get("dense")),
        _right(answers.get(row["selector"])),
    ]


def _right(share: dict[str, float] | None) -> str:
    return "" if share is None else f"{share['right']:.1%} ± {share['stderr']:.1%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--source", type=Path, default=DEMO, metavar="DIR", help="a checkpoint (the demo's)")
    add("--text", type=Path, default=DEMO / "heldout.jsonl", metavar="FILE", help="held-out text")
    add("--tasks", type=Path, default=DEMO / "heldout.jsonl", metavar="FILE", help="questions")
    add("--tokens", type=argument(parse_positive), default=TOKENS, metavar="N",
        help=f"of the text ({TOKENS:,})")  # fmt: skip
    add("--questions", type=argument(parse_positive), default=QUESTIONS, metavar="N",
        help=f"evenly from the file ({QUESTIONS})")  # fmt: skip
    add("--json", action="store_true", help="one JSON object with every number")
    options = parser.parse_args(arguments)
    rows = list(measure(options))
    plain = {name: str(value) for name, value in vars(options).items()}
    if options.json:
        header = run_header(None, plain)
        print(json.dumps({"header": header, "complete": True, "rows": rows}))
    else:
        print(table(rows), end="")
        first = rows[0]
        asked = f"{first['questions']:,} {first['group'] or 'question'}s"
        print(f"{first['tokens']:,} tokens, {asked}; divergence from the first row's exact answer")
    return 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
