"""`flashllm ls`: the models on this machine, and checkpoints that could be converted."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.cli.shared.flags import add_options
from flashllm.cli.shared.output import Output, remark
from flashllm.errors import FlashllmError
from flashllm.library.formatting import ASSUMED, UNKNOWN, figures, format_rates_origin
from flashllm.library.names import models_of_conversations
from flashllm.settings.options import CHAT_OPTIONS, MODEL, MODEL_OPTIONS
from flashllm.text_table import aligned
from flashllm.units import format_bytes, format_ceiling
from flashllm.untrusted.terminal import sanitize_line

if TYPE_CHECKING:
    from flashllm.library.models import Checkpoint, FoundModel


HEAD = ("model", "size", "precision", "needs", "tok/s", "path")
CHECKPOINT_HEAD = ("checkpoint", "revision", "size", "path")


def ls(arguments: argparse.Namespace) -> int:
    """Prints the models, broken ones with their problem; returns the exit code."""
    from flashllm.library.library import usual_library

    library = usual_library(
        arguments.settings, directories=arguments.directories, used=_used_by_sessions
    )
    output = Output()
    if arguments.checkpoints:
        checkpoints = list(library.checkpoints())
        if arguments.json:
            _write_json(output, checkpoints)
        else:
            _write_checkpoints(output, checkpoints)
        return 0
    # A model may be yielded again, when more is known about it.
    models = list({model.path: model for model in library.scan()}.values())
    if arguments.json:
        _write_json(output, models)
    else:
        _write_models(output, models)
    return 0


def _used_by_sessions() -> list[str]:
    try:
        return models_of_conversations()
    except FlashllmError as problem:
        remark(f"{problem}; the models of conversations are not looked at")
        return []


def _write_json(output: Output, found: Sequence[FoundModel | Checkpoint]) -> None:
    for one in found:
        output.json(dataclasses.asdict(one) | {"path": str(one.path)})


def _write_models(output: Output, models: Sequence[FoundModel]) -> None:
    rows = [(_model_row(model), _about(model)) for model in models]
    output.write(_columns(HEAD, rows))
    known = [model for model in models if model.smallest_ceiling_bytes is not None]
    if known:
        remark(
            "needs: the least --memory for `flashllm run`; the chat counts its own process too, and"
            " says in its list of models (F5) what they need there"
        )
    if fast := [model for model in known if model.tokens_per_second is not None]:
        remark(
            f"tok/s: expected in {format_ceiling(fast[0].ceiling_bytes or 0)}, from"
            f" {format_rates_origin(any(model.quick for model in fast))}; {ASSUMED}: and from what"
            " is assumed of the model"
        )
    elif not all(model.is_too_large for model in known):
        remark(
            "speeds are unknown here; `flashllm bench io` measures disk and machine, with --quick"
            " in seconds"
        )


def _model_row(model: FoundModel) -> tuple[str, ...]:
    return (model.name, *figures(model), sanitize_line(str(model.path)))


def _about(model: FoundModel) -> str:
    if model.problem:
        return f"cannot be opened: {model.problem}"
    said = [*model.remarks]
    if model.is_too_large:
        said.append(f"needs more than the {format_ceiling(model.ceiling_bytes or 0)} it would get")
    if model.assumed:
        said.append(f"assumed: {model.assumed}")
    return "; ".join(said)


def _write_checkpoints(output: Output, checkpoints: Sequence[Checkpoint]) -> None:
    if not checkpoints:
        from flashllm.library.hf_cache import cache_directories

        places = ", ".join(map(str, cache_directories()))
        remark(
            f"no checkpoints in {places}; `flashllm pull ORG/NAME` gets one, and"
            " `flashllm convert DIR` takes any directory"
        )
        return
    rows = [(_checkpoint_row(one), _checkpoint_about(one)) for one in checkpoints]
    output.write(_columns(CHECKPOINT_HEAD, rows))


def _checkpoint_row(one: Checkpoint) -> tuple[str, ...]:
    size = format_bytes(one.size_bytes) if one.size_bytes else UNKNOWN
    return (one.name, one.revision or UNKNOWN, size, sanitize_line(str(one.path)))


def _checkpoint_about(one: Checkpoint) -> str:
    return f"cannot be converted: {one.problem}" if one.problem else one.remark


def _columns(head: tuple[str, ...], rows: Sequence[tuple[tuple[str, ...], str]]) -> str:
    """Aligned columns under a head, with remarks below their rows."""
    titles, *lines = aligned([head, *(row for row, _ in rows)], left=len(head))
    shown = [titles]
    for line, (_, about) in zip(lines, rows, strict=True):
        shown += [line, f"    {about}"] if about else [line]
    return "\n".join(shown) + "\n"


LS_EXAMPLES = """\
examples:
  flashllm ls                                   the demo, and models in the usual places
  flashllm ls /mnt/ssd --memory 8GiB            those in a directory too, in 8 GiB
  flashllm ls --checkpoints                     what could be converted: the Hugging Face cache
"""
_OPTIONS = ("memory", "ctx_size", "kv_dtype")


def add_ls_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `ls`."""
    parser.add_argument(
        "directories",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="look there too: a model, or a directory of models",
    )
    parser.add_argument(
        "--checkpoints",
        action="store_true",
        help="list the checkpoints in the Hugging Face cache instead, convertible or why not",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = tuple(option for option in MODEL_OPTIONS if option.name in _OPTIONS)
    folders = tuple(option for option in CHAT_OPTIONS if option.name == "model_dirs")
    add_options(parser, "model", (*options, *folders, MODEL))
