"""A connection to a Ray cluster: finding it, its machines, and what is said where there is none."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from flashllm.errors import EngineLost, UsageError

LOCAL, AUTO = "local", "auto"
CONNECT_SECONDS = 5.0
_STORE_BYTES = 80 << 20
"""Ray's store of objects: the least that it takes. Rows and answers do not go through it."""


def check_address(address: str) -> str:
    """The address as it is; `UsageError` for what is none."""
    if address not in (LOCAL, AUTO):
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16):
            raise UsageError(f"{address!r}: expected local, auto or HOST:PORT")
    return address


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Context manager: the module `ray`, connected to the cluster at an address.

    `local` starts one on this machine, which ends with it. Errors: `UsageError` without the
    package, `EngineLost` where no cluster answers.
    """
    ray = _ray()
    if address not in (LOCAL, AUTO):
        _check_reachable(address)
    # What Ray has to say of a worker that was lost goes to standard output.
    with contextlib.redirect_stdout(sys.stderr):
        _connect(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()


def node_ids(ray: Any) -> list[str]:
    """The machines of the cluster that are there, in an order that stays."""
    return sorted(str(node["NodeID"]) for node in ray.nodes() if node["Alive"])


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    # A worker computes all that there is to do; Ray would let anything else go first.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            "--ray needs the package ray; install it on each machine with"
            " `pip install 'flashllm[ray]'`"
        ) from error


def _connect(ray: Any, address: str) -> None:
    options: dict[str, Any] = {"address": address, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    try:
        ray.init(log_to_driver=False, **options)
    except Exception as error:  # Ray has no class for it
        start = "`ray start --head` starts one, and --ray local one of this machine alone"
        where = "here" if address == AUTO else f"at {address}"
        reason = str(error).strip().partition("\n")[0]
        raise EngineLost(f"no Ray cluster answers {where} ({reason}); {start}") from error


def _check_reachable(address: str) -> None:
    """`EngineLost` where nobody listens; Ray itself would try for most of a minute."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
            pass
    except OSError as error:
        raise EngineLost(
            f"no Ray cluster answers at {address} ({error.strerror or error}); give the address"
            " that `ray start --head` printed"
        ) from error
