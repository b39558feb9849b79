"""The parser of the command line: a table of commands, and where each begins.

What a command does is looked up by name when it is asked for, so that its imports are its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import flashllm
from flashllm.commands import bench_options, config, convert_options, sessions_options
from flashllm.commands.chat_options import CHAT_EXAMPLES, add_chat_arguments
from flashllm.commands.completion import COMPLETION_EXAMPLES, add_completion_arguments
from flashllm.commands.evaluate_options import EVAL_EXAMPLES, add_evaluate_arguments
from flashllm.commands.ls_options import LS_EXAMPLES, add_ls_arguments
from flashllm.commands.options import MODEL_OPTIONS, add_model, add_options
from flashllm.commands.path import PATH_EXAMPLES, add_path_arguments
from flashllm.commands.plan_options import PLAN_EXAMPLES, add_plan_arguments
from flashllm.commands.run_options import RUN_EXAMPLES, add_run_arguments
from flashllm.errors import UsageError

EXAMPLES = """\
examples:
  flashllm                                      chat with the small model that comes with flashllm
  flashllm run -p "What does ocean mean?"       one answer on standard output
  flashllm convert ~/big ~/big.flash --predictors train
  flashllm chat ~/big.flash --memory 8GiB       a model larger than the memory it gets
  flashllm doctor                               what this machine can do
"""
EXIT_CODES = """\
exit codes: 0 done; 1 unexpected; 2 usage; 65 bad data (of a model, of conversations); 66 no such
model or conversation; 71 not enough memory; 73 output cannot be written; 74 reading failed, or a
conversation could not be saved; 75 stopped, start again; 78 bad settings; 130 interrupted
"""


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of leaving."""

    def error(self, message: str) -> NoReturn:
        """One message, as for every other error."""
        raise UsageError(f"{message}; see `{self.prog} --help`")


@dataclass(frozen=True, slots=True)
class Command:
    """One command, or with `kinds` a group of them."""

    name: str
    help: str
    handler: str = ""
    """`module:function`, which gets the arguments and returns the exit code."""
    add_arguments: Callable[[argparse.ArgumentParser], None] = add_model
    examples: str = ""
    kinds: tuple[Command, ...] = ()
    kinds_title: str = ""


def _add_info_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--plan", action="store_true", help="open it, and say how memory is split")
    add_options(parser, "model", MODEL_OPTIONS)
    _add_json(parser)


def _add_model_and_json(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    _add_json(parser)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object")


CONFIG_COMMANDS = (
    Command(
        "show",
        "every setting as it holds now",
        "flashllm.commands.config:show",
        config.add_show_arguments,
        config.SHOW_EXAMPLES,
    ),
    Command(
        "edit",
        "open config.toml in an editor",
        "flashllm.commands.config:edit",
        config.add_nothing,
        config.EDIT_EXAMPLES,
    ),
    Command("path", "where config.toml is", "flashllm.commands.config:path", config.add_nothing),
)
BENCH_COMMANDS = (
    Command(
        "io",
        "throughput and latency of a disk, with no model",
        "flashllm.commands.bench_io:bench_io",
        bench_options.add_io_arguments,
        bench_options.IO_EXAMPLES,
    ),
    Command(
        "tokens",
        "what each token costs, beside what this machine allows",
        "flashllm.commands.bench_tokens:bench_tokens",
        bench_options.add_tokens_arguments,
        bench_options.TOKENS_EXAMPLES,
    ),
    Command(
        "ablation",
        "what each part of the method saves: the paper's Table 2",
        "flashllm.commands.bench_ablation:bench_ablation",
        bench_options.add_ablation_arguments,
        bench_options.ABLATION_EXAMPLES,
    ),
    Command(
        "cache",
        "policies of what stays in memory, beside the best that there could be",
        "flashllm.commands.bench_cache:bench_cache",
        bench_options.add_cache_arguments,
        bench_options.CACHE_EXAMPLES,
    ),
)
SESSIONS_COMMANDS = (
    Command(
        "list",
        "conversations that are kept, the last changed first",
        "flashllm.commands.sessions:list_",
        sessions_options.add_list_arguments,
    ),
    Command(
        "search",
        "those in which something was said",
        "flashllm.commands.sessions:list_",
        sessions_options.add_search_arguments,
    ),
    Command(
        "show",
        "print a conversation",
        "flashllm.commands.sessions:show",
        sessions_options.add_session,
    ),
    Command(
        "export",
        "write a conversation as JSON or Markdown",
        "flashllm.commands.sessions:export",
        sessions_options.add_export_arguments,
    ),
    Command(
        "import",
        "add a conversation from JSON",
        "flashllm.commands.sessions:import_",
        sessions_options.add_import_arguments,
    ),
    Command(
        "rename",
        "give a conversation a name",
        "flashllm.commands.sessions:rename",
        sessions_options.add_rename_arguments,
    ),
    Command(
        "delete",
        "delete conversations, for good",
        "flashllm.commands.sessions:delete",
        sessions_options.add_delete_arguments,
    ),
    Command(
        "set-aside",
        "rename a damaged database, so that a new one is begun",
        "flashllm.commands.sessions:put_aside",
        sessions_options.add_yes,
    ),
)
COMMANDS = (
    Command(
        "chat",
        "talk to a model",
        "flashllm.commands.chat:chat",
        add_chat_arguments,
        CHAT_EXAMPLES,
    ),
    Command(
        "run", "answer one prompt", "flashllm.commands.run:run", add_run_arguments, RUN_EXAMPLES
    ),
    Command(
        "sessions",
        "the conversations that are kept",
        examples=sessions_options.SESSIONS_EXAMPLES,
        kinds=SESSIONS_COMMANDS,
        kinds_title="what to do",
    ),
    Command(
        "ls",
        "the models on this machine, what they need, how fast they would be",
        "flashllm.commands.ls:ls",
        add_ls_arguments,
        LS_EXAMPLES,
    ),
    Command(
        "info",
        "what a converted model is",
        "flashllm.commands.info:info",
        _add_info_arguments,
    ),
    Command(
        "verify",
        "read a converted model through",
        "flashllm.commands.info:verify",
        _add_model_and_json,
    ),
    Command(
        "doctor",
        "what this machine can do",
        "flashllm.doctor:doctor",
        _add_model_and_json,
    ),
    Command(
        "plan",
        "what a model will take, before it is converted",
        "flashllm.commands.plan:plan",
        add_plan_arguments,
        PLAN_EXAMPLES,
    ),
    Command(
        "convert",
        "make a converted model from a checkpoint",
        "flashllm.commands.convert:convert",
        convert_options.add_convert_arguments,
        convert_options.CONVERT_EXAMPLES,
    ),
    Command(
        "reorder",
        "write a converted model anew, neurons that are needed together lying together",
        "flashllm.commands.convert:reorder",
        convert_options.add_reorder_arguments,
        convert_options.REORDER_EXAMPLES,
    ),
    Command(
        "eval",
        "measure what selecting neurons costs and saves",
        "flashllm.commands.evaluate:evaluate",
        add_evaluate_arguments,
        EVAL_EXAMPLES,
    ),
    Command(
        "bench",
        "measure the disk, and what each token costs",
        kinds=BENCH_COMMANDS,
        kinds_title="what to measure",
    ),
    Command("config", "what is set, and where", kinds=CONFIG_COMMANDS, kinds_title="what to do"),
    Command(
        "path",
        "where files of yours lie",
        "flashllm.commands.path:path",
        add_path_arguments,
        PATH_EXAMPLES,
    ),
    Command(
        "completion",
        "a script that lets a shell complete commands and options",
        "flashllm.commands.completion:completion",
        add_completion_arguments,
        COMPLETION_EXAMPLES,
    ),
)
DEFAULT_COMMAND = "chat"


def build_parser(only: str | None = None) -> Parser:
    """The parser for all commands; with `only`, the others are names without arguments.

    A line has one command, and the arguments of all of them take longer than all the rest.
    """
    parser = Parser(
        prog="flashllm",
        description=f"Language models larger than memory: weights stay on flash.\n\n{EXAMPLES}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"flashllm {flashllm.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        _add_command(commands, command, with_arguments=only in (None, command.name))
    return parser


def _add_command(
    commands: argparse._SubParsersAction[Parser], command: Command, *, with_arguments: bool
) -> None:
    parser = commands.add_parser(
        command.name,
        help=command.help,
        description=f"{command.help[0].upper()}{command.help[1:]}.\n\n{command.examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if not with_arguments:
        return
    if not command.kinds:
        parser.set_defaults(handler=command.handler)
        command.add_arguments(parser)
        return
    kinds = parser.add_subparsers(title=command.kinds_title, metavar="WHAT", required=True)
    for kind in command.kinds:
        _add_command(kinds, kind, with_arguments=True)
