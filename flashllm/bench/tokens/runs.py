"""The runs of `flashllm bench tokens`: one model, one process, the same prompt again and again.

Every run begins a new context, so its first tokens find only bundles of its own prompt. Runs with
and without telemetry are interleaved, and the machine itself is measured between them, so that slow
changes of the machine affect all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flashllm.bench.steal_time import ProcessorTime
from flashllm.bench.tokens.process import ProcessCounts
from flashllm.bench.tokens.samples import (
    AGAIN,
    COLD,
    PLAIN,
    TOKENS_MIN,
    WARM,
    ProbeSample,
    ReaderCounts,
    RunSample,
    Sample,
    TokenSample,
    check_tokens,
)
from flashllm.core.numpy_twin.latency import Latencies
from flashllm.engine.generation import Generation, Token
from flashllm.engine.local import Model
from flashllm.errors import UsageError
from flashllm.system.memory import rss_peak_bytes
from flashllm.telemetry.costs import TokenCost

PAIRED_TOKENS = 1000
"""Pairs of tokens with and without telemetry that are needed to see a difference of 1 %."""
PAIRED_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """How much to run."""

    tokens: int = 128
    """Tokens to decode in each run, unless the answer ends earlier."""
    runs: int = 5
    """Number of warm runs; a cold one precedes them."""
    telemetry_cost: bool = True
    """Whether each run is repeated without telemetry."""
    paired_tokens: int = PAIRED_TOKENS
    paired_seconds: float = PAIRED_SECONDS


class Probe(Protocol):
    """Measures the machine between two runs."""

    def look(self, run: RunSample) -> ProbeSample:
        """Measures the machine at the read size and depth of a run."""
        ...


def check_length(model: Model, ids: Sequence[int], tokens: int) -> None:
    """`UsageError` if the tokens are too few for a run, or do not fit after the prompt."""
    check_tokens(tokens)
    context = model.plan.context
    if len(ids) + tokens > context:
        raise UsageError(
            f"--tokens {tokens}: with the {len(ids)} of the prompt that is beyond the context of"
            f" {context}; the most is {max(context - len(ids), 0)}, unless --ctx-size allows more"
            f" (this model can do {model.info.spec.max_positions})"
        )


def measure(
    model: Model,
    ids: Sequence[int],
    settings: TokenSettings,
    probe: Probe,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Sample]:
    """Runs; yields every token, run and measurement of the machine when it is over.

    Ends early if `is_stopped`; the last run is then incomplete. `UsageError` if the model's answer
    is too short.
    """
    check_length(model, ids, settings.tokens)
    runs = _Runs(model, ids, settings, is_stopped)
    cold = yield from runs.run(COLD)
    if cold.complete and len(cold.tokens) < TOKENS_MIN:
        raise _too_short(len(cold.tokens))
    for number in range(settings.runs):
        kinds = _pair(number, WARM) if settings.telemetry_cost else [WARM]
        done = []
        for kind in kinds:
            if is_stopped():
                return
            done.append((yield from runs.run(kind)))
        if is_stopped():
            return
        yield probe.look(next(run for run in done if run.kind == WARM))
    if settings.telemetry_cost:
        yield from _further_pairs(runs, settings, is_stopped)


def _further_pairs(
    runs: _Runs, settings: TokenSettings, is_stopped: Callable[[], bool]
) -> Iterator[Sample]:
    """More pairs for short answers, for some seconds at most."""
    paired, number = runs.plain_tokens, settings.runs
    end = time.monotonic() + settings.paired_seconds
    while paired < settings.paired_tokens and time.monotonic() + 2 * runs.seconds_max < end:
        for kind in _pair(number, AGAIN):
            if is_stopped():
                return
            yield from runs.run(kind)
        paired, number = runs.plain_tokens, number + 1


def _pair(number: int, measured: str) -> list[str]:
    """A run with telemetry and one without, in alternating order."""
    return [measured, PLAIN] if number % 2 == 0 else [PLAIN, measured]


def _too_short(tokens: int) -> UsageError:
    ended = f"after {tokens + 1} tokens" if tokens else "at once"
    return UsageError(f"the answer ended {ended}; give another prompt with -p or --ids")


class _Runs:
    """Runs by number."""

    def __init__(
        self,
        model: Model,
        ids: Sequence[int],
        settings: TokenSettings,
        is_stopped: Callable[[], bool],
    ) -> None:
        self.plain_tokens = 0
        self._model = model
        self._ids = ids
        self._tokens = settings.tokens
        self._is_stopped = is_stopped
        self._number = 0
        self.seconds_max = 0.0

    def run(self, kind: str) -> Generator[Sample, None, RunSample]:
        """Runs one answer; yields its tokens, then the run, and also returns the run."""
        self._model.forget()  # so that each run reads its prompt
        generation = self._model.generate(
            self._ids, max_tokens=self._tokens + 1, telemetry=kind != PLAIN
        )
        processors, start_ns = ProcessorTime.now(), time.perf_counter_ns()
        first = next(generation, None)
        first_token_ns = time.perf_counter_ns() - start_ns
        if first is None and generation.finish_reason == "stop":
            raise _too_short(0)
        before = _Moment.now(self._model)
        tokens: list[TokenSample] = []
        for token in self._decoded(generation, kind):
            tokens.append(token)
            yield token
        # Called even if nothing more comes, so that the generation ends and is released.
        generation.close()
        run = RunSample(
            run=self._number,
            kind=kind,
            complete=generation.finish_reason != "cancelled" and first is not None,
            finish_reason=generation.finish_reason,
            first_token_ns=first_token_ns,
            prefill=None if first is None or kind == PLAIN else first.cost,
            token_ids=tuple(generation.ids),
            tokens=tuple(tokens),
            **before.until_now(self._model),
            rss_peak_bytes=rss_peak_bytes(),
            stolen_share=ProcessorTime.now().stolen_share_since(processors),
        )
        self.seconds_max = max(self.seconds_max, (first_token_ns + run.decode_ns) / 1e9)
        self._number += 1
        self.plain_tokens += len(tokens) if kind == PLAIN else 0
        yield run
        return run

    def _decoded(self, generation: Generation, kind: str) -> Iterator[TokenSample]:
        """Each step of the decode, without the prompt's, but with the one that ends the answer."""
        index = 0
        while generation.finish_reason is None and not self._is_stopped():
            start_ns = time.perf_counter_ns()
            token = next(generation, None)
            wall_ns = time.perf_counter_ns() - start_ns
            if token is None and generation.finish_reason != "stop":
                return  # cancelled: half a token
            yield TokenSample(
                run=self._number,
                kind=kind,
                index=index,
                id=None if token is None else token.id,
                wall_ns=wall_ns,
                context_tokens=len(self._ids) + index,
                cost=None if kind == PLAIN else _cost(token, generation),
            )
            index += 1


def _cost(token: Token | None, generation: Generation) -> TokenCost:
    # The step that samples the end of the answer shows no token, but costs one.
    return generation.costs[-1] if token is None else token.cost


@dataclass(frozen=True, slots=True)
class _Moment:
    """The counts at the beginning of a decode."""

    process: ProcessCounts
    reader: ReaderCounts
    latencies: Latencies

    @classmethod
    def now(cls, model: Model) -> _Moment:
        return cls(
            process=ProcessCounts.now(),
            reader=ReaderCounts.of(model.reader_stats()),
            latencies=model.read_latencies(),
        )

    def until_now(self, model: Model) -> dict[str, Any]:
        """Fields of `RunSample`, counted since then."""
        now = _Moment.now(model)
        return {
            "process": now.process.since(self.process),
            "reader": now.reader.since(self.reader),
            "latencies": now.latencies - self.latencies,
        }
