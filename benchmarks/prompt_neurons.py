"""What `--prompt-neurons selected` costs in quality: `python -m benchmarks.prompt_neurons`.

Answers of held-out conversations are followed token by token, as the runtime writes them: what is
not an answer goes through as a prompt, an answer through the predicted neurons. Perplexity is over
the answers' tokens, once with prompts through all neurons (`exact`, the default) and once through
the predicted ones (`selected`), beside all tokens through all neurons. What it saves is measured by
`flashllm bench prompt MODEL --prompt-neurons selected`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from flashllm.predictors.calibration_texts import ContextLimits
from flashllm.predictors.evaluation.likelihood import DensePassage, LikelihoodMeter
from flashllm.predictors.evaluation.texts import Passage, TextSettings, read_passages
from numpy.typing import NDArray

from benchmarks.own_command import ended
from benchmarks.precision import DEMO, Combination, convert_to
from benchmarks.results import markdown
from flashllm.bench.header import run_header
from flashllm.cli.shared.flags import argument
from flashllm.engine.loading import load_decoder
from flashllm.model.decoder import Decoder
from flashllm.options import PROMPT_NEURONS
from flashllm.progress import SilentProgress
from flashllm.settings.values import parse_positive
from flashllm.spec import ModelSpec
from flashllm.tokenizer.tokenizer import load_tokenizer

NAME = "prompt_neurons"
TOKENS = 20_000
_TITLES = ["prompts", "tokens of answers", "perplexity", "of all exact", "likeliest the same"]
_Floats = NDArray[np.float32]


def followed(decoder: Decoder, passage: Passage) -> Iterator[_Floats]:
    """The logits [vocab] that each token that counts was expected by."""
    done, logits = 0, None
    for is_answer, group in itertools.groupby(passage.counted.tolist()):
        ids = passage.ids[done : done + len(list(group))]
        if not is_answer:
            logits = decoder.prefill(ids, cached=done)
        else:
            assert logits is not None, "a passage begins with a prompt"
            for token in ids:
                yield logits
                logits = decoder.decode(token)
        done += len(ids)


def exact(decoder: Decoder, passage: Passage) -> _Floats:
    """The same of all tokens through all neurons, [tokens that count, vocab]."""
    logits = np.concatenate([block.copy() for block in decoder.logits_blocks(passage.ids)])
    found: _Floats = logits[np.flatnonzero(passage.counted) - 1]
    return found


def passages_of(directory: Path, spec: ModelSpec, options: argparse.Namespace) -> list[Passage]:
    """Conversations whose answers count."""
    limits = ContextLimits(spec.vocab_size, spec.max_positions, options.tokens, spec.bos_id)
    settings = TextSettings(tokens=options.tokens)
    tokenizer = load_tokenizer(directory)
    text = read_passages(options.text, tokenizer, limits, settings, SilentProgress())
    return list(text.passages)


def measure(directory: Path, options: argparse.Namespace) -> dict[str, LikelihoodMeter]:
    """Meters by the name of what computes a prompt; `all exact` is what they are compared with."""
    meters = {name: LikelihoodMeter() for name in ("all exact", *PROMPT_NEURONS)}
    passages: list[Passage] = []
    dense: list[DensePassage] = []
    for neurons in PROMPT_NEURONS:
        decoder, _, store = load_decoder(directory, prompt_neurons=neurons)
        with store:
            if not passages:
                passages = passages_of(directory, decoder.spec, options)
                dense = [DensePassage(decoder.spec.vocab_size) for _ in passages]
                for passage, beside in zip(passages, dense, strict=True):
                    logits = exact(decoder, passage)
                    meters["all exact"].add(logits, _targets(passage), beside, 0)
            for passage, beside in zip(passages, dense, strict=True):
                logits = np.stack(list(followed(decoder, passage)))
                meters[neurons].add(logits, _targets(passage), beside, 0)
    return meters


def _targets(passage: Passage) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.array(passage.ids, dtype=np.int64)[passage.counted]
    return found


def table(found: dict[str, LikelihoodMeter]) -> str:
    """Markdown."""
    rows = []
    for name, meter in found.items():
        one = meter.to_json()
        ratio = f"{one['ratio']:.5f} ± {one['ratio_stderr']:.5f}"
        share = f"{one['same_token']:.2%}"
        rows.append([name, f"{meter.tokens:,}", f"{one['perplexity']:.4f}", ratio, share])
    return markdown([_TITLES, *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="a converted model (the demo, in f16)")
    add("--text", type=Path, default=DEMO / "heldout.jsonl", metavar="FILE", help="conversations")
    add("--tokens", type=argument(parse_positive), default=TOKENS, metavar="N",
        help=f"of the text ({TOKENS:,})")  # fmt: skip
    add("--json", action="store_true", help="one JSON object with every number")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="flashllm-prompt-neurons-") as parent:
        directory = options.model
        if directory is None:
            directory = Path(parent) / "model"
            convert_to(DEMO, directory, Combination("f16", "f16"))
        found = measure(directory, options)
    if options.json:
        plain = {name: str(value) for name, value in vars(options).items()}
        rows = {name: {"tokens": one.tokens} | one.to_json() for name, one in found.items()}
        print(json.dumps({"header": run_header(None, plain), "complete": True, "prompts": rows}))
    else:
        print(table(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
