"""The same prompt, seed and settings, the same tokens: `python -m benchmarks.same_tokens MODEL`.

Each prompt is answered greedily and by drawing with a seed, under every combination of what must
not matter: the memory ceiling, the window, the threads that read, the policy of the cache, what is
computed while reads are under way. Each combination is a process of its own, as a user's would be.
The exit code is 1 where any token differs from the first's.

A model without a tokenizer gets prompts of token ids drawn with a seed. AXES is what is gone
through; an axis more is one entry there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import flashllm
from benchmarks.own_command import CommandError, ask, ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.errors import ReadFailed, UsageError
from flashllm.flash.manifest import read_manifest
from flashllm.settings.values import parse_count, parse_positive
from flashllm.units import MIB

NAME = "same_tokens"
PROMPTS = 20
PROMPT_IDS = 12
SAMPLING = {"temperature": 0.8, "top_p": 0.95, "seed": 11}
GREEDY: dict[str, Any] = {}
SMALLEST = "smallest"
TWICE = "twice the smallest"
MARGIN_BYTES = 24 * MIB

AXES: dict[str, tuple[Any, ...]] = {
    "memory": (None, TWICE, SMALLEST),
    "window": (None, 1, 7),
    "io_threads": (None, 1, 64),
    "policy": (None, "lru", "window"),
    "overlap": (None, "none", "hits", "attention"),
}
"""What must not matter, by the name that `flashllm.open_model` has for it; None: its default. The
encoding of keys and values is none of it: it rounds them."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What one combination came to: token ids of each prompt, greedy first, then drawn."""

    setting: dict[str, Any]
    ids: list[list[int]]
    window: int
    slots: int
    io_threads: int
    passes: int
    hit_rate: float


def combinations(every: bool) -> list[dict[str, Any]]:
    """Settings to go through, the defaults first: one thing changed at a time, then all at once.

    With `every`, the whole product of the axes.
    """
    if every:
        found = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())]
        return [setting for setting in found if setting == _possible(setting)]
    default = {name: values[0] for name, values in AXES.items()}
    found = [default]
    found += [default | {name: value} for name, values in AXES.items() for value in values[1:]]
    longest = max(map(len, AXES.values()))
    return found + [
        _possible({name: values[min(number, len(values) - 1)] for name, values in AXES.items()})
        for number in range(1, longest)
    ]


def _possible(setting: dict[str, Any]) -> dict[str, Any]:
    """A setting without its window where its policy has none."""
    has_window = setting["policy"] in (None, "window")
    return setting if has_window else setting | {"window": None}


def prompts_of(model: Path, file: Path | None, count: int) -> list[Any]:
    """Texts where the model has a tokenizer, or else lists of token ids."""
    from flashllm.tokenizer.tokenizer import load_tokenizer

    if load_tokenizer(model) is None:
        vocabulary = read_manifest(model).spec.vocab_size
        generator = np.random.default_rng(0)
        ids = generator.integers(3, vocabulary, (count, PROMPT_IDS))
        return [[int(token) for token in prompt] for prompt in ids]
    path = file or Path(flashllm.__file__).parent / "demo" / "heldout.jsonl"
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise ReadFailed(f"{path}: cannot be read ({error.strerror})") from error
    texts = [_text(path, line) for line in lines]
    if len(texts) < count:
        raise UsageError(f"{path}: has {len(texts)} prompts; {count} are wanted")
    return [texts[number * len(texts) // count] for number in range(count)]


def _text(path: Path, line: str) -> str:
    """A line as it is, or the first message of a conversation."""
    if path.suffix != ".jsonl":
        return line
    try:
        return str(json.loads(line)["messages"][0]["content"])
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        raise UsageError(f"{path}: a line has no messages ({problem!r})") from problem


def answer(task: dict[str, Any]) -> Answers:
    """All prompts under one setting; the work of a process of its own."""
    from flashllm.engine.local import open_model
    from flashllm.engine.sampling import Sampling

    ids, costs = [], []
    with open_model(task["model"], **task["arguments"]) as model:
        for how in (GREEDY, SAMPLING):
            for prompt in task["prompts"]:
                generation = model.generate(_encode(model, prompt), task["tokens"], Sampling(**how))
                for _ in generation:
                    pass
                ids.append(generation.ids)
                costs += generation.costs
        needed = sum(cost.hits + cost.misses for cost in costs)
        return Answers(
            setting=task["setting"],
            ids=ids,
            window=model.plan.window,
            slots=sum(model.plan.slots_per_layer),
            io_threads=int(model.io_report()["threads"]),
            passes=sum(cost.extra_rounds for cost in costs),
            hit_rate=sum(cost.hits for cost in costs) / max(needed, 1),
        )


def _encode(model: Any, prompt: Any) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    tokenizer = model.tokenizer
    if tokenizer.has_chat_template:
        return list(tokenizer.encode_chat([{"role": "user", "content": prompt}]))
    return list(tokenizer.encode(prompt))


def apart(task: dict[str, Any]) -> Answers:
    """`answer` in a process of its own; `CommandError` where that fails."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{NAME}", "--task"],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandError(said.removeprefix(f"{NAME}: "), done.returncode)
    return Answers(**json.loads(done.stdout.splitlines()[-1]))


def differing(first: Answers, other: Answers) -> list[int]:
    """Numbers of the answers that are not the same."""
    return [i for i, ids in enumerate(other.ids) if ids != first.ids[i]]


def ceilings_of(model: Path, context: int) -> dict[str, int]:
    """Bytes by what AXES calls them."""
    plan = ask("plan", str(model), "--json", "--ctx-size", str(context))["plan"]
    smallest = int(plan["smallest_bytes"]) + MARGIN_BYTES
    return {SMALLEST: smallest, TWICE: 2 * smallest}


def measure(options: argparse.Namespace) -> Iterator[Answers]:
    """Every combination, as it is done."""
    prompts = prompts_of(options.model, options.prompts, options.count)
    ceilings = ceilings_of(options.model, options.context)
    settings = combinations(options.all)
    for number, setting in enumerate(settings):
        arguments = {name: value for name, value in setting.items() if value is not None}
        arguments["context"] = options.context
        if "memory" in arguments:
            arguments["memory"] = ceilings[arguments["memory"]]
        task = {"model": str(options.model), "setting": setting, "arguments": arguments,
                "prompts": prompts, "tokens": options.tokens}  # fmt: skip
        remark(NAME, f"{number + 1} of {len(settings)}: {_words(setting)}")
        yield apart(task)


def _words(setting: dict[str, Any]) -> str:
    changed = [f"{name} {value}" for name, value in setting.items() if value is not None]
    return ", ".join(changed) or "defaults"


def report(found: Sequence[Answers]) -> dict[str, Any]:
    """The rows, the first of which the others are compared with."""
    rows = []
    for answers in found:
        different = differing(found[0], answers)
        row = asdict(answers) | {"different": different, "answers": len(answers.ids)}
        row["tokens"] = sum(map(len, row.pop("ids")))
        rows.append(row)
    return {"rows": rows, "same": not any(row["different"] for row in rows)}


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    titles = ["setting", "window", "slots", "threads", "hits", "passes", "answers", "different"]
    return markdown([titles, *map(_cells, found["rows"])])


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        _words(row["setting"]),
        str(row["window"]),
        f"{row['slots']:,}",
        str(row["io_threads"]),
        f"{row['hit_rate']:.1%}",
        f"{row['passes']:,}",
        f"{row['answers']} ({row['tokens']:,} tokens)",
        str(len(row["different"])),
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", type=Path, nargs="?", metavar="MODEL", help="a converted model (the demo)")
    add("--prompts", type=Path, metavar="FILE", help="a prompt a line, or .jsonl conversations")
    add("--count", type=argument(parse_positive), default=PROMPTS, metavar="N",
        help=f"prompts, evenly from the file ({PROMPTS})")  # fmt: skip
    add("-n", "--tokens", type=argument(parse_positive), default=32, metavar="N", help="(32)")
    add("--context", type=argument(parse_count), default=256, metavar="N", help="tokens (256)")
    add("--all", action="store_true", help="the whole product, not one change at a time")
    add("--json", action="store_true", help="one JSON object")
    add("--task", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = parse(arguments)
    if options.task:
        print(json.dumps(asdict(answer(json.load(sys.stdin)))))
        return 0
    if options.model is None:
        from flashllm.convert import demo_model

        options.model = demo_model()
    found = report(list(measure(options)))
    header = run_header(options.model, {name: str(value) for name, value in vars(options).items()})
    if options.json:
        print(json.dumps({"header": header, "complete": True, **found}))
    else:
        print(table(found), end="")
        word = "the same tokens in all of them" if found["same"] else "TOKENS DIFFER"
        print(f"{len(found['rows'])} settings: {word}")
    return 0 if found["same"] else 1


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
