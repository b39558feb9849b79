"""Stages in threads of this process, whose messages go through queues instead of gloo."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from flashllm.engine.loading import Stage
from flashllm.engine.local import Model, open_model
from flashllm.engine.pipeline.decoders import FollowingDecoder, LeadingDecoder
from flashllm.engine.pipeline.link import GlooLink
from flashllm.engine.pipeline.opening import open_following
from flashllm.engine.pipeline.stages import Agreement, stage_layers
from flashllm.flash.manifest import manifest_hash
from flashllm.flash.store import Store
from flashllm.model.decoder import Decoder
from flashllm.options import ModelOptions

Queues = dict[tuple[int, int, int], "queue.SimpleQueue[tuple[int, int, torch.Tensor]]"]
WAIT_SECONDS = 60.0


class QueueLink(GlooLink):
    """The protocol of `GlooLink`; messages are (sender, receiver, tag)."""

    def __init__(self, rank: int, stages: int, queues: Queues) -> None:
        super().__init__(rank, stages, Path("unused"))
        self.queues = queues

    def _queue(self, sender: int, receiver: int, tag: int) -> Any:
        return self.queues.setdefault((sender, receiver, tag), queue.SimpleQueue())

    def _message(self, peer: int, tag: int) -> tuple[int, int, torch.Tensor]:
        message: tuple[int, int, torch.Tensor] = self._queue(peer, self.rank, tag).get(
            timeout=WAIT_SECONDS
        )
        return message

    def _send(self, payload: torch.Tensor, kind: int, peer: int, tag: int) -> None:
        self._queue(self.rank, peer, tag).put((self.call, kind, payload.clone()))


class Stages:
    """What the stages of an open pipeline are made of."""

    def __init__(self, model: Model, links: list[QueueLink], followers: list[Decoder]) -> None:
        self.model, self.links, self.followers = model, links, followers


@contextlib.contextmanager
def in_threads(directory: Path, options: ModelOptions, stages: int) -> Iterator[Stages]:
    """Context manager: a model in stages; the first one in this thread."""
    queues: Queues = {}
    links = [QueueLink(rank, stages, queues) for rank in range(stages)]
    with Store(directory) as store:
        layers = stage_layers(store.model_spec, stages)
        agreement = Agreement.of(store, manifest_hash(directory), options)
    opened = [open_following(directory, agreement.options(options), link) for link in links[1:]]
    followers = [decoder for decoder, _ in opened]
    failures: list[BaseException] = []

    def follow(decoder: Decoder, link: QueueLink) -> None:
        try:
            FollowingDecoder(decoder, link).follow()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [
        threading.Thread(target=follow, args=pair, daemon=True)
        for pair in zip(followers, links[1:], strict=True)
    ]
    for thread in threads:
        thread.start()
    stage = Stage(layers[0], lambda *parts: LeadingDecoder(*parts, links[0]))
    with open_model(directory, agreement.options(options), stage=stage) as model:
        yield Stages(model, links, followers)
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    for decoder, store in opened:
        store.close()
        decoder.close()
    assert not failures, failures
