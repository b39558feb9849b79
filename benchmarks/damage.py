"""What damaged weights do to answers, and whether it is noticed: `python -m benchmarks.damage`.

In a copy of the model one bit is flipped at a time, the top bit of the exponent of some weight; the
copy is opened, answers some questions, and is made whole again. Then two layers are swapped, and
all bundles zeroed. With `--verify off` many answers have other words and nothing says so; otherwise
each flip of a weight that is read must be noticed, with its place. The exit code is 1 where, with
checks, words changed in silence.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.own_command import ended, remark
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.open_model import model_directory
from flashllm.dtypes import row_bytes
from flashllm.errors import ChecksumMismatch, UsageError
from flashllm.flash.file_names import BUNDLES_FILE, RESIDENT_FILE
from flashllm.flash.layout import BundleHeader, read_header
from flashllm.flash.safetensors_file import read_tensor_index
from flashllm.options import VERIFIES, Verify
from flashllm.settings.values import parse_count, parse_positive, parse_seed
from flashllm.text_table import columns

NAME = "damage"
FLIPS, RESIDENT_FLIPS, TOKENS = 300, 150, 24
QUESTIONS = ("What is the ocean?", "What is a river?", "What is the opposite of hot?")
EXPONENT_BIT = 0x40
"""In the last byte of a float of any kind: the highest bit of its exponent."""
FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(slots=True)
class Outcomes:
    """What came of some damages of one kind, under one way to verify."""

    damage: str
    verify: Verify
    tried: int = 0
    noticed: int = 0
    named: int = 0
    """Of those that were noticed: the error names the place of the damage."""
    changed: int = 0
    """Not noticed, and some answer has other words."""
    same: int = 0
    """Not noticed; the answers are the same."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes to be put into a file, and words that the error should have."""

    file: str
    kind: str
    pieces: tuple[tuple[int, bytes], ...] = field(repr=False)
    """(offset, bytes)."""
    place: str


@contextlib.contextmanager
def damaged(model: Path, damage: Damage) -> Iterator[None]:
    """The model with a damage; whole again afterwards."""
    before = []
    with open(model / damage.file, "r+b") as file:
        for offset, content in damage.pieces:
            file.seek(offset)
            before.append((offset, file.read(len(content))))
            file.seek(offset)
            file.write(content)
    try:
        yield
    finally:
        with open(model / damage.file, "r+b") as file:
            for offset, content in before:
                file.seek(offset)
                file.write(content)


def flip(file: Path, kind: str, offset: int, place: str) -> Damage:
    """The exponent bit of the float that ends at `offset`."""
    with file.open("rb") as stream:
        stream.seek(offset)
        content = bytes([stream.read(1)[0] ^ EXPONENT_BIT])
    return Damage(file.name, kind, ((offset, content),), place)


def bundle_flips(model: Path, count: int, random: np.random.Generator) -> Iterator[Damage]:
    """Flips of weights on flash, anywhere in the model."""
    path = model / BUNDLES_FILE
    header = read_header(path)
    row = row_bytes(header.dtype, header.d_model)
    item = FLOAT_BYTES.get(header.dtype, 1)
    for _ in range(count):
        layer, bundle = (
            int(random.integers(header.n_layers)), int(random.integers(header.bundles_per_layer))
        )  # fmt: skip
        value = int(random.integers(header.rows_per_neuron * row // item))
        offset = header.offset(layer, bundle) + (value + 1) * item - 1
        yield flip(path, "bundle flipped", offset, f"layer {layer}, bundle {bundle},")


def resident_flips(model: Path, count: int, random: np.random.Generator) -> Iterator[Damage]:
    """Flips of weights that stay in memory, each as likely as any other."""
    path = model / RESIDENT_FILE
    index = read_tensor_index(path)
    first = min(record.offset for record in index.values())
    for at in random.integers(first, path.stat().st_size, count).tolist():
        name, record = next(
            (name, record)
            for name, record in index.items()
            if record.offset <= at < record.offset + record.nbytes
        )
        item = FLOAT_BYTES.get(record.dtype, 1)
        offset = record.offset + (at - record.offset) // item * item + item - 1
        yield flip(path, "resident flipped", offset, f"tensor {name} ")


def rearranged(model: Path) -> list[Damage]:
    """The first two layers swapped; all bundles zero."""
    path = model / BUNDLES_FILE
    header: BundleHeader = read_header(path)
    starts = [header.offset(layer, 0) for layer in range(2)]
    length = header.bundles_per_layer * header.stride
    with path.open("rb") as file:
        layers = []
        for start in starts:
            file.seek(start)
            layers.append(file.read(length))
    swap = tuple(zip(starts, reversed(layers), strict=True))
    zeros = ((starts[0], bytes(header.n_layers * length)),)
    return [
        Damage(BUNDLES_FILE, "layers swapped", swap, "layer "),
        Damage(BUNDLES_FILE, "bundles zero", zeros, "layer "),
    ]


def answers(model: Path, verify: Verify, tokens: int) -> list[str]:
    """The answers of a model that is opened for them."""
    from flashllm.engine.local import open_model

    found = []
    with open_model(model, verify=verify) as opened:
        for question in QUESTIONS:
            opened.forget()
            message: Any = {"role": "user", "content": question}
            found.append(opened.chat([message], max_tokens=tokens).complete().text)
    return found


def try_one(
    model: Path, damage: Damage, expected: Sequence[str], outcomes: Outcomes, tokens: int
) -> None:
    """Counts what one damage came to."""
    outcomes.tried += 1
    with damaged(model, damage):
        try:
            is_same = answers(model, outcomes.verify, tokens) == list(expected)
        except ChecksumMismatch as error:
            outcomes.noticed += 1
            outcomes.named += damage.file in str(error) and damage.place in str(error)
            return
    outcomes.same += is_same
    outcomes.changed += not is_same


def measure(options: argparse.Namespace) -> list[Outcomes]:
    """All damages under each way to verify, in a copy of the model beside nothing else."""
    source = model_directory(options.model)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="flashllm-damage-") as folder:
        model = Path(folder) / "model"
        shutil.copytree(source, model)
        expected = answers(model, "off", options.tokens)
        results: list[Outcomes] = []
        for verify in options.verify:
            random = np.random.default_rng(options.seed)  # the same flips for each
            damages = [
                *bundle_flips(model, options.flips, random),
                *resident_flips(model, options.resident_flips, random),
                *rearranged(model),
            ]
            outcomes = {damage.kind: Outcomes(damage.kind, verify) for damage in damages}
            results += outcomes.values()
            try:
                for damage in damages:
                    try_one(model, damage, expected, outcomes[damage.kind], options.tokens)
            except KeyboardInterrupt:
                remark(NAME, f"interrupted: what was tried under {verify} is not all")
                return results
            remark(NAME, f"{verify}: {len(damages)} damages done")
        if answers(model, "first", options.tokens) != expected:
            raise UsageError(f"{model}: answers differently without damage; this is a bug")
    return results


def table(results: Sequence[Outcomes]) -> str:
    """The outcomes in columns."""
    head = ("damage", "verify", "tried", "noticed", "place named", "words changed", "same words")
    rows = [
        (one.damage, one.verify, *map(str, (one.tried, one.noticed, one.named)), str(one.changed),
         str(one.same))
        for one in results
    ]  # fmt: skip
    return columns([head, *rows], left=2)


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__)
    parser.add_argument("model", nargs="?", help="a converted model (the demo)")
    parser.add_argument("--flips", type=argument(parse_count), default=FLIPS, metavar="N")
    parser.add_argument(
        "--resident-flips", type=argument(parse_count), default=RESIDENT_FLIPS, metavar="N"
    )
    parser.add_argument("--verify", nargs="+", choices=VERIFIES, default=["off", "first"])
    parser.add_argument("--tokens", type=argument(parse_positive), default=TOKENS, metavar="N")
    parser.add_argument("--seed", type=argument(parse_seed), default=0, metavar="N")
    parser.add_argument("--dir", type=Path, help="where the copy is made (default: TMPDIR)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    results = measure(options)
    if options.json:
        header = run_header(model_directory(options.model), {"seed": options.seed})
        print(json.dumps({"header": header, "outcomes": [asdict(one) for one in results]}))
    else:
        print(table(results), end="")
    silent = sum(one.changed for one in results if one.verify != "off")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
