"""`flashllm rm`: removes converted models."""

from __future__ import annotations

import argparse
from pathlib import Path

from flashllm.cli.shared.confirm import add_yes, agreed
from flashllm.cli.shared.output import remark
from flashllm.errors import ModelNotFound
from flashllm.units import format_bytes

RM_EXAMPLES = """\
examples:
  flashllm rm big                               after asking; the checkpoint stays
  flashllm rm ~/old.flash big --yes             without asking
Only the files of the models go. What else lies in their directories stays, and so do conversations.
A demo can go too: it is made again when it is opened, also where it was damaged.
"""


def rm(arguments: argparse.Namespace) -> int:
    """Removes models, each after asking."""
    from flashllm.library.names import usual_names
    from flashllm.library.removal import own_files, remove_model

    names = usual_names()
    for model in [names.find(text) for text in arguments.models]:
        directory = model.path or _demo_directory(model.name)
        size = sum(_bytes(directory / name) for name in own_files(directory))
        what = f"{model.name} ({directory}, {format_bytes(size)})"
        if not arguments.yes and not agreed(f"remove {what}?"):
            remark(f"{model.name} was kept")
            continue
        left = remove_model(directory)
        again = "; it is made again when it is opened" if model.choice.path is None else ""
        remark(f"removed {what}{again}")
        if left:
            remark(f"{directory}: other files stay there: {', '.join(left)}")
    return 0


def _demo_directory(name: str) -> Path:
    """Where a converted demo is; `ModelNotFound` where it is not made yet."""
    from flashllm.flash.demo_places import demo_directory

    directory = demo_directory(name)
    if not directory.exists():
        raise ModelNotFound(f"{name}: is not there yet; it is made when it is opened")
    return directory


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def add_rm_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `rm`."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a converted model, by its name in `flashllm ls` or its directory",
    )
    add_yes(parser)
