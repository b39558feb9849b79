"""Opens the stages of a model: here the first one, elsewhere one that follows it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flashllm import core
from flashllm.engine.loading import Stage, load_planned
from flashllm.engine.local import Model, open_model
from flashllm.engine.pipeline.decoders import FollowingDecoder, LeadingDecoder
from flashllm.engine.pipeline.link import GlooLink, Meeting
from flashllm.engine.pipeline.stages import Agreement, stage_layers
from flashllm.errors import EngineLost, FlashllmError
from flashllm.flash.manifest import manifest_hash
from flashllm.flash.opening_errors import opening_errors
from flashllm.flash.raw_tensor import RawTensor
from flashllm.flash.store import Store
from flashllm.hardware.staleness import profile_for
from flashllm.model.active_set_selectors import Selector
from flashllm.model.decoder import Decoder
from flashllm.options import ModelOptions
from flashllm.planning.model_facts import usual_ceiling
from flashllm.planning.plan import Plan
from flashllm.system.memory import rss_bytes

END_SECONDS = 5.0
"""So long a stage of this machine has to end by itself."""


@contextlib.contextmanager
def open_pipeline(
    directory: Path,
    options: ModelOptions,
    stages: int,
    meeting: tuple[str, int] | None = None,
) -> Iterator[Model]:
    """Context manager: a model of which this process has the first layers.

    Without a `meeting` it starts the other stages on this machine; else somebody else starts them,
    and this stage waits for them at that (host, port). Errors: those of `open_model`, of any stage;
    `EngineLost`.
    """
    with contextlib.ExitStack() as opened:
        with opening_errors(directory), Store(directory) as store:
            layers = stage_layers(store.model_spec, stages)[0]
            agreement = Agreement.of(store, manifest_hash(directory), options)
        if meeting is None and options.memory is None:
            own = rss_bytes()
            options = options.having(memory=own + (usual_ceiling(own) - own) // stages)
        where: Meeting
        if meeting is None:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="flashllm-stages-"))
            where = Path(folder) / "met"
            for rank in range(1, stages):
                opened.enter_context(_started(directory, options, rank, stages, where))
        else:
            where = meeting
        link = GlooLink(0, stages, where)
        opened.callback(link.close)
        link.connect()
        link.announce(asdict(agreement))

        def make_decoder(
            store: Store,
            resident: Mapping[str, RawTensor],
            selector: Selector | None,
            plan: Plan,
            kernels: core.Kernels,
            kv_directories: Sequence[Path],
        ) -> Decoder:
            for rank in range(1, stages):
                link.reported(rank)
            return LeadingDecoder(store, resident, selector, plan, kernels, kv_directories, link)

        stage = Stage(layers, make_decoder)
        yield opened.enter_context(open_model(directory, agreement.options(options), stage=stage))


def follow(
    directory: Path, options: ModelOptions, rank: int, stages: int, meeting: Meeting
) -> None:
    """Is a stage that is not the first, until that one closes the model.

    Errors: those of opening, which the first stage has too; `EngineLost` where another stage ends.
    """
    link = GlooLink(rank, stages, meeting)
    with contextlib.closing(link):
        link.connect()
        agreement = Agreement(**link.announced())
        try:
            agreement.check(manifest_hash(directory))
            opened = open_following(directory, agreement.options(options), link)
        except FlashllmError as error:
            link.report(error)
            link.finish()
            raise
        decoder, store = opened
        with store, contextlib.closing(decoder):
            link.report(None)
            FollowingDecoder(decoder, link).follow()


def open_following(directory: Path, options: ModelOptions, link: GlooLink) -> tuple[Decoder, Store]:
    """A stage's decoder and store, which the caller closes; options are agreed on."""
    with opening_errors(directory), Store(directory) as store:
        layers = stage_layers(store.model_spec, link.stages)[link.rank]

    def make_decoder(
        store: Store,
        resident: Mapping[str, RawTensor],
        selector: Selector | None,
        plan: Plan,
        kernels: core.Kernels,
        kv_directories: Sequence[Path],
    ) -> Decoder:
        return Decoder(store, resident, selector, plan, kernels, kv_directories, link=link)

    stage = Stage(layers, make_decoder)
    profile = profile_for(directory, options)
    decoder, _, store = load_planned(directory, options, profile, stage=stage)
    return decoder, store


@contextlib.contextmanager
def _started(
    directory: Path, options: ModelOptions, rank: int, stages: int, meeting: Path
) -> Iterator[None]:
    """Context manager: a stage in a process of this machine; it ends with this one."""
    values = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in asdict(options).items()
    }
    given: dict[str, Any] = {"directory": str(directory.absolute()), "options": values}
    given |= {"rank": rank, "stages": stages, "meeting": str(meeting)}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "flashllm.engine.pipeline.following"],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the first stage, which ends the others
            text=True,
        )
    except OSError as error:
        raise EngineLost(f"stage {rank} cannot be started: {error.strerror}") from error
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(given) + "\n")
            process.stdin.flush()
        yield
    finally:
        # It ends by itself; one that is still waiting for the others does when its input ends.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def follow_given(given: dict[str, Any]) -> None:
    """`follow`, as `_started` says it."""
    options = ModelOptions(**given["options"])
    directory = Path(given["directory"])
    follow(directory, options, given["rank"], given["stages"], Path(given["meeting"]))
