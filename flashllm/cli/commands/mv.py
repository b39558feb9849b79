"""`flashllm mv`: gives a converted model another name."""

from __future__ import annotations

import argparse

from flashllm.cli.shared.output import Output, remark
from flashllm.errors import FlashllmError, UsageError

MV_EXAMPLES = """\
examples:
  flashllm mv big first                         `flashllm run first` is it from now on
Its directory gets the name, and stays in its place; conversations with the model follow.
"""


def mv(arguments: argparse.Namespace) -> int:
    """Renames the model, and prints where it is."""
    from flashllm.library.names import usual_names
    from flashllm.library.renaming import follow_in_conversations, rename_model

    names = usual_names()
    model = names.find(arguments.model)
    if model.choice.path is None:
        raise UsageError(f"{model.name}: comes with flashllm, and keeps its name")
    made = rename_model(model.choice.path, arguments.name, names)
    try:
        follow_in_conversations(model.choice.path, made)
    except FlashllmError as error:
        remark(f"conversations still have the name before: {error}")
    Output().write(f"{made}\n")
    return 0


def add_mv_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `mv`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a converted model, by its name in `flashllm ls` or its directory",
    )
    parser.add_argument("name", metavar="NEW", help="its new name")
