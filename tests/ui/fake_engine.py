"""An engine without a model: scripted answers, delays and failures, for tests and for a look.

`python -m tests.ui.fake_engine [open-failure]` shows the chat over it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from flashllm.errors import MemoryCeilingTooSmall, ReadFailed

PARTS = ("predict", "plan", "io_exposed", "manage", "attention", "ffn", "head", "sample", "other")


@dataclass(frozen=True)
class FakeCost:
    wall_ns: int = 50_000_000
    bytes_read: int = 300_000
    bytes_useful: int = 290_000
    reads: int = 12
    hits: int = 91
    misses: int = 9
    rss_bytes: int = 310 << 20

    def to_json(self) -> dict[str, Any]:
        return {"wall_ns": self.wall_ns, "bytes_read": self.bytes_read}


@dataclass(frozen=True)
class FakeToken:
    id: int
    text: str
    cost: FakeCost = field(default_factory=FakeCost)

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "text": self.text, "cost": self.cost.to_json()}


@dataclass(frozen=True)
class Prefill:
    """A step of a script: tell of progress in reading the prompt."""

    done: int
    total: int


# str: a token; float: seconds to wait; Event: wait until it is set; Exception: raise it.
Step = str | float | threading.Event | Prefill | Exception


class FakeTokenizer:
    """One id for each word, and one for each message."""

    has_chat_template = True
    chat_stops: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.conversations: list[list[dict[str, str]]] = []

    def encode(self, text: str) -> list[int]:
        return [1] * len(text.split())

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        self.conversations.append([dict(message) for message in messages])
        return [1] * sum(1 + len(message["content"].split()) for message in messages)


class FakeGeneration:
    def __init__(
        self,
        model: FakeModel,
        ids: Sequence[int],
        steps: Sequence[Step],
        max_tokens: int,
        on_prefill: Callable[[float, int], None] | None,
    ) -> None:
        self.prompt_tokens = len(ids)
        self.finish_reason: str | None = None
        self.text = ""
        self.ids: list[int] = []
        self._model = model
        self._iterator = self._run(steps, max_tokens, on_prefill)

    def __iter__(self) -> Iterator[FakeToken]:
        return self._iterator

    def _run(
        self,
        steps: Sequence[Step],
        max_tokens: int,
        on_prefill: Callable[[float, int], None] | None,
    ) -> Iterator[FakeToken]:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                self._model.cancelled.wait(step)
            elif isinstance(step, threading.Event):
                while not step.wait(0.002) and not self._model.cancelled.is_set():
                    pass
            elif isinstance(step, Prefill) and on_prefill is not None:
                on_prefill(step.done, step.total)
            if self._model.cancelled.is_set():
                self.finish_reason = "cancelled"
                return
            if isinstance(step, str):
                if len(self.ids) == max_tokens:
                    self.finish_reason = "length"
                    return
                self.ids.append(len(self.ids))
                self.text += step
                yield FakeToken(self.ids[-1], step)
        self.finish_reason = "stop"

    def report(self) -> dict[str, Any]:
        return {
            "model": self._model.info.name,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.ids,
            "text": self.text,
            "finish_reason": self.finish_reason,
        }


class FakeModel:
    """Answers with its scripts in turn, the last one again and again."""

    def __init__(
        self, *answers: Sequence[Step], context: int = 512, tokenizer: FakeTokenizer | None = None
    ) -> None:
        self.info = SimpleNamespace(
            name="fake", spec=SimpleNamespace(dtype="f16", encoding_words="f16")
        )
        self.plan = SimpleNamespace(
            ceiling_bytes=512 << 20, context=context, select="predicted", lossy=True
        )
        self.tokenizer: FakeTokenizer | None = tokenizer or FakeTokenizer()
        self.cancelled = threading.Event()
        self.closed = False
        self.slow_because: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self._answers = list(answers)

    def generate(
        self,
        ids: Sequence[int],
        max_tokens: int = 256,
        sampling: object = None,
        stop: Sequence[str] = (),
        on_prefill: Callable[[float, int], None] | None = None,
    ) -> FakeGeneration:
        self.cancelled.clear()
        self.requests.append(
            {"ids": list(ids), "max_tokens": max_tokens, "sampling": sampling, "stop": stop}
        )
        steps = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return FakeGeneration(self, ids, steps, max_tokens, on_prefill)

    def cautions(self) -> list[str]:
        return self.slow_because

    def cancel(self) -> None:
        assert not self.closed, "the engine has let go of its reader"
        self.cancelled.set()

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> FakeModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def words(text: str, seconds: float = 0.05) -> list[Step]:
    """A text as tokens, each after a while."""
    steps: list[Step] = []
    for index, word in enumerate(text.split(" ")):
        steps += [seconds, word if index == 0 else f" {word}"]
    return steps


def _main() -> None:
    from flashllm.ui.app import ChatApp, run_app

    long_text = (
        "An **ocean** is a large body of `water`.\n\n" * 12 + "```python\nprint('waves')\n```"
    )
    prefill: list[Step] = [step for done in range(0, 401, 40) for step in (Prefill(done, 400), 0.3)]
    hostile = "\x1b]0;owned\x07red \x1b[31mtext\x1b[0m and [bold]markup[/] [@click=app.bell]x[/]"
    model = FakeModel(
        words("ocean (noun): a large body of water"),
        [*prefill, *words(long_text)],
        words(hostile),
        [*words("It begins well, but"), ReadFailed("/models/x/ffn.bundles: layer 3: EIO")],
        [
            ReadFailed(
                "/models/x/ffn.bundles: layer 3, offset 123456: Input/output error; see dmesg"
            )
        ],
        context=120,
    )

    def open_engine() -> Any:
        time.sleep(2)
        if "open-failure" in sys.argv:
            raise MemoryCeilingTooSmall(
                "--memory 10 MB is too small for this model; it needs at least 212 MiB", 212 << 20
            )
        return model

    sys.exit(run_app(ChatApp(open_engine, name="fake")))


if __name__ == "__main__":
    _main()
