"""In which order tokens go through the layers: a prompt in chunks, an answer token by token.

A schedule owns no sequence: each call names the context to append to.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flashllm.arrays import Ids, unwarned
from flashllm.kv_cache.context import Context
from flashllm.large_arrays import LARGE_ARRAYS, Floats
from flashllm.model.attention import Span
from flashllm.model.ffn_decode import FeedForwardDecode
from flashllm.model.ffn_prefill import Chosen, FeedForwardPrefill, Tap
from flashllm.model.layer_inputs import LayerInputs
from flashllm.model.transformer import Transformer
from flashllm.weight_cache.pool import BundlePool

Mode = Literal["dense", "selected", "oracle", "needed", "decoded"]
"""How the tokens of a text are computed: with all neurons, with those that the decoder's selector
selects, or with those whose output is not zero. Decoded: each as a token of an answer, which may
see some keys and values only. Needed: as selected, and of few tokens the layers
are not read whole."""
Progress = Callable[[float, int], None]
"""Called with (tokens done, tokens in all) after each layer of a prompt; one layer counts as 1 /
layers of each token in the chunk."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Settings of the tokens that go through the layers together."""

    mode: Mode = "dense"
    tap: Tap | None = None
    chosen: Chosen | None = None
    few_tokens: int = 0
    """In mode needed, a chunk of at most so many reads the neurons that it needs."""
    keep_tokens: int = 0
    """How many of the last tokens keep their bundles in the pool."""
    asks_last: bool = False
    """Whether only the last token of each prompt is asked for behind the last layer."""
    passed: Callable[[float], None] | None = None
    """Called after each layer with the share of the layers that is done."""


Pending = tuple[Context, int]
"""A context, and the token of an answer that is to be appended to it."""
Beside = Callable[[], Sequence[Pending]]
"""Asked before each pass of prompts for the tokens that go beside them."""


@dataclass(frozen=True, slots=True)
class PromptsPass:
    """What came of tokens of several prompts that went through the layers together."""

    ended: tuple[int, ...]
    """The prompts, by number, of which the last token was among them."""
    last: Floats  # [ended, d_model]
    """Of that token of each, behind the last layer."""
    beside: Floats  # [beside, d_model]
    """The same of the tokens that went beside them."""


class TokenSchedule:
    """One token of an answer at a time, through the active neurons only."""

    def __init__(
        self,
        transformer: Transformer,
        feed_forward: FeedForwardDecode,
        pool: BundlePool,
        before_layer: Callable[[int], None],
    ) -> None:
        """`before_layer` gets each layer's number, and the number of layers before the head."""
        self._transformer = transformer
        self._feed_forward = feed_forward
        self._pool = pool
        self._before_layer = before_layer

    @unwarned
    def run(self, context: Context, token: int) -> Floats:
        """Append a token to the context; its hidden state [1, d_model] after the last layer."""
        transformer, feed_forward = self._transformer, self._feed_forward
        feed_forward.forget()
        self._pool.end_expecting()
        dense = transformer.spec.dense_layers
        spans = [Span(context.keys_values, 1, is_decoded=True)]
        x = transformer.embed([token], spans)
        rotations = transformer.rotations(spans)
        reads_early = len(feed_forward.prefetchers) > 0
        for index in range(transformer.spec.n_layers):
            self._before_layer(index)
            x = transformer.block(
                index,
                x,
                rotations,
                spans,
                functools.partial(feed_forward.token, index - dense),
                functools.partial(self._before_attention, index)
                if reads_early and index >= dense
                else None,
            )
        context.append_decoded(token)
        self._pool.advance()
        self._before_layer(transformer.spec.n_layers)
        return x

    def _before_attention(self, index: int, x: Floats, normed: Floats) -> None:
        known, spec = None, self._transformer.spec
        if spec.block == "parallel":
            known = LayerInputs(self._transformer.parallel_input(index, x, normed), x, x)
        elif spec.experts is not None and spec.experts.router_input == "block":
            known = LayerInputs.before_attention(x)
        for prefetcher in self._feed_forward.prefetchers:
            prefetcher.before_attention(index - spec.dense_layers, x, known)


class PromptSchedule:
    """Computes a prompt in chunks, with all neurons or with selected ones."""

    def __init__(
        self,
        transformer: Transformer,
        feed_forward: FeedForwardPrefill,
        pool: BundlePool,
        seed_tokens: int,
        needed_tokens: int,
        warm_needed_tokens: int,
        unused_bytes: Callable[[int], int],
        before_layer: Callable[[], None],
    ) -> None:
        """Bundles of the last `seed_tokens` of a prompt stay; `before_layer` may stop it.

        `unused_bytes` says how much of the memory planned for a chunk so many tokens leave.

        In mode needed, a chunk of at most `needed_tokens` reads the neurons that it needs; of at
        most `warm_needed_tokens` where slots are full.
        """
        self._transformer = transformer
        self._feed_forward = feed_forward
        self._pool = pool
        self._seed_tokens = seed_tokens
        self._needed_tokens = needed_tokens
        self._warm_needed_tokens = warm_needed_tokens
        self._unused_bytes = unused_bytes
        self._before_layer = before_layer

    def run(
        self, context: Context, ids: Sequence[int], how: Pass, progress: Progress | None = None
    ) -> Iterator[Floats]:
        """Append `ids` to the context; hidden states [tokens, d_model], chunk by chunk.

        Of a pass that asks for the last token only, some of the last ones at least.
        """
        step, layers = context.chunk_tokens, self._transformer.spec.bundled_layers
        chunks = [list(ids[start : start + step]) for start in range(0, len(ids), step)]
        how = self._with_few(how)
        # The last chunk is the smallest: whole layers come first.
        whole = [chunk for chunk in chunks if not self._is_few(how, len(chunk))]
        self._pool.end_expecting()
        if whole:
            spare_bytes = self._unused_bytes(max(map(len, whole)))
            if spare_bytes:
                LARGE_ARRAYS.give_back()  # what longer prompts have left is counted there too
            self._pool.expect((layer for _ in whole for layer in range(layers)), spare_bytes)
        start = 0
        for number, chunk in enumerate(chunks):
            if number == len(whole):
                self._pool.end_expecting()
            after = len(ids) - start - len(chunk)
            keep_tokens = max(0, min(self._seed_tokens - after, len(chunk)))
            passed = None
            if progress is not None:
                passed = functools.partial(_report, progress, start, len(chunk), len(ids))
            one = dataclasses.replace(how, keep_tokens=keep_tokens, passed=passed)
            yield self._chunk([(context, chunk)], one)[0]
            start += len(chunk)

    def run_each(
        self,
        contexts: Sequence[Context],
        prompts: Sequence[Sequence[int]],
        how: Pass,
        beside: Beside | None = None,
    ) -> Iterator[PromptsPass]:
        """Append a prompt to each of several contexts.

        As many of their tokens as a chunk has go through the layers together. Tokens of answers in
        other contexts go `beside` them, so that these need no reading of their own. Source of that:
        Agrawal et al., arXiv 2308.16369, section 4.
        """
        passes = list(_passes(prompts, contexts[0].chunk_tokens))
        self._pool.end_expecting()
        how = self._with_few(how)
        if how.mode == "dense":
            layers = self._transformer.spec.bundled_layers
            self._pool.expect(layer for _ in passes for layer in range(layers))
        for number, pieces in enumerate(passes):
            going = [] if beside is None else list(beside())
            chunk = [(contexts[at], list(prompts[at][start:end])) for at, start, end in pieces]
            keep_tokens = min(self._seed_tokens, len(going))
            if not going and number == len(passes) - 1:
                keep_tokens = min(self._seed_tokens, sum(len(ids) for _, ids in chunk))
            one = dataclasses.replace(how, keep_tokens=keep_tokens)
            x, rows = self._chunk(chunk, one, going)
            ended, lasts, first = [], [], 0
            for at, start, end in pieces:
                first += end - start
                if end == len(prompts[at]):
                    ended.append(at)
                    lasts.append(first - 1)
            # Copies: the rest of `x` is not kept.
            found = np.searchsorted(rows, lasts)
            yield PromptsPass(tuple(ended), x[found], x[len(x) - len(going) :].copy())

    def _is_few(self, how: Pass, tokens: int) -> bool:
        return how.mode == "needed" and tokens <= how.few_tokens

    def _with_few(self, how: Pass) -> Pass:
        """With how many tokens are few: how they are read follows from what is in slots, no bit."""
        is_warm = self._pool.is_nearly_full
        few_tokens = self._warm_needed_tokens if is_warm else self._needed_tokens
        return dataclasses.replace(how, few_tokens=few_tokens)

    def _asked(
        self, pieces: Sequence[tuple[Context, list[int]]], how: Pass, going: int
    ) -> Ids | None:
        """The tokens by number that are asked for behind the last layer; None for all.

        The last ones of the pieces, those that are `going` beside them, and those that say what
        stays in the pool.
        """
        if not how.asks_last or not self._transformer.may_leave_out:
            return None
        ends = np.cumsum([len(own) for _, own in pieces])
        end = int(ends[-1]) + going
        kept = np.arange(end - max(how.keep_tokens, going), end)
        return np.union1d(ends - 1, kept).astype(np.int32)

    @unwarned
    def _chunk(
        self,
        pieces: Sequence[tuple[Context, list[int]]],
        how: Pass,
        going: Sequence[Pending] = (),
    ) -> tuple[Floats, Ids]:
        """Appends ids to each of several contexts, then a token to each of those that are `going`.

        [tokens, d_model], piece after piece, of the tokens that are asked for, and their numbers.
        """
        transformer = self._transformer
        spans = [Span(context.keys_values, len(own)) for context, own in pieces]
        spans += [Span(context.keys_values, 1, is_decoded=True) for context, _ in going]
        ids = [token for _, own in pieces for token in own]
        selected_from = 0 if how.mode == "needed" else len(ids) if going else None
        ids += [token for _, token in going]
        # Keys and values of the last layer are those of all tokens; what comes behind them is not.
        asked, last = self._asked(pieces, how, len(going)), transformer.spec.n_layers - 1
        x = transformer.embed(ids, spans)
        rotations = transformer.rotations(spans)
        for index in range(last + 1):
            self._before_layer()
            rows = asked if index == last else None
            if rows is not None and selected_from is not None:
                selected_from = int(np.searchsorted(rows, selected_from))
            feed_forward = functools.partial(
                self._compute,
                index - transformer.spec.dense_layers,
                how,
                selected_from,
                len(ids),
            )
            x = transformer.block(index, x, rotations, spans, feed_forward, rows=rows)
            if how.passed is not None:
                how.passed((index + 1) / transformer.spec.n_layers)
        for context, own in pieces:
            context.append_prefilled(own)
        for context, token in going:
            context.append_decoded(token)
        self._pool.advance(len(ids))
        return x, np.arange(len(ids), dtype=np.int32) if asked is None else asked

    def _compute(
        self,
        index: int,
        how: Pass,
        selected_from: int | None,
        tokens: int,
        inputs: LayerInputs,
    ) -> Floats:
        if self._is_few(how, tokens):
            return self._feed_forward.needed(index, inputs)
        if how.mode in ("dense", "needed"):
            return self._feed_forward.dense(
                index, inputs, how.keep_tokens, how.tap, selected_from, tokens
            )
        return self._feed_forward.selected(index, inputs, how.mode == "oracle", how.chosen)


def _passes(prompts: Sequence[Sequence[int]], most: int) -> Iterator[list[tuple[int, int, int]]]:
    """Shares prompts out to passes of at most `most` tokens: (prompt, first, end), in order."""
    pieces: list[tuple[int, int, int]] = []
    room = most
    for at, prompt in enumerate(prompts):
        start = 0
        while start < len(prompt):
            end = min(start + room, len(prompt))
            pieces.append((at, start, end))
            room -= end - start
            start = end
            if room == 0:
                yield pieces
                pieces, room = [], most
    if pieces:
        yield pieces


def _report(progress: Progress, start: int, tokens: int, total: int, share: float) -> None:
    progress(start + tokens * share, total)
