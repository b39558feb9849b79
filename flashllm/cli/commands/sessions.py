"""`flashllm sessions`: saved conversations, without the chat."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

from flashllm.cli.shared.confirm import add_yes, agreed
from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.output import Output, remark
from flashllm.conversations import exchange, files
from flashllm.conversations.database import set_aside
from flashllm.conversations.records import SessionSummary
from flashllm.conversations.store import SessionStore
from flashllm.errors import DestinationExists, SessionStoreBroken, UsageError
from flashllm.library.directories import shown_name
from flashllm.settings.values import parse_positive
from flashllm.untrusted.terminal import sanitize_line

MODEL_WIDTH = 14


def list_(arguments: argparse.Namespace) -> int:
    """Prints one line for each conversation; exit code 0 even if there are none."""
    output = Output()
    with SessionStore() as store:
        summaries = store.list(arguments.query, arguments.limit)
    if arguments.json:
        for summary in summaries:
            output.json(asdict(summary))
    elif summaries:
        output.write(
            f"{'id':>5}  {'changed':<16}  {'messages':>8}  {'model':<{MODEL_WIDTH}}  name\n"
        )
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        output.write("".join(f"{_line(summary)[:width]}\n" for summary in summaries))
    elif arguments.query:
        remark(f"no conversation contains {arguments.query!r}")
    else:
        remark("no conversations yet; `flashllm chat` and `flashllm run --save` keep theirs")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Prints a conversation as Markdown."""
    with SessionStore() as store:
        text = store.export_markdown(store.find(arguments.session))
    Output().write(text)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Writes a conversation as JSON or Markdown, to a file or to standard output."""
    target: Path | None = arguments.output
    is_markdown = arguments.format == "md" or (
        arguments.format is None and target is not None and target.suffix in (".md", ".markdown")
    )
    with SessionStore() as store:
        session = store.load(store.find(arguments.session))
    text = files.text_of(session, "md" if is_markdown else "json")
    if target is None:
        Output().write(text)
    else:
        try:
            files.write(target, text, arguments.force)
        except DestinationExists as error:
            raise DestinationExists(f"{target}: exists; --force writes over it") from error
    return 0


def import_(arguments: argparse.Namespace) -> int:
    """Adds a conversation from JSON; prints its id."""
    value = files.read(Path(arguments.file)) if arguments.file != "-" else _read_stdin()
    with SessionStore() as store:
        number = store.import_json(value)
    Output().write(f"{number}\n")
    return 0


def rename(arguments: argparse.Namespace) -> int:
    """Gives a conversation another name."""
    with SessionStore() as store:
        store.rename(store.find(arguments.session), arguments.name.strip())
    return 0


def delete(arguments: argparse.Namespace) -> int:
    """Deletes conversations permanently, after confirmation."""
    with SessionStore() as store:
        chosen = [store.summary(store.find(text)) for text in arguments.session]
        for summary in dict.fromkeys(chosen):
            what = f"conversation {summary.id}, {summary.turns} messages"
            question = f'delete "{_title(summary)}" ({what})?'
            if arguments.yes or agreed(question):
                store.delete(summary.id)
            else:
                remark(f"conversation {summary.id} was kept")
    return 0


def set_aside_database(arguments: argparse.Namespace) -> int:
    """Renames a damaged database, so that a new one can begin; an intact one needs `--yes`."""
    from flashllm.system.paths import database_file

    path = database_file()
    if not path.exists():
        raise UsageError(f"{path}: there is no database yet")
    problem = _problem(path)
    if problem:
        remark(problem)
    elif not arguments.yes:
        raise UsageError(f"{path}: is not damaged; --yes sets it aside all the same")
    for moved in set_aside(path):
        Output().write(f"{moved}\n")
    return 0


def _problem(path: Path) -> str:
    try:
        with SessionStore(path) as store:
            return store.check()
    except SessionStoreBroken as error:
        return str(error)


def _line(summary: SessionSummary) -> str:
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.updated))
    model = shown_name(summary.model)
    head = f"{summary.id:>5}  {date}  {summary.turns:>8}  {model[:MODEL_WIDTH]:<{MODEL_WIDTH}}"
    return f"{head}  {_title(summary)}"


def _title(summary: SessionSummary) -> str:
    return sanitize_line(summary.name) or summary.preview or "(nothing was said)"


def _read_stdin() -> object:
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("standard input is closed; name a file")
    return exchange.parse(sys.stdin.buffer.read(exchange.FILE_BYTES_MAX + 1))


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
        help=f"list the N that were changed last ({LIST_MAX})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per conversation")
    parser.set_defaults(query="")


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sessions search`."""
    add_list_arguments(parser)
    parser.add_argument(
        "query",
        metavar="TEXT",
        help="text in a name, a system prompt or a message; case does not count",
    )


def add_session(parser: argparse.ArgumentParser) -> None:
    """Adds the conversation to work with."""
    parser.add_argument("session", metavar="ID|NAME", help="which conversation")


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sessions export`."""
    add_session(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file to write (default: standard output)"
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
