"""A library of scripted models and conversions, for tests of screens: no disk, no planner."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flashllm.errors import FlashllmError
from flashllm.library.conversion_job import ConvertJob
from flashllm.library.conversion_options import ConvertOptions
from flashllm.library.conversion_preview import Preview
from flashllm.library.models import Checkpoint, FoundModel

GIB = 1 << 30
DEMO = FoundModel(
    Path("/cache/demo"),
    "demo",
    "6 layers of 1024 neurons, relu",
    "f16",
    14_498_737,
    323_689_344,
    410.0,
    8 * GIB,
    remarks=("lossy: predictors choose neurons",),
    is_demo=True,
)
BIG = FoundModel(
    Path("/models/big.flash"),
    "org/big",
    "32 layers of 16384 neurons, relu",
    "int8",
    13 * GIB,
    6 * GIB,
    2.34,
    8 * GIB,
    assumed="10 % of the neurons used a token",
    application_bytes=170 << 20,
)
HUGE = FoundModel(
    Path("/models/huge.flash"), "org/huge", "96 layers of 49152 neurons, relu", "f16",
    350 * GIB, 40 * GIB, None, 8 * GIB,
)  # fmt: skip
BROKEN = FoundModel(
    Path("/models/broken"), "broken [b]name[/b]", problem="ffn.bundles: missing; convert again"
)
MODELS = (DEMO, BIG, HUGE, BROKEN)
CHECKPOINT = Checkpoint(
    Path("/hub/models--org--tiny/snapshots/0123"), "org/tiny [b]", "main (0123456)", 5 * GIB
)
PREVIEW = Preview(
    "32 layers of 16384 neurons, relu", "f16", 13 * GIB, 100 * GIB, 6 * GIB, 170 << 20, 8 * GIB,
    2.5, "", True,
)  # fmt: skip


@dataclass
class FakeLibrary:
    """Gives what it is told to; `gate` holds the search back until it is set."""

    models: Sequence[FoundModel] = MODELS
    found: Sequence[Checkpoint] = (CHECKPOINT,)
    error: Exception | None = None
    refusal: FlashllmError | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    searches: int = 0
    asked: list[tuple[Path, Path, ConvertOptions]] = field(default_factory=list)

    prepared: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def scan(self) -> Iterator[FoundModel]:
        self.searches += 1
        yield from self.models[:1]
        self.gate.wait(30)
        yield from self.models[1:]
        if self.error is not None:
            raise self.error

    def checkpoints(self) -> Iterator[Checkpoint]:
        return iter(self.found)

    def destination(self, source: Path) -> Path:
        return Path("/models") / f"{source.name}.flash"

    def prepare(self, destination: Path) -> None:
        self.prepared.append(destination)

    def preview(self, source: Path, destination: Path, options: ConvertOptions) -> Preview:
        self.asked.append((source, destination, options))
        if self.refusal is not None:
            raise self.refusal
        return PREVIEW


def scripted_job(script: str) -> type[ConvertJob]:
    """Jobs whose process runs `script`: `phase(done)` tells of a phase of ten bytes."""
    begin = """
        import json, pathlib, sys, time
        def say(**event): print(json.dumps(event), file=sys.stderr, flush=True)
        def phase(done, name="bundles"):
            say(event="phase", phase=name, done_bytes=done, total_bytes=10, seconds=2.0)
        destination = pathlib.Path(sys.argv[1])
        def make(): destination.mkdir(); (destination / "manifest.json").touch()
    """
    text = textwrap.dedent(begin) + textwrap.dedent(script)

    class ScriptedJob(ConvertJob):
        def _usual_command(self) -> list[str]:
            return [sys.executable, "-S", "-c", text, str(self.destination)]

    return ScriptedJob
