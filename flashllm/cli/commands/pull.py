"""`flashllm pull`: get a checkpoint from the Hugging Face hub, and convert it on the way."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.cli.commands.convert import (
    add_allow_pickle,
    add_learning,
    add_progress,
    add_reading,
    add_requantise,
    stopped_like_ctrl_c,
)
from flashllm.cli.commands.pull_report import plan_rows
from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import add_options
from flashllm.cli.shared.output import Output, remark, table
from flashllm.errors import DestinationExists, DownloadFailed, FlashllmError, UsageError
from flashllm.library.hub_names import gguf_stem
from flashllm.library.names import names_in
from flashllm.settings.options import MODEL_OPTIONS
from flashllm.untrusted.terminal import sanitize

if TYPE_CHECKING:
    from flashllm.library.hub import Repository
    from flashllm.library.library import Library
    from flashllm.library.pull import Making, RemoteCheckpoint
    from flashllm.library.pull_plan import PullPlan

USUAL_PLACE = ""
"""The value of --convert without a directory."""


def pull(arguments: argparse.Namespace) -> int:
    """Says what it will take, fetches, converts where asked to; prints where the result is."""
    from flashllm.library import hub, hub_names
    from flashllm.library import pull as library_pull
    from flashllm.library.library import usual_library
    from flashllm.library.pull_plan import check_room, plan_pull

    wanted = hub_names.RepositoryId.read(_repository(arguments))
    name, revision = wanted.name, wanted.revision or hub_names.DEFAULT_REVISION
    making = _making(arguments)
    library = usual_library(arguments.settings)
    destination = _destination(arguments, library, name)
    with stopped_like_ctrl_c():
        if (variable := hub_names.offline_variable()) is not None:
            return _without_network(arguments, name, revision, variable)
        try:
            checkpoint = _examined(hub.look(name, revision), arguments.file)
        except DownloadFailed as problem:
            raise DownloadFailed(f"{problem}{_where_it_is(name, revision)}") from problem
        streams = _streams(arguments, checkpoint, making)
        source = checkpoint.source_in(library_pull.cached(checkpoint).snapshot)
        place = destination or library.destination(source)
        plan = plan_pull(
            checkpoint,
            place,
            making,
            library.conditions(),
            converts=destination is not None,
            streams=streams,
        )
        if arguments.dry_run:
            _write_plan(arguments, plan, streams=streams)
            return 0
        if not arguments.json:
            _tell(plan, converts=destination is not None, streams=streams)
        check_room(plan, converts=destination is not None, streams=streams)
        progress = open_model.terminal_progress(arguments.progress)
        if destination is None:
            path = library_pull.fetch(checkpoint, progress)
        else:
            library.prepare(destination)
            if not streams:
                library_pull.fetch(checkpoint, progress)
            library_pull.fetch_and_convert(checkpoint, destination, making, progress)
            path = destination
    return _say_what_is_next(arguments, plan, path, converted=destination is not None)


def _examined(repository: Repository, file: str | None) -> RemoteCheckpoint:
    """The checkpoint of a repository, or the model in GGUF that was chosen."""
    from flashllm.library.pull import examine
    from flashllm.library.pull_gguf import examine_gguf

    return examine(repository) if file is None else examine_gguf(repository, file)


def _repository(arguments: argparse.Namespace) -> str:
    """What to pull, as ORG/NAME[@REV]: as it was typed, or by the name of a known model."""
    from flashllm.convert.families.known_shapes import find_known, near_names

    typed = arguments.repository
    if typed is None:
        raise UsageError(
            "which model? Its name comes first: flashllm pull ORG/NAME --convert;"
            " `flashllm models` lists some"
        )
    known = find_known(typed)
    if known is not None and known.repository:
        return str(known.repository)
    if os.path.isdir(typed):
        raise UsageError(
            f"{typed}: is a directory here; convert it: flashllm convert {shlex.quote(typed)} DST."
            f" A repository of that name is hf.co/{typed}"
        )
    if "/" not in typed:
        near = near_names(typed)
        advice = (
            f"did you mean {' or '.join(near[:2])}?" if near else "`flashllm models` lists some"
        )
        raise UsageError(f"{typed}: expected ORG/NAME, as on huggingface.co; {advice}")
    return str(typed)


def _making(arguments: argparse.Namespace) -> Making:
    from flashllm.library.pull import Making

    making = Making(
        dtype=arguments.dtype,
        resident_dtype=arguments.resident_dtype,
        act=arguments.act,
        fatrelu_threshold=arguments.fatrelu_threshold,
        predictors=arguments.predictors,
        calibration=arguments.calibration,
        predictor_dtype=arguments.predictor_dtype,
        order=arguments.order,
        allow_pickle=arguments.allow_pickle,
        requantise=arguments.requantise,
    )
    if arguments.convert is None:
        for option in (*making.learning, *(["keep_source"] if arguments.keep_source else [])):
            raise UsageError(
                f"--{option.replace('_', '-')}: belongs to a conversion; add --convert"
            )
    return making


def _destination(arguments: argparse.Namespace, library: Library, name: str) -> Path | None:
    """Where the converted model goes; None where nothing is to be converted."""
    if arguments.convert is None:
        return None
    if arguments.convert != USUAL_PLACE:
        destination = Path(arguments.convert)
    else:
        home = library.home or Path()
        stem = name.rpartition("/")[2] if arguments.file is None else gguf_stem(arguments.file)
        destination = home / f"{stem}.flash"
    if os.path.lexists(destination):
        raise DestinationExists(
            f"{destination}: exists already; open it with `flashllm chat {destination}`, or choose"
            " another place: --convert DST"
        )
    return destination


def _streams(arguments: argparse.Namespace, checkpoint: RemoteCheckpoint, making: Making) -> bool:
    """Whether each shard goes once it is converted; errors where it should and cannot."""
    from flashllm.library.pull import check_pickles, check_streamable, is_cached

    if arguments.convert is None:
        return False
    check_pickles(checkpoint, making)
    whole = arguments.file is not None  # of which no part can be converted before all are here
    if arguments.keep_source or whole or is_cached(checkpoint):
        return False
    check_streamable(checkpoint, making)
    return True


def _without_network(arguments: argparse.Namespace, name: str, revision: str, variable: str) -> int:
    """What can be said where nothing may be fetched."""
    from flashllm.library.pull import find_cached

    found = find_cached(name, revision)
    path = None if found is None else found.path / (arguments.file or "")
    if path is None or not path.exists():
        raise DownloadFailed(
            f"{name}: {variable} is set, so nothing is fetched, and it is not in the cache; unset"
            f" {variable} to go on, or see `flashllm ls --checkpoints`"
        )
    remark(f"{variable} is set, so nothing is fetched; what is in the cache is not looked up anew")
    if arguments.convert is not None:
        raise UsageError(f"{name}: is here; convert it: flashllm convert {path} DST")
    if arguments.json:
        Output().json({"repository": name, "revision": revision, "path": str(path)})
    else:
        _write_path(path)
    return 0


def _where_it_is(name: str, revision: str) -> str:
    """For an error about the network: a copy that is in the cache, if there is one."""
    from flashllm.library.pull import find_cached

    try:
        found = find_cached(name, revision)
    except (FlashllmError, OSError):
        return ""
    return "" if found is None else f". A copy of it is here: {found.path}"


def _write_plan(arguments: argparse.Namespace, plan: PullPlan, *, streams: bool) -> None:
    """The plan as what was asked for."""
    output = Output()
    if arguments.json:
        output.json(plan.to_json())
    else:
        output.write(
            table(plan_rows(plan, converts=arguments.convert is not None, streams=streams))
        )


def _tell(plan: PullPlan, *, converts: bool, streams: bool) -> None:
    """The plan beside the work: on standard error, where progress follows."""
    import sys

    print(
        sanitize(table(plan_rows(plan, converts=converts, streams=streams))),
        end="",
        file=sys.stderr,
        flush=True,
    )


def _say_what_is_next(
    arguments: argparse.Namespace, plan: PullPlan, path: Path, *, converted: bool
) -> int:
    if arguments.json:
        key = "converted" if converted else "path"
        Output().json(plan.to_json() | {key: str(path)})
        return 0
    _write_path(path)
    if converted:
        remark(f"next: flashllm chat {shlex.quote(names_in(arguments.settings).typed(path))}")
        return 0
    if arguments.file is not None:
        remark(f"next: flashllm convert {shlex.quote(str(path))}")
        return 0
    name = plan.repository.rpartition("/")[2]
    revision = "" if plan.revision == "main" else f"@{plan.revision}"
    learning = " --predictors train --calibration TEXT" if plan.trains else ""
    remark(f"next: flashllm convert {plan.repository}{revision} {name}.flash{learning}")
    return 0


def _write_path(path: Path) -> None:
    output = Output()
    output.write(str(path))
    output.end_line()


PULL_EXAMPLES = """\
examples:
  flashllm pull Qwen/Qwen3-4B --dry-run         what it is, needs and takes; fetches nothing large
  flashllm pull qwen3-4b                        into the Hugging Face cache, for `convert`
  flashllm pull qwen3-4b --convert              converted while it comes, on little more disk
  flashllm pull ORG/NAME@v1.0 --convert big.flash --dtype int8
  flashllm pull ORG/NAME-GGUF --file name-Q4_0.gguf --convert
  flashllm pull afm-4.5b --convert --keep-source --predictors train --calibration text.txt
"""
_OPTIONS = ("memory", "ctx_size", "kv_dtype", "profile")


def add_pull_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pull`."""
    parser.add_argument(
        "repository",
        nargs="?",
        metavar="ORG/NAME[@REV]",
        help="a repository of the hub, at a branch, a tag or a commit (default: main); or a name"
        " from `flashllm models`",
    )
    parser.add_argument(
        "--file",
        metavar="NAME.gguf",
        help="a model in GGUF, or any part of one, of a repository that holds such files; it stays"
        " in the cache also with --convert",
    )
    parser.add_argument(
        "--convert",
        nargs="?",
        const=USUAL_PLACE,
        metavar="DST",
        help="convert each file as it comes and drop it then, so that disk holds little more than"
        " the result (default place: NAME.flash, where `flashllm ls` finds it)",
    )
    parser.add_argument(
        "--keep-source",
        action="store_true",
        help="with --convert: fetch all into the cache first and keep it there, as predictors and"
        " pickles need it",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what it takes, and stop")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_reading(parser)
    add_requantise(parser)
    add_learning(parser)
    add_allow_pickle(parser)
    add_progress(parser)
    options = tuple(option for option in MODEL_OPTIONS if option.name in _OPTIONS)
    add_options(parser, "model", options)
