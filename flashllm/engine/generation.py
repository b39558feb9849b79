"""One answer: the prompt is read, tokens are sampled, each with its cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flashllm.engine import together
from flashllm.engine.answer_message import AnswerMessage
from flashllm.engine.sampling import Sampler, Sampling, StopMatcher
from flashllm.engine.turns import Claim
from flashllm.errors import Cancelled
from flashllm.kv_cache.context import Context
from flashllm.model.decoder import Decoder
from flashllm.planning.model_info import ModelInfo
from flashllm.planning.plan import Plan
from flashllm.system import right_of_way
from flashllm.system.memory import rss_peak_bytes
from flashllm.telemetry.costs import PrefillCost, TokenCost, decode_summary
from flashllm.telemetry.meter import Meter, NoMeter
from flashllm.tokenizer.reasoning import ReasoningCounter
from flashllm.tokenizer.tokenizer import Tokenizer
from flashllm.units import format_token_count

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

    def __repr__(self) -> str:
        return f"Token(id={self.id}, text={self.text!r})"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that an answer took."""

    prompt_tokens: int
    """Of the whole prompt, `reused_tokens` included."""
    reused_tokens: int
    """Of the prompt, those that the context held already, so that they were not read again."""
    answer_tokens: int
    reasoning_tokens: int = 0
    """Of the answer's tokens, those of the reasoning before it."""


class OpenModel(Protocol):
    """The parts of a model that a generation needs."""

    info: ModelInfo
    plan: Plan
    reader_stats: Callable[[], dict[str, Any]]

    def io_report(self) -> dict[str, Any]:
        """How the bundles are read."""

    def kv_report(self) -> dict[str, Any] | None:
        """Where keys and values are, if they have a limit of their own."""

    def device_report(self) -> dict[str, Any] | None:
        """What lies on a device, if there is one, and what was copied."""

    def restore_kept(self, context: Context, ids: Sequence[int], answer: int) -> None:
        """Bring back keys and values of a prompt that were kept."""


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
        tokenizer: Tokenizer | None,
        claim: Claim,
        ids: Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        stop: Sequence[str],
        on_prefill: OnPrefill | None,
        telemetry: bool,
        answer: int,
        reuse_answers: bool,
    ) -> None:
        """`claim` is of the context to compute in; the rest is what `Model.generate` was given."""
        self.finish_reason: str | None = None
        """"stop", "length", "context" or "cancelled"; None while it runs, and after an error."""
        self.text = ""
        self.ids: list[int] = []
        self.prompt_tokens = len(ids)
        self.reused_tokens = 0
        """Tokens of the prompt that were in the context already; known once it runs."""
        self.dropped_messages = 0
        """How many of a conversation's oldest messages were left out, since they did not fit."""
        self.continued = AnswerMessage("")
        """The stopped answer that this one continues; empty if there is none."""
        self.prefill = PrefillCost()
        self.costs: list[TokenCost] = []
        """One for each token decoded; the first token is the prefill's. None without telemetry."""
        self._model = model
        self._decoder = decoder
        self._claim = claim
        self.context = claim.context
        self._max_tokens = max_tokens
        self._on_prefill = on_prefill
        self._reuse_answers = reuse_answers
        self._steps_seen = -1
        self._sampled: int | None = None  # the last token
        self._matcher = StopMatcher(stop)
        self.prompt, self._said = list(ids[: len(ids) - answer]), list(ids[len(ids) - answer :])
        self._text = tokenizer.decoder(self.prompt) if tokenizer else None
        self._reasoning = ReasoningCounter()
        self._eos_ids = tokenizer.eos_ids if tokenizer else model.info.spec.eos_ids
        self._meter: Meter | NoMeter = NoMeter(decoder.clock)
        if telemetry:
            self._meter = Meter(model.reader_stats, decoder.pool.counters, decoder.clock)
        self._sampler = Sampler(sampling, self.prompt)

    def __iter__(self) -> Iterator[Token]:
        return self

    # No generator: one would refer to itself, and an abandoned answer would hold its context until
    # the next collection of garbage.
    def __next__(self) -> Token:
        if self._claim.is_released:
            raise StopIteration
        token = None
        try:
            token = self._claim.compute(self.step)
        except Cancelled:
            self.finish_reason = "cancelled"
        if token is None:
            raise StopIteration
        return token

    def __repr__(self) -> str:
        state = self.finish_reason or ("failed" if self._claim.is_released else "not finished")
        return f"<Generation: {format_token_count(len(self.ids))}, {state}>"

    @property
    def usage(self) -> Usage:
        """Tokens that it took so far."""
        reasoning_tokens = self._reasoning.reasoning_tokens
        return Usage(self.prompt_tokens, self.reused_tokens, len(self.ids), reasoning_tokens)

    @property
    def message(self) -> AnswerMessage:
        """The answer as a message, to be appended to those that `Model.chat` got."""
        before = self.continued
        knows_ids = bool(before.ids) or not before["content"]
        ids = (*before.ids, *self.ids) if knows_ids else ()
        return AnswerMessage(before["content"] + self.text, ids)

    def complete(self) -> Generation:
        """Generates the rest; returns itself: `model.chat(messages).complete().text`."""
        for _ in self:
            pass
        return self

    def close(self) -> None:
        """Stop within a layer and free the context; the iteration ends. From any thread."""
        if not self._claim.is_released:
            self.finish_reason = self.finish_reason or "cancelled"
            self._claim.cancel()
            self._claim.release()

    def report(self) -> dict[str, Any]:
        """Everything about this generation, as `flashllm run --json` prints it."""
        plan, info = self._model.plan, self._model.info
        prefill = self.prefill
        return {
            "model": info.name,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.ids,
            "reasoning_tokens": self._reasoning.reasoning_tokens,
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
            "kv": self._model.kv_report(),
            "device": self._model.device_report(),
            "settings": {
                "select": plan.select,
                "lossy": plan.lossy,
                "policy": plan.policy,
                "window": plan.window,
                "context": plan.context,
                "kv_dtype": plan.kv_dtype,
                "kv_policy": plan.kv_selection.policy,
                "kv_lossy": plan.kv_selection.lossy,
                "prompt_neurons": plan.prompt_neurons,
                "arithmetic": plan.arithmetic,
                "overlap": plan.overlap,
                "verify": plan.verify,
                "slots": sum(plan.slots_per_layer),
            },
        }

    def step(self) -> Token | None:
        """The next token, within a step of a claim; None if the answer ends without another one."""
        if self._claim.is_released:  # while another thread computed the last token
            return None
        if self._sampled is None:
            self.begin()
            logits = self._first_logits()
            if logits is None:
                self._claim.release()
                return None
        else:
            self.begin_step()
            logits = self._decoder.decode(self._sampled, self.context)
        token, text = self.sample(logits)
        return self.tell(token, text, self._close_step())

    def sample(self, logits: NDArray[np.float32]) -> tuple[int, str]:
        """Takes the next token by its logits [vocab]; the token, and the text that can be shown."""
        clock = self._meter.clock
        clock.switch("sample")
        token = self._sampled = self._sampler.next(logits)
        clock.switch("other")
        return token, self._accept(token, last=len(self.ids) + 1 == self._max_tokens)

    def tell(self, token: int, text: str, cost: TokenCost) -> Token | None:
        """The token as it is told, None for the end of the answer, which frees the context."""
        if self.finish_reason is not None:
            self._claim.release()
        return None if token in self._eos_ids else Token(token, text, cost)

    @property
    def pending(self) -> tuple[Context, int] | None:
        """The context, and its last token, which is to be decoded next.

        None before the prompt is read, and after the end.
        """
        if self._sampled is None or self.finish_reason is not None or self.is_over:
            return None
        return self.context, self._sampled

    def first_of_each(
        self, others: Sequence[Generation], going: Sequence[Generation] | None = None
    ) -> list[Token | None]:
        """The first token of this generation and of others, their prompts read together.

        As `next_of_each`, for those of which no token was asked for yet. Their `on_prefill` is not
        called where several prompts are read at once. With `going`, further tokens of these and of
        the others come beside the prompts, where the engine can do that: of a pipeline's it cannot.
        They follow the first ones. After an error, those that were going can go on unless the error
        was theirs.
        """
        return self._of_each(others, functools.partial(together.first_of_each, going=going))

    def next_of_each(self, others: Sequence[Generation]) -> list[Token | None]:
        """A token of this generation and of others of the same model, each layer read once for all.

        None where an answer ended without another token, as one does that has no `pending` one;
        what the step cost is shared out. After an error, or where this one is cancelled, all have
        ended.
        """
        return self._of_each(others, together.next_of_each)

    def _of_each(
        self,
        others: Sequence[Generation],
        step: Callable[[Sequence[Generation], Decoder, Meter | NoMeter], list[Token | None]],
    ) -> list[Token | None]:
        group = [self, *others]
        try:
            return self._claim.compute(lambda: step(group, self._decoder, self._meter))
        except BaseException as error:
            is_cancelled = isinstance(error, Cancelled)
            for each in group:
                each.end(is_cancelled=is_cancelled)
            if not is_cancelled:
                raise
            return [None] * len(group)

    def end(self, *, is_cancelled: bool) -> None:
        """Ends it where it is, and frees its context."""
        if is_cancelled:
            self.finish_reason = self.finish_reason or "cancelled"
        self._claim.release()

    def _first_logits(self) -> NDArray[np.float32] | None:
        if self._matcher.stopped:  # the answer had come to its end before
            self.finish_reason = "stop"
            return None
        self.begin_step()
        logits = self._read()
        if self._max_tokens == 0:
            self.finish_reason = "length"
            self._close_step()
            return None
        return logits

    @property
    def is_over(self) -> bool:
        """Whether no further token comes."""
        return self._claim.is_released or self._claim.is_cancelled

    @property
    def reads_prompt_only(self) -> bool:
        """Whether its first step reads a prompt and samples a token."""
        return self._sampled is None and not self._said and self._max_tokens > 0

    def begin(self) -> None:
        """Takes the right of way, and brings sampler and text to where a stopped answer was."""
        self._claim.held.enter_context(right_of_way.taken())
        self._sampler.skip(self._said)
        if self._text is not None:
            text = [self._matcher.push(self._text.push(token)) for token in self._said]
            self._reasoning = ReasoningCounter("".join(text))

    def _read(self) -> NDArray[np.float32]:
        """Compute the part of prompt and answer that the context lacks; returns logits [vocab]."""
        decoder, prompt, said = self._decoder, self.prompt, self._said
        self.reused_tokens = cached = self.reuse()
        unread, to_decode = prompt[cached:], said[max(cached - len(prompt), 0) :]
        total, on_prefill = len(unread) + len(to_decode), self._on_prefill

        def report(done: float, _: int) -> None:
            if on_prefill is not None:
                on_prefill(done, total)

        if unread:
            logits = decoder.prefill(unread, progress=report, cached=cached, context=self.context)
        else:
            decoder.truncate(cached, self.context)
        for done, token in enumerate(to_decode, len(unread) + 1):
            logits = decoder.decode(token, self.context)
            report(done, total)
        return logits

    def reuse(self) -> int:
        """How many tokens the context has of prompt and answer; others are asked for theirs."""
        ids, said = [*self.prompt, *self._said], len(self._said)
        self._model.restore_kept(self.context, ids, said)
        reuse_answers = self._reuse_answers
        if not said:
            self._decoder.share_prefix(self.context, ids, reuse_answers=reuse_answers)
        return self.context.tokens.cached_prefix(ids, said, reuse_answers=reuse_answers)

    def _accept(self, token: int, last: bool) -> str:
        # Takes a token in: what to show, and whether it is the last one.
        if token in self._eos_ids:
            self.finish_reason = "stop"
            self.text += self._matcher.flush()
            return ""
        self.ids.append(token)
        shown = self._matcher.push(self._text.push(token)) if self._text else ""
        if self._matcher.stopped:
            self.finish_reason = "stop"
        elif self._text is not None and self._text.is_over:
            self.finish_reason = "stop"
            shown += self._matcher.flush()
        elif last:
            self.finish_reason = "length"
        elif self.context.length >= self.context.capacity:
            self.finish_reason = "context"
        self.text += shown
        self._reasoning.add(shown)
        return shown

    def begin_step(self) -> None:
        """What is computed now is this answer's."""
        # Of another context, or of several, whose meter may have been another one's.
        if self._decoder.steps != self._steps_seen:
            self._meter.reread()
        self._meter.start()

    def _close_step(self) -> TokenCost:
        cost = self._meter.token()
        self._steps_seen = self._decoder.steps
        return self.note(cost)

    def note(self, cost: TokenCost) -> TokenCost:
        """Keeps what a step cost, and returns it."""
        seen = self.context.keys_values.take_counts()
        if isinstance(self._meter, NoMeter):
            return cost
        if seen is not None:
            cost = replace(cost, kv_tokens=seen.tokens, kv_seen=seen.fetched, kv_recall=seen.recall)
        if not self.prefill.tokens:
            self.prefill = PrefillCost.of(cost, self.prompt_tokens, self.reused_tokens)
        else:
            self.costs.append(cost)
        return cost
