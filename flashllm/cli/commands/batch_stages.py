"""`flashllm batch --stages`: one model over several processes or machines."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.output import remark
from flashllm.errors import UsageError
from flashllm.settings.values import parse_count

if TYPE_CHECKING:
    from flashllm.engine.local import Model


def add_stages(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument(
        "--stages",
        type=argument(_count),
        metavar="N",
        help="cut the model's layers into N stages, each a process that has its part in memory; on"
        " this machine, or with --stage and --rendezvous on several",
    )
    parser.add_argument(
        "--stage",
        type=argument(_rank),
        metavar="RANK",
        help="be one of the stages, 0 to N - 1: the same command on each machine but for this."
        " Stage 0 reads IN and writes OUT",
    )
    parser.add_argument(
        "--rendezvous",
        type=argument(_address),
        metavar="HOST:PORT",
        help="where the stages meet: an address of the machine of stage 0",
    )


def check_stages(arguments: argparse.Namespace) -> None:
    """`UsageError` for flags that do not go together."""
    stages, stage, meeting = arguments.stages, arguments.stage, arguments.rendezvous
    if stages is None:
        if stage is not None or meeting is not None:
            raise UsageError("--stage and --rendezvous are for --stages N; say of how many it is")
        return
    if (stage is None) != (meeting is None):
        raise UsageError("--stage and --rendezvous belong together; without both, all are here")
    if stage is not None and stage >= stages:
        raise UsageError(f"--stage {stage}: expected 0 to {stages - 1}, as there are {stages}")
    if arguments.ray is not None:
        raise UsageError("--ray has whole models and --stages parts of one; leave one of them out")
    if arguments.trace is not None:
        raise UsageError("--trace is of one process; leave it out, or --stages")
    if not arguments.block:
        raise UsageError("--block auto tries in one process; give stages a number")


@contextlib.contextmanager
def opened_stages(arguments: argparse.Namespace, directory: Path) -> Iterator[Model]:
    """Context manager: the model, of which this process has the first stage."""
    from flashllm.engine.pipeline.opening import open_pipeline

    options = open_model.options_of(arguments).having(contexts=arguments.block)
    with open_pipeline(directory, options, arguments.stages, arguments.rendezvous) as model:
        yield model


def follow(arguments: argparse.Namespace) -> int:
    """Is a stage that is not the first, until that one has ended."""
    from flashllm.engine.pipeline import opening

    directory = open_model.model_directory(arguments.model)
    options = open_model.options_of(arguments)
    remark(f"stage {arguments.stage} of {arguments.stages}: waiting for the others")
    opening.follow(directory, options, arguments.stage, arguments.stages, arguments.rendezvous)
    remark(f"stage {arguments.stage} of {arguments.stages}: the batch has ended")
    return 0


def _count(text: str) -> int:
    stages = parse_count(text)
    if stages < 2:
        raise UsageError(f"{text!r}: expected 2 stages or more")
    return stages


def _rank(text: str) -> int:
    rank = parse_count(text)
    if rank < 0:
        raise UsageError(f"{text!r}: expected 0 or more")
    return rank


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise UsageError(f"{text!r}: expected HOST:PORT")
    return host.strip("[]"), int(port)
