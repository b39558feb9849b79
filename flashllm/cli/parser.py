"""The parser of the command line: a table of commands, and where each begins.

What a command does is looked up by name when it is asked for, so that its imports are its own.
"""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import flashllm
from flashllm.cli.completion.arguments import add_completion_arguments
from flashllm.cli.shared.flags import add_model
from flashllm.cli.shared.mistakes import Parser

EXAMPLES = """\
examples:
  flashllm                                      chat with the small model that comes with flashllm
  flashllm run "What does ocean mean?"          one answer on standard output
  flashllm convert ~/big ~/big.flash --predictors train
  flashllm chat ~/big.flash --memory 8GiB       a model larger than the memory it gets
  flashllm doctor                               what this machine can do
"""
EXIT_CODES = """\
exit codes: 0 done; 1 unexpected; 2 usage; 65 bad data (of a model, of conversations, of rows of a
batch); 66 no such model or conversation; 69 a download failed; 71 not enough memory; 73 output
cannot be written; 74 reading failed, or a conversation could not be saved; 75 stopped, start again;
77 no access; 78 bad settings; 130 interrupted
"""


@dataclass(frozen=True, slots=True)
class Command:
    """One command, or with `kinds` a group of them."""

    name: str
    help: str
    handler: str = ""
    """`module:function`, which gets the arguments and returns the exit code."""
    add_arguments: Callable[[argparse.ArgumentParser], None] | str = add_model
    """A function, or `module:function` of one that is imported for this command alone."""
    examples: str = ""
    """`module:name` of a text."""
    kinds: tuple[Command, ...] = ()
    kinds_title: str = ""
    others: tuple[str, ...] = ()
    """Further names of it."""
    tolerant: bool = False
    """Whether it works where settings make no sense: these are left out, and it says so."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of its names."""
        return (self.name, *self.others)


def _add_model_and_json(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    _add_json(parser)


def _add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    add_completion_arguments(parser)
    # What is completed is this parser itself, which the command below it cannot import.
    parser.set_defaults(build_parser=build_parser, default_command=DEFAULT_COMMAND)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object")


CONFIG_COMMANDS = (
    Command(
        "show",
        "every setting and its value",
        "flashllm.cli.commands.config:show",
        "flashllm.cli.commands.config:add_show_arguments",
        "flashllm.cli.commands.config:SHOW_EXAMPLES",
        tolerant=True,
    ),
    Command(
        "edit",
        "open config.toml in an editor",
        "flashllm.cli.commands.config:edit",
        "flashllm.cli.commands.config:add_nothing",
        "flashllm.cli.commands.config:EDIT_EXAMPLES",
    ),
    Command(
        "path",
        "where config.toml is",
        "flashllm.cli.commands.config:path",
        "flashllm.cli.commands.config:add_nothing",
    ),
)
INSPECT_COMMANDS = (
    Command(
        "similarity",
        "how alike layers' inputs are, and what guessing their queries misses",
        "flashllm.cli.commands.inspect:similarity",
        "flashllm.cli.commands.inspect:add_similarity_arguments",
        "flashllm.cli.commands.inspect:SIMILARITY_EXAMPLES",
    ),
)
BENCH_COMMANDS = (
    Command(
        "io",
        "throughput and latency of a disk, with no model",
        "flashllm.cli.bench.disk:bench_io",
        "flashllm.cli.bench.options:add_io_arguments",
        "flashllm.cli.bench.options:IO_EXAMPLES",
    ),
    Command(
        "tokens",
        "what each token costs, compared with what this machine allows",
        "flashllm.cli.bench.tokens:bench_tokens",
        "flashllm.cli.bench.options:add_tokens_arguments",
        "flashllm.cli.bench.options:TOKENS_EXAMPLES",
    ),
    Command(
        "prompt",
        "how soon the first token comes, compared with what this machine allows",
        "flashllm.cli.bench.prompt:bench_prompt",
        "flashllm.cli.bench.options:add_prompt_arguments",
        "flashllm.cli.bench.options:PROMPT_EXAMPLES",
    ),
    Command(
        "ablation",
        "what each part of the method saves: the paper's Table 2",
        "flashllm.cli.bench.ablation:bench_ablation",
        "flashllm.cli.bench.options:add_ablation_arguments",
        "flashllm.cli.bench.options:ABLATION_EXAMPLES",
    ),
    Command(
        "cache",
        "compare policies of what stays in memory with the best possible one",
        "flashllm.cli.bench.cache:bench_cache",
        "flashllm.cli.bench.options:add_cache_arguments",
        "flashllm.cli.bench.options:CACHE_EXAMPLES",
    ),
    Command(
        "kv",
        "what it costs and saves to see some keys and values only",
        "flashllm.cli.bench.kv:bench_kv",
        "flashllm.cli.bench.options:add_kv_arguments",
        "flashllm.cli.bench.options:KV_EXAMPLES",
    ),
)
SESSIONS_COMMANDS = (
    Command(
        "list",
        "saved conversations, the last changed first",
        "flashllm.cli.commands.sessions:list_",
        "flashllm.cli.commands.sessions:add_list_arguments",
    ),
    Command(
        "search",
        "conversations that contain a text",
        "flashllm.cli.commands.sessions:list_",
        "flashllm.cli.commands.sessions:add_search_arguments",
    ),
    Command(
        "show",
        "print a conversation",
        "flashllm.cli.commands.sessions:show",
        "flashllm.cli.commands.sessions:add_session",
    ),
    Command(
        "export",
        "write a conversation as JSON or Markdown",
        "flashllm.cli.commands.sessions:export",
        "flashllm.cli.commands.sessions:add_export_arguments",
    ),
    Command(
        "import",
        "add a conversation from JSON",
        "flashllm.cli.commands.sessions:import_",
        "flashllm.cli.commands.sessions:add_import_arguments",
    ),
    Command(
        "rename",
        "give a conversation a name",
        "flashllm.cli.commands.sessions:rename",
        "flashllm.cli.commands.sessions:add_rename_arguments",
    ),
    Command(
        "delete",
        "delete conversations, for good",
        "flashllm.cli.commands.sessions:delete",
        "flashllm.cli.commands.sessions:add_delete_arguments",
    ),
    Command(
        "set-aside",
        "rename a damaged database, so that a new one can begin",
        "flashllm.cli.commands.sessions:set_aside_database",
        "flashllm.cli.shared.confirm:add_yes",
    ),
)
COMMANDS = (
    Command(
        "chat",
        "talk to a model",
        "flashllm.cli.commands.chat:chat",
        "flashllm.cli.commands.chat:add_chat_arguments",
        "flashllm.cli.commands.chat:CHAT_EXAMPLES",
    ),
    Command(
        "run",
        "answer one prompt",
        "flashllm.cli.run.command:run",
        "flashllm.cli.run.command:add_run_arguments",
        "flashllm.cli.run.command:RUN_EXAMPLES",
    ),
    Command(
        "batch",
        "answer many prompts, from a file into a file",
        "flashllm.cli.commands.batch:batch",
        "flashllm.cli.commands.batch:add_batch_arguments",
        "flashllm.cli.commands.batch:BATCH_EXAMPLES",
    ),
    Command(
        "sessions",
        "the saved conversations",
        examples="flashllm.cli.commands.sessions:SESSIONS_EXAMPLES",
        kinds=SESSIONS_COMMANDS,
        kinds_title="what to do",
    ),
    Command(
        "ls",
        "the models on this machine, what they need, how fast they would be",
        "flashllm.cli.commands.ls:ls",
        "flashllm.cli.commands.ls:add_ls_arguments",
        "flashllm.cli.commands.ls:LS_EXAMPLES",
        tolerant=True,
    ),
    Command(
        "show",
        "describe a converted model: what it is, where it lies, what it needs",
        "flashllm.cli.commands.show:show",
        "flashllm.cli.commands.show:add_show_arguments",
        "flashllm.cli.commands.show:SHOW_EXAMPLES",
        others=("info",),
        tolerant=True,
    ),
    Command(
        "mv",
        "give a converted model another name",
        "flashllm.cli.commands.mv:mv",
        "flashllm.cli.commands.mv:add_mv_arguments",
        "flashllm.cli.commands.mv:MV_EXAMPLES",
    ),
    Command(
        "rm",
        "remove converted models",
        "flashllm.cli.commands.rm:rm",
        "flashllm.cli.commands.rm:add_rm_arguments",
        "flashllm.cli.commands.rm:RM_EXAMPLES",
    ),
    Command(
        "verify",
        "check every byte of a converted model",
        "flashllm.cli.commands.show:verify",
        _add_model_and_json,
    ),
    Command(
        "doctor",
        "what this machine can do, and whether a model fits it",
        "flashllm.cli.commands.doctor:doctor",
        "flashllm.cli.commands.doctor:add_doctor_arguments",
        "flashllm.cli.commands.doctor:DOCTOR_EXAMPLES",
        tolerant=True,
    ),
    Command(
        "plan",
        "what memory and time a model will take, before it is converted",
        "flashllm.cli.commands.plan:plan",
        "flashllm.cli.commands.plan:add_plan_arguments",
        "flashllm.cli.commands.plan:PLAN_EXAMPLES",
    ),
    Command(
        "models",
        "published models that run well, and what they would need here",
        "flashllm.cli.commands.models:models",
        "flashllm.cli.commands.models:add_models_arguments",
        "flashllm.cli.commands.models:MODELS_EXAMPLES",
    ),
    Command(
        "pull",
        "get a model from the Hugging Face hub, and convert it on the way",
        "flashllm.cli.commands.pull:pull",
        "flashllm.cli.commands.pull:add_pull_arguments",
        "flashllm.cli.commands.pull:PULL_EXAMPLES",
    ),
    Command(
        "convert",
        "make a converted model from a checkpoint",
        "flashllm.cli.commands.convert:convert",
        "flashllm.cli.commands.convert:add_convert_arguments",
        "flashllm.cli.commands.convert:CONVERT_EXAMPLES",
    ),
    Command(
        "reorder",
        "rewrite a converted model, with neurons that are used together next to each other",
        "flashllm.cli.commands.convert:reorder",
        "flashllm.cli.commands.convert:add_reorder_arguments",
        "flashllm.cli.commands.convert:REORDER_EXAMPLES",
    ),
    Command(
        "calibrate",
        "measure a text, so that long contexts fetch less of their keys and values",
        "flashllm.cli.commands.calibrate:calibrate",
        "flashllm.cli.commands.calibrate:add_calibrate_arguments",
        "flashllm.cli.commands.calibrate:CALIBRATE_EXAMPLES",
    ),
    Command(
        "eval",
        "measure what selecting neurons costs and saves",
        "flashllm.cli.commands.evaluate:evaluate",
        "flashllm.cli.commands.evaluate:add_evaluate_arguments",
        "flashllm.cli.commands.evaluate:EVAL_EXAMPLES",
    ),
    Command(
        "bench",
        "measure the disk, and what each token costs",
        kinds=BENCH_COMMANDS,
        kinds_title="what to measure",
    ),
    Command(
        "inspect",
        "look into what a model computes on a text",
        kinds=INSPECT_COMMANDS,
        kinds_title="what to look at",
    ),
    Command("config", "what is set, and where", kinds=CONFIG_COMMANDS, kinds_title="what to do"),
    Command(
        "path",
        "where your files are",
        "flashllm.cli.commands.path:path",
        "flashllm.cli.commands.path:add_path_arguments",
        "flashllm.cli.commands.path:PATH_EXAMPLES",
    ),
    Command(
        "completion",
        "a script that lets a shell complete commands and options",
        "flashllm.cli.completion.command:completion",
        _add_completion_arguments,
        "flashllm.cli.completion.arguments:COMPLETION_EXAMPLES",
    ),
)
DEFAULT_COMMAND = "chat"


def command_names(commands: Iterable[Command] = COMMANDS) -> list[str]:
    """What can be typed as a command."""
    return [name for command in commands for name in command.names]


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
        _add_command(commands, command, with_arguments=only in (None, *command.names))
    return parser


def _add_command(
    commands: argparse._SubParsersAction[Parser], command: Command, *, with_arguments: bool
) -> None:
    parser = commands.add_parser(
        command.name,
        aliases=command.others,
        help=command.help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if not with_arguments:
        return
    examples = pkgutil.resolve_name(command.examples) if command.examples else ""
    parser.description = f"{command.help[0].upper()}{command.help[1:]}.\n\n{examples}"
    if not command.kinds:
        parser.set_defaults(handler=command.handler, tolerant=command.tolerant)
        add = command.add_arguments
        (pkgutil.resolve_name(add) if isinstance(add, str) else add)(parser)
        return
    kinds = parser.add_subparsers(title=command.kinds_title, metavar="WHAT", required=True)
    for kind in command.kinds:
        _add_command(kinds, kind, with_arguments=True)
