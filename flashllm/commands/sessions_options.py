"""What the kinds of `sessions` take."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashllm.commands.options import argument, parse_positive

LIST_MAX = 50
SESSIONS_EXAMPLES = """\
examples:
  flashllm sessions list
  flashllm sessions search ocean
  flashllm sessions show 3
  flashllm sessions export 3 -o ocean.md        # .json: everything, to be imported again
  flashllm chat --session 3                     # go on with it
"""


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sessions list`."""
    parser.add_argument(
        "--limit",
        type=argument(parse_positive),
        default=LIST_MAX,
        metavar="N",
        help=f"the N that were changed last ({LIST_MAX})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per conversation")
    parser.set_defaults(query="")


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sessions search`."""
    add_list_arguments(parser)
    parser.add_argument(
        "query",
        metavar="TEXT",
        help="what a name, a system prompt or a message holds; case does not count",
    )


def add_session(parser: argparse.ArgumentParser) -> None:
    """Adds the conversation to work with."""
    parser.add_argument("session", metavar="ID|NAME", help="which conversation")


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sessions export`."""
    add_session(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where to (default: standard output)"
    )
    parser.add_argument(
        "--format",
        choices=("json", "md"),
        help="json: everything; md: what is shown, as Markdown (default: by the name, else json)",
    )
    parser.add_argument("--force", action="store_true", help="write over FILE if it exists")


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sessions import`."""
    parser.add_argument(
        "file", metavar="FILE", help="JSON that `sessions export` wrote; `-` is standard input"
    )


def add_rename_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sessions rename`."""
    add_session(parser)
    parser.add_argument("name", metavar="NEW", help="its new name")


def add_delete_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sessions delete`."""
    parser.add_argument("session", nargs="+", metavar="ID|NAME", help="which conversations")
    add_yes(parser)


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Adds the answer to what would be asked."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
