"""Decodes a text under each policy: the tokens are the text's, whatever would have been sampled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashllm.bench.kv.cases import KvCase
from flashllm.kv_cache.fetch_counts import FetchCounts
from flashllm.kv_cache.layout import choosing_layers, fast_bytes, kv_bytes
from flashllm.kv_cache.pool import LimitedPool
from flashllm.kv_cache.selected import SelectedCache
from flashllm.model.decoder import Decoder
from flashllm.predictors.evaluation.likelihood import DensePassage, LikelihoodMeter


@dataclass(frozen=True, slots=True)
class KvPassage:
    """Token ids; the first `prompt` are read as a prompt, the others decoded one by one."""

    ids: Sequence[int]
    prompt: int
    counted: NDArray[np.bool_] | None = None
    """Which tokens count, [tokens]; None: all that are decoded. Those of the prompt never do."""
    expected: NDArray[np.int64] | None = None
    """What is to be found in place of each token that counts, [tokens]; None: the text's own."""

    def counts(self, position: int) -> bool:
        """Whether the token there counts."""
        return position >= self.prompt and (self.counted is None or bool(self.counted[position]))

    def target(self, position: int) -> int:
        """What is to be found there."""
        return self.ids[position] if self.expected is None else int(self.expected[position])


@dataclass(slots=True)
class KvRun:
    """What one case came to."""

    case: KvCase
    meter: LikelihoodMeter = field(default_factory=LikelihoodMeter)
    right: int = 0
    """Tokens that were the likeliest ones."""
    decoded: int = 0
    seconds: float = 0.0
    """Of decoding, without measuring."""
    whole_bytes: int = 0
    """Of keys and values before each token, in all layers; summed."""
    seen_bytes: int = 0
    """Those of them that were seen."""
    fetched_bytes: int = 0
    """Those that would come from a slower tier, if it held what may come back."""
    index_bytes: int = 0
    fast_bytes: int = 0
    """Memory that must be fast, for the longest passage."""
    counts: list[FetchCounts] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        tokens = max(1, self.decoded)
        sums, measured = self._recalls()
        layers = {layer: sums[layer] / measured[layer] for layer in sorted(sums)}
        available = sum(counts.tokens for counts in self.counts)
        fetched = sum(counts.fetched for counts in self.counts)
        return {
            "policy": self.case.name,
            "budget": self.case.share,
            "lossy": self.case.selection.lossy or self.case.name == "int4",
            "kv_dtype": self.case.kv_dtype,
            **self.meter.to_json(),
            "counted_tokens": self.meter.tokens,
            "accuracy": self.right / max(1, self.meter.tokens),
            "seen_share": fetched / available if available else 1.0,
            "late_share": sum(counts.late for counts in self.counts) / max(1, available),
            "recall": sum(sums.values()) / sum(measured.values()) if measured else 1.0,
            "recall_of_layers": {str(layer): recall for layer, recall in layers.items()},
            "seen_bytes_per_token": self.seen_bytes / tokens,
            "fetched_bytes_per_token": self.fetched_bytes / tokens,
            "index_bytes_per_token": self.index_bytes / tokens,
            "seconds_per_token": self.seconds / tokens,
            "fast_bytes": self.fast_bytes,
        }

    def _recalls(self) -> tuple[dict[int, float], dict[int, int]]:
        """Sums of measured recalls, and their numbers, by layer."""
        sums: dict[int, float] = {}
        measured: dict[int, int] = {}
        for counts in self.counts:
            for layer, recall in counts.recall_sums.items():
                sums[layer] = sums.get(layer, 0.0) + recall
                measured[layer] = measured.get(layer, 0) + counts.recall_counts[layer]
        return sums, measured


def run_cases(
    decoder: Decoder,
    cases: Sequence[KvCase],
    passages: Sequence[KvPassage],
    pool_share: float | None = None,
    on_tokens: Callable[[str, int], bool] = lambda _name, _tokens: False,
) -> list[KvRun]:
    """Each case on each passage; the first case is what the others are held against.

    A pool holds at most `pool_share` of a passage's tokens. `on_tokens` gets a case's name and how
    many more tokens were computed; it ends everything by True, and complete passages count.
    """
    runs = [KvRun(case) for case in cases]
    for passage in passages:
        reference = DensePassage(decoder.spec.vocab_size)
        for run in runs:
            if not _run(decoder, run, passage, pool_share, reference, on_tokens):
                return runs
    return runs


def _run(
    decoder: Decoder,
    run: KvRun,
    passage: KvPassage,
    pool_share: float | None,
    reference: DensePassage,
    on_tokens: Callable[[str, int], bool],
) -> bool:
    """Decodes one passage; whether it was not stopped."""
    case, ids, prompt, spec = run.case, passage.ids, passage.prompt, decoder.spec
    cache = decoder.new_keys_values(
        case.selection, case.kv_dtype, pool=_pool(decoder, case, passage, pool_share),
        measures_all=True,
    )  # fmt: skip
    context = decoder.new_context(cache)
    logits = decoder.prefill(list(ids[:prompt]), context=context)
    is_stopped = on_tokens(case.name, prompt)
    kept: list[NDArray[np.float32]] = []
    targets: list[int] = []
    token_bytes = kv_bytes(spec, 1, case.kv_dtype)
    taken_ns = whole_bytes = 0
    for position in range(prompt, len(ids)):
        if is_stopped:
            return False
        if passage.counts(position):
            kept.append(logits)
            targets.append(passage.target(position))
        if position == len(ids) - 1:
            break
        start_ns = time.perf_counter_ns()
        logits = decoder.decode(ids[position], context)
        taken_ns += time.perf_counter_ns() - start_ns
        whole_bytes += position * token_bytes
        is_stopped = on_tokens(case.name, 1)
    if targets:
        found = np.stack(kept)
        run.meter.add(found, np.array(targets, np.int64), reference, 0)
        run.right += int(np.count_nonzero(found.argmax(axis=1) == targets))
    run.decoded += len(ids) - 1 - prompt
    run.whole_bytes += whole_bytes
    run.fast_bytes = max(run.fast_bytes, fast_bytes(spec, len(ids), case.kv_dtype, case.selection))
    _add_counts(run, decoder, cache, whole_bytes, taken_ns)
    context.close()
    return True


def _add_counts(run: KvRun, decoder: Decoder, cache: Any, whole_bytes: int, taken_ns: int) -> None:
    if not isinstance(cache, SelectedCache):
        run.seconds += taken_ns / 1e9
        run.seen_bytes += whole_bytes
        run.fetched_bytes += whole_bytes
        return
    counts, spec = cache.counts, decoder.spec
    layers = len(choosing_layers(spec, run.case.selection))
    run.counts.append(counts)
    run.seconds += (taken_ns - counts.measuring_ns) / 1e9
    run.seen_bytes += counts.fetched_bytes + whole_bytes * (spec.n_layers - layers) // spec.n_layers
    # What a window or H2O leaves out is lost, and what it keeps stays where it is.
    is_fetched = run.case.selection.policy in ("infinigen", "values", "specache")
    run.fetched_bytes += counts.fetched_bytes if is_fetched else 0
    run.index_bytes += counts.index_bytes


def _pool(
    decoder: Decoder, case: KvCase, passage: KvPassage, share: float | None
) -> LimitedPool | None:
    if share is None or not case.victims:
        return None
    spec, tokens = decoder.spec, len(passage.ids)
    layers, limit = choosing_layers(spec, case.selection), max(1, int(share * tokens))
    return LimitedPool(layers, spec.n_kv_heads, limit, decoder.context_tokens, case.victims)
