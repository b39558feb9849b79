"""Decodes a text that sees everything, and watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flashllm.bench.kv.runs import KvPassage
from flashllm.bench.similarity.observing_cache import ESTIMATES, SHARES, ObservingCache
from flashllm.bench.similarity.streams import SOURCES, StreamMeter
from flashllm.model.decoder import Decoder
from flashllm.options import KvSelection
from flashllm.text_table import columns

QUANTILES = (0.5, 0.9, 1.0)


def measure(
    decoder: Decoder,
    passages: Sequence[KvPassage],
    selection: KvSelection,
    on_tokens: Callable[[int], bool] = lambda _tokens: False,
) -> list[dict[str, Any]]:
    """A row for each layer but the first, as plain values.

    The model has room for another context. `on_tokens` gets how many more tokens were computed, and
    ends everything by True.
    """
    settings = decoder.context_tokens, decoder.kv_dtype, decoder.kernels
    cache = ObservingCache(decoder.spec, *settings, selection, decoder.skewing)
    context, meter = decoder.new_context(cache), StreamMeter(decoder.spec.n_layers)
    try:
        for passage in passages:
            context.truncate(0)
            decoder.prefill(list(passage.ids[: passage.prompt]), context=context)
            stopped = on_tokens(passage.prompt)
            decoder.observe_layers(meter)
            for token in passage.ids[passage.prompt :]:
                if stopped:
                    break
                decoder.decode(token, context)
                stopped = on_tokens(1)
            decoder.observe_layers(None)
            if stopped:
                break
    finally:
        decoder.observe_layers(None)
        context.close()
    return [_row(layer, meter, cache) for layer in range(1, decoder.spec.n_layers)]


def _row(layer: int, meter: StreamMeter, cache: ObservingCache) -> dict[str, Any]:
    row: dict[str, Any] = {"layer": layer, "cosines": meter.means(layer)}
    sums = cache.sums.get(layer)
    if sums is None or not sums.count:
        return row
    needed = np.quantile(sums.needed, QUANTILES, method="higher").tolist()
    row["tokens_needed"] = {
        f"{quantile:.0%}": int(count) for quantile, count in zip(QUANTILES, needed, strict=True)
    }
    counts, edges = np.histogram(sums.needed, bins=2 ** np.arange(0, 22))
    row["tokens_needed_histogram"] = {
        str(int(edge)): int(count) for edge, count in zip(edges[:-1], counts, strict=True) if count
    }
    row["recall"] = {
        name: {
            f"{share:.0%}": float(found) / sums.count
            for share, found in zip(SHARES, sums.recalls[name], strict=True)
        }
        for name in ESTIMATES
    }
    row["weights_cosine"] = {name: found / sums.count for name, found in sums.cosines.items()}
    return row


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Three tables: the stream, how much attention looks at, and what choices see of it."""
    stream = [["layer", *SOURCES]]
    stream += [
        [str(row["layer"]), *(f"{row['cosines'][name]:.3f}" for name in SOURCES)] for row in rows
    ]
    chosen = [row for row in rows if "recall" in row]
    looked = [["layer", *(f"tokens, {q:.0%}" for q in QUANTILES), "infinigen", "h2o", "window"]]
    looked += [
        [
            str(row["layer"]),
            *map(str, row["tokens_needed"].values()),
            *(f"{row['weights_cosine'][name]:.3f}" for name in ("infinigen", "h2o", "window")),
        ]
        for row in chosen
    ]
    seen = [["recall of the best", "of", *(f"layer {row['layer']}" for row in chosen)]]
    seen += [
        [name, f"{share:.0%}", *(f"{row['recall'][name][f'{share:.0%}']:.3f}" for row in chosen)]
        for share in SHARES
        for name in ESTIMATES
    ]
    parts = ["cosine of a layer's input with", columns(stream)]
    if chosen:
        parts += [
            "tokens that have 0.9 of attention's mass, of half of the heads and tokens, nine tenths"
            f" and all; cosine of weights with what policies leave at {SHARES[-1]:.0%}",
            columns(looked),
            "share of attention's mass",
            columns(seen),
        ]
    return "\n".join(parts)
