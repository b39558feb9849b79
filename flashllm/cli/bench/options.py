"""Arguments of the measuring commands: `bench io`, `tokens`, `prompt`, `ablation`, `cache`."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashllm.cli.shared.decoded_text import add_decoded_text
from flashllm.cli.shared.flags import add_model, add_options, argument
from flashllm.errors import UsageError
from flashllm.settings.options import MODEL_OPTIONS
from flashllm.settings.values import (
    parse_ids,
    parse_number,
    parse_positive,
    parse_share,
    parse_size,
)

IO_EXAMPLES = """\
examples:
  flashllm bench io ~/big.flash                 measure its disk; what is found is kept for `plan`
  flashllm bench io /data/big.file --sizes 4KiB,16KiB,64KiB --threads 1,32
  flashllm bench io ~/big.flash --profile here.json
  flashllm bench io --quick                     some seconds, as the chat does at its first use
"""
TOKENS_EXAMPLES = """\
examples:
  flashllm bench tokens                         the demo
  flashllm bench tokens ~/big.flash --memory 4GiB --plot pictures
  flashllm bench tokens ~/big.flash --ids 5,6,7,8 -n 64 --json > report.json
"""
PROMPT_EXAMPLES = """\
examples:
  flashllm bench prompt                         the demo
  flashllm bench prompt ~/big.flash --memory 4GiB --lengths 8,512
  flashllm bench prompt ~/big.flash --text notes.txt --json > report.json
"""
ABLATION_EXAMPLES = """\
examples:
  flashllm bench ablation ~/big.flash --plot pictures
  flashllm bench ablation ~/big.flash --text notes.ids -n 32 --add
"""
CACHE_EXAMPLES = """\
examples:
  flashllm bench cache                          the demo, on its held-out text
  flashllm bench cache ~/big.flash --text notes.ids --tokens 500 --trace notes.npz
  flashllm bench cache ~/big.flash --trace notes.npz --slots 20%,40% --memory 6GiB
"""
KV_EXAMPLES = """\
examples:
  flashllm bench kv ~/big.flash --text notes.txt
  flashllm bench kv ~/big.flash --text notes.txt --kv full,infinigen,h2o --budget 5%,10% --json
  flashllm bench kv ~/big.flash --text notes.txt --kv infinigen --pool 80%
"""

_ABLATION_FIXED = (
    "ctx_size", "policy", "overlap", "kv_memory", "kv_dir", "kv_victims", "keep_kv",
    "device", "device_memory", "arithmetic",
)  # fmt: skip
"""Options that an ablation has no use for."""


def parse_sizes(text: str) -> list[int]:
    """Sizes, separated by commas."""
    return [parse_size(part) for part in text.split(",")]


def parse_counts(text: str) -> list[int]:
    """Whole numbers of 1 or more, separated by commas."""
    return [parse_positive(part) for part in text.split(",")]


def parse_shares(text: str) -> list[float]:
    """Parts of a whole, separated by commas."""
    return [parse_share(part) for part in text.split(",")]


def parse_seconds(text: str) -> float:
    """A time above 0, and at most an hour."""
    seconds = parse_number(text)
    if not 0 < seconds <= 3600:
        raise UsageError(f"{text!r} is no time; give seconds, such as 0.5")
    return seconds


def add_io_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `bench io`."""
    parser.add_argument(
        "target",
        nargs="?",
        type=Path,
        metavar="MODEL|FILE",
        help="a converted model, or a file to read (with --quick, the demo by default)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a sample of some seconds, kept as a quick profile: for expected speeds, until a whole"
        " one is there",
    )
    parser.add_argument(
        "--background",
        action="store_true",
        help="a quick profile at the lowest priority, which waits while a model answers; its"
        " progress is a JSON object a line on standard error",
    )
    parser.add_argument(
        "--leave",
        type=argument(parse_size),
        metavar="SIZE",
        help="with --background, memory that others are yet to take: nothing is measured where it"
        " would run short",
    )
    parser.add_argument(
        "--sizes",
        type=argument(parse_sizes),
        metavar="SIZE,...",
        help="sizes of reads (4KiB to 4MiB)",
    )
    parser.add_argument(
        "--threads", type=argument(parse_counts), metavar="N,...", help="reading threads (1 to 128)"
    )
    parser.add_argument(
        "--seconds",
        type=argument(parse_seconds),
        default=0.5,
        metavar="T",
        help="seconds for each size and number of threads (0.5)",
    )
    _add_runs(parser)
    parser.add_argument("--no-fio", action="store_true", help="do not compare with fio")
    parser.add_argument(
        "--no-machine", action="store_true", help="do not measure memory and kernels"
    )
    # A name of its own: FLASHLLM_PROFILE says what to read, and would fill in one called profile.
    parser.add_argument(
        "--profile",
        dest="profile_file",
        type=Path,
        metavar="FILE",
        help="write the profile to FILE, not to the cache",
    )
    parser.add_argument(
        "--keep-doubtful",
        action="store_true",
        help="keep the profile even where passes and fits say that the machine was busy",
    )
    _add_reports(parser)


def add_tokens_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `bench tokens`."""
    add_model(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument(
        "--ids", type=argument(parse_ids), metavar="IDS", help="the prompt as token ids: 1,2,3"
    )
    _add_amount(parser, 128, "run")
    parser.add_argument(
        "--no-telemetry-cost",
        action="store_true",
        help="leave out the runs that show what measuring costs: half of the time",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object with every number")
    form.add_argument(
        "--jsonl", action="store_true", help="a JSON line per token as it comes, then a summary"
    )
    form.add_argument("--csv", action="store_true", help="a CSV row per token as it comes")
    _add_plot(parser)
    add_options(parser, "model", MODEL_OPTIONS)


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `bench prompt`."""
    add_model(parser)
    parser.add_argument(
        "--lengths",
        type=argument(parse_counts),
        metavar="N,...",
        help="tokens of the prompts (those of 8, 64 and 512 that the context holds)",
    )
    parser.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="take the prompts from a text: .ids, .txt or .jsonl, as for eval (random tokens)",
    )
    _add_runs(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object with every number")
    add_options(parser, "model", MODEL_OPTIONS)


def add_ablation_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `bench ablation`."""
    add_model(parser)
    parser.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="text to decode: .ids, .txt or .jsonl, as for eval",
    )
    _add_amount(parser, 32, "row")
    parser.add_argument(
        "--add", action="store_true", help="also our own additions, each alone and then all"
    )
    parser.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="MODEL",
        help="with --add, also the predictors of another conversion of the model",
    )
    _add_reports(parser)
    # The context is as long as the text that is decoded; policy and overlap are the rows'.
    options = tuple(o for o in MODEL_OPTIONS if o.name not in _ABLATION_FIXED)
    add_options(parser, "model", options)


def add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `bench cache`."""
    add_model(parser)
    parser.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="text to record: .ids, .txt or .jsonl, as for eval",
    )
    parser.add_argument(
        "-n",
        "--tokens",
        type=argument(parse_positive),
        default=6000,
        metavar="N",
        help="tokens of the text, taken evenly from all of its lines (6000)",
    )
    parser.add_argument(
        "--slots",
        type=argument(parse_shares),
        metavar="SHARES",
        help="shares of all neurons that get slots (without --memory: 10%%,20%%,35%%,50%%)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="replay the trace in FILE (.npz); if it does not exist, record it first",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object with every number")
    names = ("memory", "ctx_size", "select")
    add_options(parser, "model", tuple(o for o in MODEL_OPTIONS if o.name in names))


def add_kv_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `bench kv`."""
    add_model(parser)
    add_decoded_text(parser)
    parser.add_argument(
        "--kv",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="some of full, window, h2o, int4, infinigen-ahead, infinigen, values, specache (all)",
    )
    parser.add_argument(
        "--budget",
        type=argument(parse_shares),
        metavar="SHARES",
        help="the most of all keys and values that a token sees (5%%,10%%,20%%)",
    )
    parser.add_argument(
        "--pool",
        type=argument(parse_share),
        metavar="SHARE",
        help="infinigen with a limited pool: what gives way there is lost",
    )
    parser.add_argument(
        "--victims",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="with --pool, who gives way: some of fifo, lru, counter (all)",
    )
    _add_reports(parser)
    left_out = ("policy", "window", "kv_policy", "kv_budget", "keep_kv")
    add_options(parser, "model", tuple(o for o in MODEL_OPTIONS if o.name not in left_out))


def _add_amount(parser: argparse.ArgumentParser, tokens: int, what: str) -> None:
    parser.add_argument(
        "-n",
        "--tokens",
        type=argument(parse_positive),
        default=tokens,
        metavar="N",
        help=f"tokens to decode in each {what} ({tokens})",
    )
    _add_runs(parser)


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=argument(parse_positive), default=5, metavar="N", help="repetitions (5)"
    )


def _add_reports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object with every number")
    _add_plot(parser)


def _add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plot", type=Path, metavar="DIR", help="draw PNG pictures into DIR (needs matplotlib)"
    )
