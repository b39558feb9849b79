"""One answer: the prompt is read, tokens are sampled, each with its cost."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm.engine.sampling import Sampler, Sampling, StopMatcher
from flashllm.errors import Cancelled
from flashllm.kv_cache.context import Context
from flashllm.model.decoder import Decoder
from flashllm.planning.model_info import ModelInfo
from flashllm.planning.plan import Plan
from flashllm.system import right_of_way
from flashllm.system.memory import rss_peak_bytes
from flashllm.telemetry.costs import PrefillCost, TokenCost, decode_summary
from flashllm.telemetry.meter import Meter, NoMeter
from flashllm.tokenizer.tokenizer import Tokenizer

OnPrefill = Callable[[float, int], None]


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `text` is what can be shown now and may be empty.

    The cost of the first token is that of the whole prompt.
    """

    id: int
    text: str
    cost: TokenCost

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"id": self.id, "text": self.text, "cost": self.cost.to_json()}


class OpenModel(Protocol):
    """The parts of a model that a generation needs."""

    tokenizer: Tokenizer | None
    info: ModelInfo
    plan: Plan
    reader_stats: Callable[[], dict[str, Any]]

    def io_report(self) -> dict[str, Any]:
        """How the bundles are read."""


class Generation:
    """Iterator of tokens; afterwards `finish_reason`, `text` and `report()` tell how it went.

    `ids` and `text` hold only what this run added. A stopped answer plus its continuation equals
    the uninterrupted answer, so the text of a stopped one ends before half a character or a
    possible beginning of a stop string.
    """

    def __init__(
        self,
        model: OpenModel,
        decoder: Decoder,
        ids: list[int],
        max_tokens: int,
        sampling: Sampling,
        stop: Sequence[str],
        on_prefill: OnPrefill | None,
        telemetry: bool = True,
        answer: int = 0,
        context: Context | None = None,
    ) -> None:
        self.finish_reason: str | None = None
        """"stop", "length", "context" or "cancelled"; None while it runs."""
        self.text = ""
        self.ids: list[int] = []
        self.prompt_tokens = len(ids)
        self.reused_tokens = 0
        """Tokens of the prompt that were in the context already; known once it runs."""
        self.prefill = PrefillCost()
        self.costs: list[TokenCost] = []
        """One for each token decoded; the first token is the prefill's. None without telemetry."""
        self._model = model
        self._decoder = decoder
        self._context = context or decoder.context
        self._steps_seen = -1
        self._matcher = StopMatcher(stop)
        self._text = model.tokenizer.decoder() if model.tokenizer else None
        self._prompt, self._said = ids[: len(ids) - answer], ids[len(ids) - answer :]
        self._meter: Meter | NoMeter = NoMeter(decoder.clock)
        if telemetry:
            self._meter = Meter(model.reader_stats, decoder.pool.counters, decoder.clock)
        self._sampler = Sampler(sampling, self._prompt)
        self._steps = self._run(max_tokens, on_prefill)

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        return next(self._steps)

    def close(self) -> None:
        """Stop here; the next `__next__` ends the iteration."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
        self._steps.close()

    def report(self) -> dict[str, Any]:
        """Everything about this generation, as `flashllm run --json` prints it."""
        plan, info = self._model.plan, self._model.info
        prefill = self.prefill
        return {
            "model": info.name,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.ids,
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
                "rss_peak_bytes": rss_peak_bytes(),
                "resident_bytes": plan.resident_bytes,
                "predictor_bytes": plan.split["predictors"],
                "slot_bytes": plan.split["slots"],
                "kv_bytes": plan.split["kv"],
            },
            "io": self._model.io_report(),
            "settings": {
                "select": plan.select,
                "lossy": plan.lossy,
                "policy": plan.policy,
                "window": plan.window,
                "context": plan.context,
                "kv_dtype": plan.kv_dtype,
                "overlap": plan.overlap,
                "slots": sum(plan.slots_per_layer),
            },
        }

    def _run(self, max_tokens: int, on_prefill: OnPrefill | None) -> Generator[Token, None, None]:
        try:
            with right_of_way.taken():
                yield from self._tokens(max_tokens, on_prefill)
        except Cancelled:
            self.finish_reason = "cancelled"

    def _tokens(self, max_tokens: int, on_prefill: OnPrefill | None) -> Iterator[Token]:
        self._resume()
        if self._matcher.stopped:  # the answer had come to its end before
            self.finish_reason = "stop"
            return
        meter, decoder = self._meter, self._decoder
        self._begin_step()
        logits = self._read(on_prefill)
        if max_tokens == 0:
            self.finish_reason = "length"
            self._close_step()
            return
        while True:
            meter.clock.switch("sample")
            token = self._sampler.next(logits)
            self._context.tokens.append_sampled(token)
            meter.clock.switch("other")
            text = self._accept(token, last=len(self.ids) + 1 == max_tokens)
            cost = self._close_step()
            if token not in self._eos_ids():
                yield Token(token, text, cost)
            if self.finish_reason is not None:
                return
            self._begin_step()
            logits = decoder.decode(token, self._context)

    def _resume(self) -> None:
        """Bring sampler and text back to the state in which the answer was stopped."""
        self._sampler.skip(self._said)
        if self._text is not None:
            for token in self._said:
                self._matcher.push(self._text.push(token))

    def _read(self, on_prefill: OnPrefill | None) -> NDArray[np.float32]:
        """Compute the part of prompt and answer that the context lacks; returns logits [vocab]."""
        decoder, prompt, said = self._decoder, self._prompt, self._said
        cached = self._context.tokens.cached_prefix([*prompt, *said], len(said))
        self.reused_tokens = cached
        unread, to_decode = prompt[cached:], said[max(cached - len(prompt), 0) :]
        total = len(unread) + len(to_decode)

        def report(done: float, _: int) -> None:
            if on_prefill is not None:
                on_prefill(done, total)

        if unread:
            logits = decoder.prefill(unread, progress=report, cached=cached, context=self._context)
        else:
            decoder.truncate(cached, self._context)
        for done, token in enumerate(to_decode, len(unread) + 1):
            logits = decoder.decode(token, self._context)
            report(done, total)
        return logits

    def _accept(self, token: int, last: bool) -> str:
        # Takes a token in: what to show, and whether it is the last one.
        if token in self._eos_ids():
            self.finish_reason = "stop"
            self.text += self._matcher.flush()
            return ""
        self.ids.append(token)
        shown = self._matcher.push(self._text.push(token)) if self._text else ""
        if self._matcher.stopped:
            self.finish_reason = "stop"
        elif last:
            self.finish_reason = "length"
        elif self._context.length >= self._context.capacity:
            self.finish_reason = "context"
        self.text += shown
        return shown

    def _begin_step(self) -> None:
        if self._decoder.steps != self._steps_seen:  # of another context
            self._meter.reread()
        self._meter.start()

    def _close_step(self) -> TokenCost:
        cost = self._meter.token()
        self._steps_seen = self._decoder.steps
        if isinstance(self._meter, NoMeter):
            return cost
        if self._context.length == self.prompt_tokens:
            self.prefill = PrefillCost.of(cost, self.prompt_tokens, self.reused_tokens)
        else:
            self.costs.append(cost)
        return cost

    def _eos_ids(self) -> tuple[int, ...]:
        tokenizer = self._model.tokenizer
        return tokenizer.eos_ids if tokenizer else self._model.info.spec.eos_ids
