"""`flashllm batch --ray`: the rows are answered by workers of a Ray cluster."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flashllm.batch.data_parallel import cluster
from flashllm.cli.shared import open_model
from flashllm.cli.shared.flags import argument
from flashllm.cli.shared.output import remark
from flashllm.errors import Cancelled, UsageError
from flashllm.flash.manifest import manifest_hash
from flashllm.library.names import may_be_name
from flashllm.settings.values import parse_count
from flashllm.units import format_count

if TYPE_CHECKING:
    from flashllm.batch.data_parallel.workers import RayWorkers

WORKERS_MAX = 4096
_OPENER = "flashllm.library.worker_entry:open_same_model"


def add_ray(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument(
        "--ray",
        type=argument(cluster.check_address),
        metavar="ADDRESS",
        help="answer rows by workers of the Ray cluster at HOST:PORT, of the one that this machine"
        " is part of (auto), or of this machine alone (local); each opens the model on its own"
        " disk",
    )
    parser.add_argument(
        "--workers",
        type=argument(_workers),
        metavar="N",
        help="so many workers, spread over the cluster's machines (one on each)",
    )


def check_ray(arguments: argparse.Namespace) -> None:
    """`UsageError` for flags that do not go together."""
    if arguments.ray is None and arguments.workers is not None:
        raise UsageError("--workers is for --ray; `--ray local` starts them on this machine")
    if arguments.ray is None:
        return
    if arguments.trace is not None:
        raise UsageError("--trace is of one process; leave it out, or --ray")
    if not arguments.block:
        raise UsageError("--block auto tries on this machine; give workers a number")


@contextlib.contextmanager
def opened_workers(
    arguments: argparse.Namespace,
    directory: Path,
    is_stopped: Callable[[], bool],
    on_tokens: Callable[[int], None],
    on_lost: Callable[[str], None],
) -> Iterator[RayWorkers]:
    """Context manager: workers with the model open; `Cancelled` if it was stopped meanwhile."""
    from flashllm.batch.data_parallel.worker import Opening
    from flashllm.batch.data_parallel.workers import RayWorkers, open_workers

    opening = Opening(
        opener=_OPENER,
        path=path_for_workers(arguments.model, directory),
        model_hash=manifest_hash(directory),
        options=open_model.options_of(arguments).having(keep_kv=None),
        block=arguments.block,
        schedule=arguments.schedule,
        answer_tokens=arguments.max_tokens,
    )
    with cluster.connected(arguments.ray) as ray:
        workers = open_workers(ray, arguments.workers, opening, is_stopped)
        for caution in dict.fromkeys(c for each in workers for c in each.opened.cautions):
            remark(caution)
        hosts = len({worker.opened.host for worker in workers})
        remark(f"workers: {format_count(len(workers))}, on {format_count(hosts)} machines")
        if not workers:
            raise Cancelled("stopped while the workers opened the model")
        yield RayWorkers(ray, workers, is_stopped, on_tokens, on_lost)


def path_for_workers(model: str | None, directory: Path) -> str | None:
    """A path, the same one everywhere; or a name, which stands for what each machine has of it."""
    if model is None or (may_be_name(model) and not os.path.exists(model)):
        return model
    return str(directory.absolute())


def _workers(text: str) -> int:
    count = parse_count(text)
    if not 1 <= count <= WORKERS_MAX:
        raise UsageError(f"{text!r}: expected 1 to {WORKERS_MAX} workers")
    return count
