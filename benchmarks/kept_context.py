"""From a restart to the first token, with keys and values kept on flash and without.

    python -m benchmarks.kept_context MODEL --tokens 8000 [--rounds 5] [--memory SIZE]

A context of so many tokens is computed once and kept. Then, by turns, the model is opened anew and
asked to go on with 20 more: from what was kept, and with all to be read again. Both have to give
the same tokens. Compared are the seconds from the question to the first token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.own_command import ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.engine.local import load_info, open_model
from flashllm.errors import BenchmarkInvalid
from flashllm.options import ModelOptions
from flashllm.settings.values import parse_positive, parse_size
from flashllm.units import GIB

NAME = "kept_context"
FURTHER_TOKENS = 20
ANSWER_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Restart:
    """What going on after a restart took."""

    is_kept: bool
    open_seconds: float
    first_token_seconds: float
    reused_tokens: int
    ids: tuple[int, ...]


def main() -> int:
    """Measure as the arguments ask; the last line of the output is JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kept_context",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a converted model")
    parser.add_argument("--tokens", type=argument(parse_positive), default=8000)
    parser.add_argument("--rounds", type=argument(parse_positive), default=3)
    parser.add_argument("--memory", type=argument(parse_size))
    print(_report(parser.parse_args()))
    return 0


def _report(options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="kept-context-") as home:
        os.environ["FLASHLLM_HOME"] = home
        begin = time.monotonic()
        prompt = _first_turn(options)
        first_seconds = time.monotonic() - begin
        remark(NAME, f"{options.tokens} tokens computed and kept in {first_seconds:.1f} s")
        kept_bytes = sum(path.stat().st_size for path in (Path(home) / "kv").glob("*"))
        restarts = []
        for number in range(options.rounds):
            question = _ids(options, FURTHER_TOKENS, 2 + number)  # never asked before
            for is_kept in (True, False) if number % 2 == 0 else (False, True):
                restarts.append(_restart(options, [*prompt, *question], is_kept))
                remark(NAME, f"round {number + 1}: {restarts[-1]}")
            if restarts[-1].ids != restarts[-2].ids:
                raise BenchmarkInvalid("the answers differ")
    rows = [["", "opened, s", "first token, s", "tokens reused"]]
    for is_kept, name in ((True, "kept"), (False, "read again")):
        own = [restart for restart in restarts if restart.is_kept == is_kept]
        rows.append([
            name,
            f"{statistics.median(one.open_seconds for one in own):.2f}",
            f"{statistics.median(one.first_token_seconds for one in own):.2f}",
            str(own[0].reused_tokens),
        ])  # fmt: skip
    values = {
        "header": run_header(options.model, {"tokens": options.tokens, "memory": options.memory}),
        "kept_bytes": kept_bytes,
        "first_turn_seconds": first_seconds,
        "restarts": [asdict(restart) for restart in restarts],
    }
    return "\n".join([markdown(rows), json.dumps(values)])


def _first_turn(options: argparse.Namespace) -> list[int]:
    """The prompt. Without an answer, which with predictors has other bits than a prompt."""
    ids = _ids(options, options.tokens, seed=1)
    with open_model(options.model, _options(options, is_kept=True)) as model:
        model.generate(ids, 0).complete()
    return ids


def _ids(options: argparse.Namespace, count: int, seed: int) -> list[int]:
    vocabulary = load_info(options.model).spec.vocab_size
    return [int(one) for one in np.random.default_rng(seed).integers(10, vocabulary, count)]


def _restart(options: argparse.Namespace, prompt: list[int], is_kept: bool) -> Restart:
    begin = time.monotonic()
    with open_model(options.model, _options(options, is_kept=is_kept)) as model:
        opened = time.monotonic()
        answer = model.generate(prompt, ANSWER_TOKENS)
        next(answer)
        first = time.monotonic()
        ids = tuple(answer.complete().ids)
        return Restart(is_kept, opened - begin, first - opened, answer.reused_tokens, ids)


def _options(options: argparse.Namespace, *, is_kept: bool) -> ModelOptions:
    return ModelOptions(
        memory=options.memory,
        context=options.tokens + FURTHER_TOKENS + 2 * ANSWER_TOKENS,
        keep_kv=64 * GIB if is_kept else None,
    )


if __name__ == "__main__":
    raise SystemExit(ended(NAME, main))
