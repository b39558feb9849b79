"""`flashllm path`: where the user's files are."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from flashllm.cli.shared.output import Output, table
from flashllm.system import paths

PLACES: dict[str, Callable[[], Path]] = {
    "config": paths.config_file,
    "data": paths.data_dir,
    "db": paths.database_file,
    "history": paths.history_file,
    "models": paths.models_dir,
    "cache": paths.cache_dir,
    "log": paths.log_file,
}
PATH_EXAMPLES = """\
examples:
  flashllm path                                 all of them
  less "$(flashllm path log)"
FLASHLLM_HOME moves all of them below one directory.
"""


def add_path_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `path`."""
    parser.add_argument(
        "place",
        nargs="?",
        choices=list(PLACES),
        metavar="PLACE",
        help=f"one of {', '.join(PLACES)} (default: all)",
    )


def path(arguments: argparse.Namespace) -> int:
    """Prints one path, or all; returns the exit code."""
    output = Output()
    if arguments.place:
        output.write(f"{PLACES[arguments.place]()}\n")
    else:
        output.write(table([(name, place()) for name, place in PLACES.items()]))
    return 0
