"""What a quick profile in the background costs the answer that begins meanwhile.

    python -m benchmarks.quick_profile MODEL [--rounds 10] [--tokens 8] [--memory SIZE]

Each round answers one prompt twice, the order of the two alternating: with nothing else going on,
and right in the middle of a quick profile of the model's disk (`flashllm bench io --background`),
which has to give way. Compared are the seconds to the first token and those of the following ones.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.own_command import ended, remark
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.bench.sample_statistics import Spread
from flashllm.cli.shared.flags import argument
from flashllm.engine.local import Model, open_model
from flashllm.errors import BenchmarkInvalid
from flashllm.library.quick_profile_job import QuickProfileJob, QuickProfileStatus
from flashllm.settings.values import parse_positive, parse_size

NAME = "quick_profile"
BEGUN_SECONDS = 120.0
SETTLE_SECONDS = 1.0
QUESTION = "What does ocean mean?"
PROMPT_IDS = (5, 17, 40, 8, 61, 33, 12, 9)


@dataclass(frozen=True, slots=True)
class Answered:
    """Seconds of one answer."""

    first_token: float
    following_token: float


@dataclass(frozen=True, slots=True)
class Round:
    """The same answer alone, and while a quick profile gives way."""

    alone: Answered
    beside: Answered


def main() -> int:
    """Measure as the arguments ask; the last line of the output is JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quick_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a converted model")
    parser.add_argument("--rounds", type=argument(parse_positive), default=10)
    parser.add_argument("--tokens", type=argument(parse_positive), default=8)
    parser.add_argument("--memory", type=argument(parse_size))
    print(_report(parser.parse_args()))
    return 0


def _report(options: argparse.Namespace) -> str:
    rounds = []
    with tempfile.TemporaryDirectory(prefix="quick-profile-") as home:
        os.environ["FLASHLLM_HOME"] = home  # no profile of the user's is replaced
        with open_model(options.model, memory=options.memory) as model:
            _answer(model, options.tokens)  # the first one warms up
            for number in range(options.rounds):
                rounds.append(_round(model, options, first_alone=number % 2 == 0))
                remark(NAME, f"round {number + 1}: {rounds[-1]}")
    rows = [["seconds", "alone", "beside", "beside - alone"]]
    for label, name in (("first token", "first_token"), ("next tokens", "following_token")):
        alone = [getattr(one.alone, name) for one in rounds]
        beside = [getattr(one.beside, name) for one in rounds]
        pairs = [b - a for a, b in zip(alone, beside, strict=True)]
        rows.append([label, *(_spread(values) for values in (alone, beside, pairs))])
    settings = {"tokens": options.tokens, "rounds": options.rounds, "memory": options.memory}
    report = {
        "header": run_header(options.model, settings),
        "rounds": [asdict(one) for one in rounds],
    }
    return f"{markdown(rows)}\n{json.dumps(report)}"


def _spread(values: list[float]) -> str:
    found = Spread.of(values)
    return f"{found.median:.3f} ({found.min:.3f} to {found.max:.3f})"


def _round(model: Model, options: argparse.Namespace, first_alone: bool) -> Round:
    found: dict[bool, Answered] = {}
    for is_alone in (first_alone, not first_alone):
        if is_alone:
            found[True] = _answer(model, options.tokens)
        else:
            with _profiling(options.model):
                found[False] = _answer(model, options.tokens)
        time.sleep(SETTLE_SECONDS)
    return Round(found[True], found[False])


@contextmanager
def _profiling(model: Path) -> Iterator[None]:
    """A quick profile that is in the middle of its reads; it is ended with the block."""
    reading, failed = threading.Event(), []

    def follow(status: QuickProfileStatus) -> None:
        if status.share > 0:
            reading.set()
        if status.error:
            failed.append(status.error)
            reading.set()

    job = QuickProfileJob(model, follow)
    job.start()
    try:
        if not reading.wait(BEGUN_SECONDS) or failed:
            raise BenchmarkInvalid(f"no quick profile began: {', '.join(failed) or 'too slow'}")
        yield
    finally:
        job.close()


def _prompt(model: Model) -> list[int]:
    if not model.has_tokenizer:
        return list(PROMPT_IDS)
    return model.tokenizer.encode_chat([{"role": "user", "content": QUESTION}])


def _answer(model: Model, tokens: int) -> Answered:
    """An answer from an empty context and empty slots."""
    model.forget()
    begin = time.perf_counter()
    moments = [time.perf_counter() for _ in model.generate(_prompt(model), max_tokens=tokens)]
    if len(moments) < 2:
        raise BenchmarkInvalid("the answer has less than two tokens; give another model")
    following = (moments[-1] - moments[0]) / (len(moments) - 1)
    return Answered(moments[0] - begin, following)


if __name__ == "__main__":
    raise SystemExit(ended(NAME, main))
