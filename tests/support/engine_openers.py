"""Engines for the engine's process, by name: each is what its settings' path says.

Called in the child, whose modules are those of the test's own process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from flashllm.engine.protocol import EngineWait, OnOpening, OpeningProgress
from flashllm.errors import ChecksumMismatch, MemoryCeilingTooSmall, ReadFailed
from flashllm.options import ModelOptions
from tests.support.fake_engine import FakeModel, Prefill, Step

OPENER = f"{__name__}:open_engine"


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _say_and_crash() -> None:
    print("last \x1b[31mwords\x1b[0m", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


FOR_EVER: list[Step] = ["begun", *[step for _ in range(1000) for step in (0.01, " on")]]
ANSWERS: dict[str, list[list[Step]]] = {
    "plain": [["An", " ocean"], ["Two"]],
    "endless": [FOR_EVER, ["fine"]],
    "prefill": [[step for done in range(65) for step in (Prefill(done, 64), 0.002)] + ["read"]],
    "waiting": [[Prefill(1, 9), threading.Event(), "never"], ["fine"]],
    "many": [[f"<{number}>" for number in range(5000)]],
    "fails": [["It begins", ReadFailed("/m/ffn.bundles: layer 3: EIO")], ["fine"]],
    "bug": [["x", ZeroDivisionError("by zero")], ["fine"]],
    "full": [["x", MemoryError()], ["fine"]],
    "killed": [["x", 0.1, _kill]],
    "crash": [["x", 0.1, _say_and_crash]],
    "leaves": [["x", 0.1, lambda: os._exit(3)]],
    "slow disk": [["x", lambda: time.sleep(600)]],
}


def open_engine(path: str | None, options: ModelOptions, on_opening: OnOpening) -> Any:
    """The engine that the path names; or what happens instead."""
    name = (path or "plain").removeprefix("./")  # a path, not the name of a demo
    if name == "too small":
        words = f"{options.application_bytes} of {options.memory}"
        raise MemoryCeilingTooSmall(words, 212 << 20)
    if name == "corrupt":
        raise ChecksumMismatch("/m/ffn.bundles: layer 3, neuron 5")
    if name == "dies opening":
        _kill()
    if name == "hangs":
        time.sleep(600)
    for done in range(3):
        on_opening(OpeningProgress("converting", done, 2))
        time.sleep(0.05)
    model = FakeModel(*ANSWERS[name])
    model.wait = EngineWait(disk_seconds=4.2 if name == "slow disk" else 0.0)
    return model
