"""An answer's first token crosses to the application at once; later ones come together."""

from __future__ import annotations

from typing import Any, cast

from flashllm.engine.process import messages
from flashllm.engine.process.worker import Worker
from flashllm.engine.protocol import EngineGeneration
from tests.support.fake_engine import FakeModel


class Sent:
    """A channel that keeps what is sent, and whether that was urgent."""

    def __init__(self) -> None:
        self.all: list[tuple[object, bool]] = []

    def send(self, message: object, urgent: bool = True) -> None:
        self.all.append((message, urgent))


def test_the_first_token_joins_no_batch() -> None:
    worker, sent = Worker.__new__(Worker), Sent()
    worker._channel, worker._model = cast("Any", sent), None
    generation = FakeModel(["one", " two", " three"]).generate([1, 2, 3], 4)
    worker._write(1, cast("EngineGeneration", generation))
    kinds = [(type(message), urgent) for message, urgent in sent.all]
    assert kinds[:2] == [(messages.Prefilled, False), (messages.Token, True)]
    assert kinds[2:-1] == [(messages.Token, False)] * (len(kinds) - 3)
    assert len(kinds) > 4
    assert kinds[-1] == (messages.Finished, True)
