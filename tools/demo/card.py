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

from .choices import UNKNOWN
from .lexicon import GLOSS_WORDS_MAX
from .train import Recipe

CURVE_ROWS = 12
TRAINED_ON = "two shared cores"

TEXT = """\
# The demo model: a dictionary companion

A small OPT-architecture language model with ReLU, trained by this project. It knows {words:,} of
the commonest words of modern English that WordNet has: what each means, its part of speech,
synonyms, its opposite, what it is a kind of, an example, its spelling, in one turn or several. It
takes plurals and other forms for their word, minds no capitals, and asks "Did you mean ...?" for
some misspellings. For most other words, and for questions that are not about words, it says that
it does not know. It knows nothing else, and repeats WordNet rather than reason about it.

## Files

An ordinary Hugging Face checkpoint: `config.json`, `model.safetensors` (16-bit floats,
{parameters:,} parameters), a sentencepiece tokenizer with a chat template. `words.txt` lists the
words; `calibration.jsonl` holds {calibration:,} conversations as in training, `heldout.jsonl`
{held_out:,} questions in phrasings never trained on, each with its expected answer. A line of
`calibration.jsonl` is a list of messages with `role` and `content`; a line of `heldout.jsonl` has
`messages` (the last one is the question), `expected`, `intent` and `word`. `choices.jsonl` holds
{choices:,} multiple-choice questions, which gloss belongs to the word: `messages`, four `choices`
of one word and part of speech, and the number of the right one as `answer`; {unknown:,} of them
are about words outside. `flashllm eval` reads all three.

The tokenizer drops the capitals of what it encodes, so that Ocean and ocean are one word; answers
have capitals, since the model writes pieces that no text encodes to.

## Data and licence

WordNet 3.0 (Princeton University), under `WORDNET-LICENSE.txt`, which covers the definitions,
relations and examples that the model was trained on and these files repeat. The words are single
alphabetic lemmas, those first that are written most often today by the word frequencies of
wordfreq 3.1 (Robyn Speer; CC BY-SA 4.0), which decide on the choice and the order of `words.txt`.
Of a
word's most frequent part of speech the sense that WordNet's authors tagged most often decides its
answers; where hardly any is tagged, the one that the word is the main name of. Definitions are the
first clause of the gloss, of at most {gloss_words} words. Slurs and obscene words, names of
persons and
abbreviations are left out. Meanings that WordNet ranks lower are not in it, and its choice of a
sense can surprise. Misspellings are made by rules.

## Shape and training

| | |
| --- | --- |
{settings}

Muon for the matrices of the layers and AdamW for the rest, in bf16 autocast on the processor;
loss on answers only; half of the words drawn evenly and half by the running loss of what is said
of them. An L1 penalty on the ReLU outputs is steered so that sparsity rises along a line to its
goal.

Before the last stage the model was asked for all that it should know. Of {words_asked:,} words it
defined {words_kept:,} rightly, and of {others_asked:,} synonyms, opposites, kinds, examples, other
forms and misspellings it knew {others_kept:,}. The last stage taught it to say "I am not sure what
... means" and "I know no ... of ..." for the rest, and for {unknown_explained:,} of
{unknown_asked:,} words outside that it would have explained.

| step | tokens (M) | minutes | nats/answer token | of definitions | of other facts | FFN sparsity |
| --: | --: | --: | --: | --: | --: | --: |
{curve}

Minutes are of wall time on {threads}.

## Scores

Greedy answers to the held-out questions, by `python -m tools.demo.score`. Right means equal to
the expected answer, spaces and case aside; for unknown words and refused questions, that they
were refused, in whatever words.

| question | asked | right |
| --- | --: | --: |
{scores}

Mean FFN sparsity on these questions and the answers given: **{sparsity:.1%}** of the ReLU outputs
are exactly 0; by layer: {by_layer}.

{natural_count} questions as people ask them, written by somebody who had not seen the phrasings
of the
training (`tools/demo/natural_questions.jsonl`), asked through the runtime with predictors, by
`python -m tools.demo.natural`: **{natural_fine:.1%}** right or honestly refused,
**{natural_invented:.1%}** invented.
"Not asked" is a true answer to another question about a word.

| questions | right | refused | not asked | invented |
| --- | --: | --: | --: | --: |
{natural}

Limits: synonyms count as right only where the whole list is the expected one. Words that look like
known ones are now and then taken for these.

## Predictors

`predictors.safetensors` and `activity.json` come from `flashllm convert flashllm/demo OUT
--predictors train`, which trains them on `calibration.jsonl`; copy the two files here from OUT
when the weights change. `flashllm info` prints their errors, `python -m predictors DIR` those of
each layer, and `flashllm eval` compares answers and texts with and without them.

## How to make it again

    apt-get install wordnet-base
    pip install wordfreq
    python -m tools.demo.corpus --more
    python -m tools.demo.tokenizer
{commands}
    python -m tools.demo.choices
    python -m tools.demo.score --json build/demo/score.json
    flashllm convert flashllm/demo build/demo/model.flash --predictors train
    cp build/demo/model.flash/{{predictors.safetensors,activity.json}} flashllm/demo
    python -m tools.demo.natural build/demo/model.flash --json build/demo/natural.json
    python -m tools.demo.card

The trainer goes on from its last checkpoint; where there is more than one line of it, the plan was
changed while it ran: the steps, how often each kind of question is drawn (more single facts, later
more unknown words), and phrasings that were added for the last line. So this model does not come
out again byte for byte. Otherwise the corpus and the tokenizer do, and training as far as the
processor, its threads and torch's kernels are the same. Seeds: corpus 20, tokenizer 7, training
{seed}.
"""


def read_log(path: Path) -> list[dict[str, Any]]:
    """Lines of the log by step; of two lines for one step, as a resumed run leaves, the later."""
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    by_step = {record["step"]: record for record in records}
    return [by_step[step] for step in sorted(by_step)]


def curve_rows(log: Sequence[dict[str, Any]]) -> str:
    """A dozen rows of the log, evenly spaced, the last one included."""
    picked = [log[round(i * (len(log) - 1) / CURVE_ROWS)] for i in range(1, CURVE_ROWS + 1)]
    return "\n".join(
        f"| {r['step']} | {r['tokens'] / 1e6:.1f} | {r['seconds'] / 60:.0f} | {r['loss']:.3f} |"
        f" {r['definition_loss']:.3f} | {r['other_loss']:.3f} | {r['sparsity']:.1%} |"
        for r in picked
    )


def score_rows(score: dict[str, Any]) -> str:
    """One row an intent."""
    return "\n".join(
        f"| {intent.replace('_', ' ')} | {score['asked'][intent]:,} | {right:.1%} |"
        for intent, right in score["right"].items()
    )


def setting_rows(recipe: dict[str, Any], shape: dict[str, Any]) -> str:
    """Shape and recipe as rows of a table."""
    settings = {**shape, **recipe}
    return "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in settings.items())


def read_stages(path: Path) -> list[dict[str, Any]]:
    """What each stage of the run was given; stages that left no step behind are dropped."""
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    by_step = {record["from_step"]: record for record in records}
    return [by_step[step] for step in sorted(by_step)]


def commands(stages: Sequence[dict[str, Any]]) -> str:
    """The trainer's command for each stage, with the options that are not the defaults."""
    defaults = asdict(Recipe())
    lines = []
    is_calibrated = False
    for stage, following in zip_longest(stages, stages[1:]):
        changed = {k: v for k, v in stage["recipe"].items() if v != defaults[k]}
        options = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in changed.items())
        end = f"  # to step {following['from_step']}" if following else " --export flashllm/demo"
        if stage["is_calibrated"] and not is_calibrated:
            is_calibrated = True
            lines.append("    python -m tools.demo.calibrate")
        lines.append(f"    python -m tools.demo.train {options}{end}")
    return "\n".join(lines)


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


def make_card(
    run: Path, corpus: Path, score: dict[str, Any], natural: dict[str, Any], folder: Path
) -> str:
    """The card's text."""
    stages = read_stages(run / "stages.jsonl")
    recipe, shape = stages[-1]["recipe"], stages[-1]["shape"]
    return TEXT.format(
        words=count_lines(folder / "words.txt"),
        parameters=count_parameters(folder / "model.safetensors"),
        calibration=count_lines(folder / "calibration.jsonl"),
        held_out=count_lines(folder / "heldout.jsonl"),
        choices=count_lines(folder / "choices.jsonl"),
        unknown=UNKNOWN,
        settings=setting_rows(recipe, shape),
        curve=curve_rows(read_log(run / "log.jsonl")),
        scores=score_rows(score),
        sparsity=score["sparsity"],
        by_layer=", ".join(f"{value:.2%}" for value in score["sparsity_by_layer"]),
        commands=commands(stages),
        gloss_words=GLOSS_WORDS_MAX,
        **json.loads((corpus / "calibrated.json").read_text(encoding="utf-8")),
        threads=TRAINED_ON,
        natural_count=natural["questions"],
        natural_fine=natural["right_or_refused"],
        natural_invented=natural["invented"],
        natural=natural_rows(natural),
        seed=recipe["seed"],
    )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("build/demo/run"))
    parser.add_argument("--score", type=Path, default=Path("build/demo/score.json"))
    parser.add_argument("--natural", type=Path, default=Path("build/demo/natural.json"))
    parser.add_argument("--corpus", type=Path, default=Path("build/demo/corpus"))
    parser.add_argument("--folder", type=Path, default=Path("flashllm/demo"))
    args = parser.parse_args()
    score = json.loads(args.score.read_text(encoding="utf-8"))
    natural = json.loads(args.natural.read_text(encoding="utf-8"))
    card = make_card(args.run, args.corpus, score, natural, args.folder)
    (args.folder / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
