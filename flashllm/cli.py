"""The command line: reads arguments, starts one command, turns errors into messages and exit codes.

Imports nothing heavy: `flashllm --help` shows in an instant, and each command brings what it needs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import flashllm
from flashllm.commands import bench_options, convert_options
from flashllm.commands.options import (
    CHAT_OPTIONS,
    MODEL_OPTIONS,
    SAMPLING_OPTIONS,
    SESSION_OPTIONS,
    add_model,
    add_options,
    argument,
    parse_count,
    parse_ids,
    parse_positive,
    parse_share,
    resolve_options,
)
from flashllm.errors import FlashllmError, MemoryCeilingTooSmall, UsageError
from flashllm.sanitize import sanitize

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

EXAMPLES = """\
examples:
  flashllm                                      chat with the small model that comes with flashllm
  flashllm run -p "What does ocean mean?"       one answer on standard output
  flashllm convert ~/big ~/big.flash --predictors train
  flashllm chat ~/big.flash --memory 8GiB       a model larger than the memory it gets
  flashllm doctor                               what this machine can do
"""
RUN_EXAMPLES = """\
examples:
  flashllm run -p "What does ocean mean?"
  flashllm run ~/big.flash -p "The capital of France is" --raw -n 20 --memory 6GiB
  cat notes.txt | flashllm run -p "Summarise this."     # standard input goes before the text
  flashllm run -p "Define river." --json | jq .decode.tokens_per_second
"""
CHAT_EXAMPLES = """\
examples:
  flashllm chat
  flashllm chat ~/big.flash --memory 8GiB --temp 0.7
"""
PLAN_EXAMPLES = """\
examples:
  flashllm plan ~/big --memory 8GiB
  flashllm plan ~/other --act relu              # a config that does not say what its weights are
  flashllm plan SHAPE --memory 16GiB            # one that is built in; an unknown name lists them
"""
EVAL_EXAMPLES = """\
examples:
  flashllm eval                                 the demo, on its own text and questions
  flashllm eval ~/big.flash --text notes.txt --plot pictures
  flashllm eval ~/big.flash --tasks questions.jsonl --limit 200 --json

TEXT: .txt; .jsonl with a conversation a line, whose answers count; .ids with token ids a line.
TASKS: .jsonl, a question a line, scored dense and as selected, side by side:
  {"query": "The sea is", "choices": ["wet", "dry"], "answer": 0}      the likelier choice
  {"messages": [{"role": "user", "content": "..."}], "expected": "..."}    the greedy answer
"""
EXIT_CODES = """\
exit codes: 0 done; 1 unexpected; 2 usage; 65 bad model data; 66 model not found; 71 not enough
memory; 73 output cannot be written; 74 reading failed; 75 stopped, start again; 78 bad settings;
130 interrupted
"""


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of leaving."""

    def error(self, message: str) -> NoReturn:
        """One message, as for every other error."""
        raise UsageError(f"{message}; see `{self.prog} --help`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name; returns its exit code."""
    try:
        parsed = parse(sys.argv[1:] if arguments is None else list(arguments))
        module, _, function = parsed.handler.partition(":")
        handler: Callable[[argparse.Namespace], int] = getattr(
            importlib.import_module(module), function
        )
        code = handler(parsed)
        if sys.stdout is not None:  # closed before the start
            sys.stdout.flush()
    except FlashllmError as error:
        return fail(error)
    except BrokenPipeError:
        # What reads our output has gone; nothing more can be said there, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except MemoryError:
        return fail(MemoryCeilingTooSmall("out of memory; give --memory, or close programs", 0))
    except KeyboardInterrupt:
        print("flashllm: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return code


def fail(error: FlashllmError) -> int:
    """Tells of an error on standard error; returns its exit code."""
    print(f"flashllm: {sanitize(str(error))}", file=sys.stderr)
    return error.exit_code


def parse(arguments: list[str]) -> argparse.Namespace:
    """The arguments of one command, options filled in; `UsageError` for what makes no sense."""
    commands = ("chat", "run", "info", "verify", "plan", "doctor", "convert", "reorder", "eval",
                "bench")  # fmt: skip
    first = arguments[0] if arguments else ""
    if not first or (first.startswith("-") and first not in ("-h", "--help", "--version")):
        arguments = ["chat", *arguments]
    elif not first.startswith("-") and first not in commands:
        hint = f"did you mean `flashllm chat {first}`?" if Path(first).exists() else "see --help"
        raise UsageError(f"there is no command {first!r}; {hint}")
    parsed = build_parser().parse_args(arguments)
    resolve_options(parsed)
    return parsed


def build_parser() -> Parser:
    """The parser for all commands."""
    parser = Parser(
        prog="flashllm",
        description=f"Language models larger than memory: weights stay on flash.\n\n{EXAMPLES}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"flashllm {flashllm.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_chat(commands)
    _add_run(commands)
    info = _add_command(
        commands, "info", "what a converted model is", "flashllm.commands.info:info"
    )
    add_model(info)
    info.add_argument("--plan", action="store_true", help="open it, and say how memory is split")
    add_options(info, "model", MODEL_OPTIONS)
    verify = _add_command(
        commands, "verify", "read a converted model through", "flashllm.commands.info:verify"
    )
    add_model(verify)
    doctor = _add_command(commands, "doctor", "what this machine can do", "flashllm.doctor:doctor")
    add_model(doctor)
    for command in (info, verify, doctor):
        command.add_argument("--json", action="store_true", help="one JSON object")
    _add_plan(commands)
    _add_convert(commands)
    _add_eval(commands)
    _add_bench(commands)
    return parser


def _add_command(
    commands: argparse._SubParsersAction[Parser],
    name: str,
    help_text: str,
    handler: str,
    examples: str = "",
) -> Parser:
    parser = commands.add_parser(
        name,
        help=help_text,
        description=f"{help_text[0].upper()}{help_text[1:]}.\n\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(handler=handler)
    return parser


def _add_chat(commands: argparse._SubParsersAction[Parser]) -> None:
    chat = _add_command(
        commands, "chat", "talk to a model", "flashllm.commands.chat:chat", CHAT_EXAMPLES
    )
    add_model(chat)
    add_options(chat, "conversation", (*CHAT_OPTIONS, *SESSION_OPTIONS))
    add_options(chat, "answers", SAMPLING_OPTIONS)
    add_options(chat, "model", MODEL_OPTIONS)


def _add_run(commands: argparse._SubParsersAction[Parser]) -> None:
    run = _add_command(
        commands, "run", "answer one prompt", "flashllm.commands.run:run", RUN_EXAMPLES
    )
    add_model(run)
    run.add_argument(
        "-p", "--prompt", metavar="TEXT", help="the prompt; `-`, or a pipe, is standard input"
    )
    run.add_argument("-s", "--system", default="", metavar="TEXT", help="what comes before it")
    run.add_argument(
        "--ids", type=argument(parse_ids), metavar="IDS", help="the prompt as token ids: 1,2,3"
    )
    run.add_argument(
        "--raw",
        action="store_true",
        help="no chat template: continue the text (so it is for models without a template)",
    )
    run.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end there; repeatable"
    )
    form = run.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object with every number")
    form.add_argument("--jsonl", action="store_true", help="one JSON object per token, then a sum")
    form.add_argument("--no-stream", action="store_true", help="print when all is there")
    add_options(run, "answers", SAMPLING_OPTIONS)
    add_options(run, "model", MODEL_OPTIONS)


def _add_plan(commands: argparse._SubParsersAction[Parser]) -> None:
    plan = _add_command(
        commands,
        "plan",
        "what a model will take, before it is converted",
        "flashllm.commands.plan:plan",
        PLAN_EXAMPLES,
    )
    plan.add_argument(
        "model",
        metavar="SRC|MODEL|SHAPE",
        help="directory of a checkpoint (its config.json is enough) or of a converted model, or a"
        " built-in shape",
    )
    plan.add_argument("--json", action="store_true", help="one JSON object")
    plan.add_argument(
        "--active",
        type=argument(parse_share),
        metavar="SHARE",
        help="share of the neurons that a token uses, like 0.1 or 10%% (default: as recorded, or"
        " as usual for models of this kind)",
    )
    convert_options.add_reading(plan)
    add_options(plan, "model", MODEL_OPTIONS)


def _add_convert(commands: argparse._SubParsersAction[Parser]) -> None:
    convert = _add_command(
        commands,
        "convert",
        "make a converted model from a checkpoint",
        "flashllm.commands.convert:convert",
        convert_options.CONVERT_EXAMPLES,
    )
    convert_options.add_convert_arguments(convert)
    reorder = _add_command(
        commands,
        "reorder",
        "write a converted model anew, neurons that are needed together lying together",
        "flashllm.commands.convert:reorder",
        convert_options.REORDER_EXAMPLES,
    )
    convert_options.add_reorder_arguments(reorder)


def _add_eval(commands: argparse._SubParsersAction[Parser]) -> None:
    evaluate = _add_command(
        commands,
        "eval",
        "measure what selecting neurons costs and saves",
        "flashllm.commands.evaluate:evaluate",
        EVAL_EXAMPLES,
    )
    add_model(evaluate)
    evaluate.add_argument(
        "--text", type=Path, metavar="TEXT", help="perplexity, errors and window use on a text"
    )
    evaluate.add_argument(
        "--tasks",
        type=Path,
        action="append",
        default=[],
        metavar="TASKS",
        help="right answers to questions; repeatable",
    )
    count = argument(parse_positive)
    evaluate.add_argument(
        "--tokens",
        type=count,
        default=20_000,
        metavar="N",
        help="of the text, evenly from all of its lines (20000)",
    )
    evaluate.add_argument(
        "--skip",
        type=argument(parse_count),
        default=0,
        metavar="N",
        help="tokens at the start of each passage that are given, not counted (0)",
    )
    evaluate.add_argument(
        "--all-tokens", action="store_true", help="in conversations, count questions too"
    )
    evaluate.add_argument(
        "--limit",
        type=count,
        metavar="N",
        help="questions of each file, evenly from all of it (all; 400 where nothing is asked for)",
    )
    evaluate.add_argument(
        "--seed",
        type=argument(parse_count),
        default=0,
        metavar="N",
        help="of the sample of neurons whose friends are looked for (0)",
    )
    evaluate.add_argument("--json", action="store_true", help="one JSON object with every number")
    evaluate.add_argument(
        "--plot", type=Path, metavar="DIR", help="draw PNG pictures there (needs matplotlib)"
    )
    options = tuple(option for option in MODEL_OPTIONS if option.name in ("select", "kv_dtype"))
    add_options(evaluate, "model", options)


def _add_bench(commands: argparse._SubParsersAction[Parser]) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure the disk, and what each token costs",
        description="Measure the disk, and what each token costs.",
    )
    kinds = bench.add_subparsers(title="what to measure", metavar="WHAT", required=True)
    module = "flashllm.commands.bench"
    io = _add_command(
        kinds, "io", "throughput and latency of a disk, with no model", f"{module}_io:bench_io",
        bench_options.IO_EXAMPLES,
    )  # fmt: skip
    bench_options.add_io_arguments(io)
    tokens = _add_command(
        kinds, "tokens", "what each token costs, beside what this machine allows",
        f"{module}_tokens:bench_tokens", bench_options.TOKENS_EXAMPLES,
    )  # fmt: skip
    add_model(tokens)
    bench_options.add_tokens_arguments(tokens)
    ablation = _add_command(
        kinds, "ablation", "what each part of the method saves: the paper's Table 2",
        f"{module}_ablation:bench_ablation", bench_options.ABLATION_EXAMPLES,
    )  # fmt: skip
    add_model(ablation)
    bench_options.add_ablation_arguments(ablation)
    cache = _add_command(
        kinds, "cache", "policies of what stays in memory, beside the best that there could be",
        f"{module}_cache:bench_cache", bench_options.CACHE_EXAMPLES,
    )  # fmt: skip
    add_model(cache)
    bench_options.add_cache_arguments(cache)
