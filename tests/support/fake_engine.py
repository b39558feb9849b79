"""An engine without a model: scripted answers, delays and failures, for tests and for a look.

`python -m tests.support.fake_engine [open-failure]` shows the chat over it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashllm.engine.protocol import EngineWait
from flashllm.errors import EngineBusy, MemoryCeilingTooSmall, NoTokenizer, ReadFailed
from flashllm.options import DEFAULT_MAX_TOKENS, DEFAULT_REASONING, ReasoningOptions
from flashllm.planning.model_info import ModelInfo
from flashllm.planning.plan import Plan
from flashllm.planning.prefill_shape import PrefillShape
from flashllm.system.clock import PARTS
from flashllm.telemetry.costs import NO_COST, PrefillCost, TokenCost, decode_summary
from flashllm.telemetry.device_rates import DeviceRates
from flashllm.telemetry.neuron_map import NeuronMap
from flashllm.tokenizer.reasoning import ReasoningCounter
from tests.support.specs import SPEC

SPLIT_MIB = {"interpreter": 180, "embeddings": 20, "attention": 60, "predictors": 30, "kv": 16,
             "prefill": 40, "reserve": 46, "slots": 120}  # fmt: skip
INFO = ModelInfo(
    name="fake",
    directory="/models/fake",
    spec=dataclasses.replace(SPEC, vocab_size=1 << 16),
    has_predictors=True,
    has_tokenizer=True,
    synthetic=False,
    file_bytes={},
    source={},
    layout_version=1,
    bundle_stride_bytes=1024,
    activity=None,
)
PLAN = Plan(
    ceiling_bytes=512 << 20,
    smallest_bytes=400 << 20,
    split={name: size << 20 for name, size in SPLIT_MIB.items()},
    window=5,
    slots_per_layer=(600, 500, 500, 400),
    slots_wanted=2000,
    io_threads=32,
    context=512,
    select="predicted",
    prefill=PrefillShape(tokens=64, bundles=64),
)


def fake_cost(
    wall_ns: int = 50_000_000,
    bytes_read: int = 300_000,
    hits: int = 91,
    misses: int = 9,
    rss_bytes: int = 310 << 20,
    **changes: Any,
) -> TokenCost:
    """What a token of the script costs: a cost like a real one's, its parts adding up."""
    spent_ns = dict.fromkeys(PARTS, wall_ns // 20) | {"io_exposed": wall_ns // 4}
    spent_ns["ffn"] += wall_ns - sum(spent_ns.values())
    cost = dataclasses.replace(
        NO_COST,
        wall_ns=wall_ns,
        parts_ns=spent_ns,
        bytes_read=bytes_read,
        bytes_useful=bytes_read * 29 // 30,
        reads=12,
        io_busy_ns=wall_ns // 2,
        depth_ns=wall_ns * 3,
        depth_max=9,
        size_histogram=(0,) * 14 + (10, 2),
        hits=hits,
        misses=misses,
        extra_rounds=4,
        rss_bytes=rss_bytes,
    )
    return dataclasses.replace(cost, **changes)


@dataclass(frozen=True)
class FakeToken:
    id: int
    text: str
    cost: TokenCost = field(default_factory=fake_cost)

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "text": self.text, "cost": self.cost.to_json()}


@dataclass(frozen=True)
class Prefill:
    """A step of a script: tell of progress in reading the prompt."""

    done: int
    total: int


@dataclass(frozen=True)
class Held:
    """The end of an answer that was held back for a stop string, and has no token of its own."""

    text: str


@dataclass(frozen=True)
class End:
    """The step that draws the mark which ends an answer: it shows no token, but costs one."""

    cost: TokenCost


# str: a token; float: seconds to wait; Event: wait until it is set; Exception: raise it;
# Callable: called, in the engine's thread.
Step = str | float | threading.Event | Prefill | Held | End | Exception | Callable[[], object]


class FakeTokenizer:
    """One id for each word, the space before it included, and one for each message."""

    has_chat_template = True
    chat_stops: tuple[str, ...] = ()
    reasoning_variables: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.reasoning: list[ReasoningOptions] = []
        self.conversations: list[list[dict[str, str]]] = []
        self.known: list[dict[int, list[int]]] = []
        self.pieces: list[str] = ["<message>"]

    def encode(self, text: str) -> list[int]:
        return [self.id_of(piece) for piece in re.findall(r"\s*\S+", text)]

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        known: Mapping[int, Sequence[int]] | None = None,
        reasoning: ReasoningOptions = DEFAULT_REASONING,
    ) -> list[int]:
        self.reasoning.append(reasoning)
        self.conversations.append([dict(message) for message in messages])
        self.known.append({number: list(ids) for number, ids in (known or {}).items()})
        ids: list[int] = []
        for number, message in enumerate(messages):
            ids += [0, *(known or {}).get(number, self.encode(message["content"]))]
        return ids

    def encode_answer(self, text: str, prompt: Sequence[int] = ()) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[id_] for id_ in ids if id_ < len(self.pieces))

    def id_of(self, piece: str) -> int:
        if piece not in self.pieces:
            self.pieces.append(piece)
        return self.pieces.index(piece)


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
        self.reused_tokens = model.reuse(ids)
        self.finish_reason: str | None = None
        self.text = ""
        self.ids: list[int] = []
        self.prefill = PrefillCost()
        self.costs: list[TokenCost] = []
        self.counter = ReasoningCounter()
        self._model = model
        self._iterator = self._run(steps, max_tokens, on_prefill)

    def __iter__(self) -> Iterator[FakeToken]:
        return self

    def __next__(self) -> FakeToken:
        return next(self._iterator)

    @property
    def is_running(self) -> bool:
        is_over = inspect.getgeneratorstate(self._iterator) == inspect.GEN_CLOSED
        return not (is_over or self.finish_reason or self._model.cancelled.is_set())

    def close(self) -> None:
        self.finish_reason = self.finish_reason or "cancelled"
        self._iterator.close()

    def _run(
        self,
        steps: Sequence[Step],
        max_tokens: int,
        on_prefill: Callable[[float, int], None] | None,
    ) -> Generator[FakeToken, None, None]:
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                self._model.cancelled.wait(step)
            elif isinstance(step, threading.Event):
                while not step.wait(0.02) and not self._model.cancelled.is_set():
                    pass
            elif isinstance(step, Prefill):
                if on_prefill is not None:
                    on_prefill(step.done, step.total)
            elif isinstance(step, Held):
                self.text += step.text
            elif isinstance(step, End):
                self.costs.append(step.cost)
            elif callable(step):
                step()
            if self._model.cancelled.is_set():
                self.finish_reason = "cancelled"
                return
            if isinstance(step, str):
                if len(self.ids) == max_tokens:
                    self.finish_reason = "length"
                    return
                yield self._token(step)
        self.finish_reason = "stop"

    def _token(self, text: str) -> FakeToken:
        cost = self._model.cost
        if self.ids:
            self.costs.append(cost)
        else:
            self.prefill = PrefillCost.of(cost, self.prompt_tokens, self.reused_tokens)
        model = self._model
        self.ids.append(model.tokenizer.id_of(text) if model.has_tokenizer else len(self.ids))
        self._model.cached.append(self.ids[-1])
        self.text += text
        self.counter.add(text)
        return FakeToken(self.ids[-1], text, cost)

    def report(self) -> dict[str, Any]:
        plan, prefill = self._model.plan, self.prefill
        return {
            "model": self._model.info.name,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.ids,
            "reasoning_tokens": self.counter.reasoning_tokens,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "prefill": {
                "tokens": self.prompt_tokens,
                "reused_tokens": self.reused_tokens,
                "wall_ns": prefill.wall_ns,
                "bytes_read": prefill.bytes_read,
            },
            "decode": decode_summary(self.costs),
            "memory": {
                "ceiling_bytes": plan.ceiling_bytes,
                "rss_peak_bytes": self._model.cost.rss_bytes,
                "resident_bytes": plan.resident_bytes,
                "predictor_bytes": plan.split["predictors"],
                "slot_bytes": plan.split["slots"],
                "kv_bytes": plan.split["kv"],
            },
            "io": self._model.io_report(),
            "kv": None,
            "settings": {"select": plan.select, "lossy": plan.lossy, "context": plan.context},
        }


class FakeModel:
    """Answers with its scripts in turn, the last one again and again."""

    def __init__(
        self, *answers: Sequence[Step], context: int = 512, tokenizer: FakeTokenizer | None = None
    ) -> None:
        self.info = INFO
        self.plan = dataclasses.replace(PLAN, context=context)
        self.has_tokenizer = True
        self._tokenizer = tokenizer or FakeTokenizer()
        self.cancelled = threading.Event()
        self.closed = False
        self.slow_because: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.cost = fake_cost()
        self.device_rates = DeviceRates()
        self.measured_rates: DeviceRates | None = None
        """What the rates are once they are renewed."""
        self.wants_quick_profile = False
        self.wait = EngineWait()
        self.maps_made = 0
        self.bytes_released = 0
        self.cached: list[int] = []
        """Ids whose keys and values would be in the cache."""
        self._answers = list(answers)
        self._running: weakref.ref[FakeGeneration] | None = None

    @property
    def tokenizer(self) -> FakeTokenizer:
        if not self.has_tokenizer:
            raise NoTokenizer
        return self._tokenizer

    def generate(
        self,
        ids: Sequence[int],
        max_tokens: int = DEFAULT_MAX_TOKENS,
        sampling: object = None,
        stop: Sequence[str] = (),
        on_prefill: Callable[[float, int], None] | None = None,
        *,
        telemetry: bool = True,
        answer: int = 0,
        reuse_answers: bool = True,
    ) -> FakeGeneration:
        if self._running is not None and (before := self._running()) and before.is_running:
            raise EngineBusy("the engine is writing another answer")
        self.cancelled.clear()
        self.requests.append(
            {"ids": list(ids), "max_tokens": max_tokens, "sampling": sampling, "stop": stop,
             "answer": answer, "reuse_answers": reuse_answers}
        )  # fmt: skip
        steps = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        generation = FakeGeneration(self, ids, steps, max_tokens, on_prefill)
        self._running = weakref.ref(generation)
        return generation

    def reuse(self, ids: Sequence[int]) -> int:
        """How many of the ids are in the cache, which then holds them all; the last is read."""
        same = 0
        for one, other in zip(ids[:-1], self.cached, strict=False):
            if one != other:
                break
            same += 1
        self.cached = list(ids)
        return same

    def cautions(self) -> list[str]:
        return self.slow_because

    def io_report(self) -> dict[str, Any]:
        return {"direct": True, "threads": 32, "alignment_bytes": 4096, "fallback": None,
                "downgrades": 0, "backend": "threads", "backend_problem": None}  # fmt: skip

    def rates(self) -> DeviceRates:
        return self.device_rates

    def renew_rates(self) -> DeviceRates:
        self.device_rates = self.measured_rates or self.device_rates
        return self.device_rates

    def current_wait(self) -> EngineWait:
        return self.wait

    def neuron_map(self) -> NeuronMap:
        import numpy as np

        self.maps_made += 1
        spec, draw = self.info.spec, np.random.default_rng(self.maps_made)
        marks = []
        for _ in range(spec.n_layers):
            chance = draw.random(spec.d_ffn)
            marks.append((chance < 0.4, chance < 0.1, chance > 0.98))
        return NeuronMap.of(marks)

    def warm_up(self) -> float:
        return 1.0

    def keep_context(self) -> bool:
        return False

    def release_slots(self, nbytes: int) -> int:
        self.bytes_released = min(nbytes, self.plan.split["slots"])
        return self.bytes_released

    def cancel(self) -> None:
        assert not self.closed, "the engine has let go of its reader"
        self.cancelled.set()

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> FakeModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FakeLauncher:
    """Stands where `launcher.EngineLauncher` would; all is in this process."""

    def __init__(self, model: FakeModel | Exception) -> None:
        self._model = model

    def open(
        self,
        path: str | None,
        on_opening: object = None,
        on_lost: object = None,
        on_released: object = None,
        on_warming: object = None,
        **_: object,
    ) -> FakeModel:
        if isinstance(self._model, Exception):
            raise self._model
        return self._model

    def close(self) -> None:
        """There is nothing to end."""


def words(text: str, seconds: float = 0.05) -> list[Step]:
    """A text as tokens, each after a while."""
    steps: list[Step] = []
    for index, word in enumerate(text.split(" ")):
        steps += [seconds, word if index == 0 else f" {word}"]
    return steps


def _main() -> None:
    from flashllm.library.models import ModelChoice
    from flashllm.ui.app import ChatApp
    from flashllm.ui.chat.screen import ChatScreen
    from flashllm.ui.run import run_app

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

    def open_engine(_choice: object) -> Any:
        time.sleep(2)
        if "open-failure" in sys.argv:
            raise MemoryCeilingTooSmall(
                "--memory 10 MB is too small for this model; it needs at least 212 MiB", 212 << 20
            )
        return model

    chat = ChatScreen(open_engine, choice=ModelChoice(name="fake"))
    sys.exit(run_app(ChatApp(chat)))


if __name__ == "__main__":
    _main()
